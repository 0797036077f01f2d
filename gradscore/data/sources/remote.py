"""Data in object storage: the local copies that sources read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...errors import DataError
from ...objects import fetched
from ...system import is_address
from .base import ImageSource
from .columns import ColumnSource, is_text
from .tar_shards import expanded


def at_hand(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a source names and its arguments, with local copies in place of addresses.

    Raises:
        ObjectStorageError: they cannot be had.
        OutputError: there is no room for them.
    """
    root = arguments.get("root")
    root = root if isinstance(root, str) and is_address(root) else None
    if not is_address(name):
        return name, {**arguments, **({} if root is None else {"root": str(fetched(root))})}
    path = fetched(name, stands_for=expanded(name), beside=root)
    rooted = {} if root is None else {"root": os.path.normpath(path / os.path.relpath(root, name))}
    return str(path), {**arguments, **rooted}


def refuse_paths_alone(source: ImageSource, *, written: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuses a table of paths in object storage that does not say where the files are.

    Raises:
        DataError: it is one.
    """
    if not is_address(name) or not isinstance(source, ColumnSource) or "root" in arguments or source.kind != "image":
        return
    column = source.columns[0]
    if is_text(source.table.rows.schema.field(column).type):
        folder = name.rpartition("/")[0]
        raise DataError(
            f"data source {written!r}: column {column!r} names files beside the table, which have to be fetched, too; "
            f"say below which address all of them are: arguments: {{root: {folder}}}"
        )
