"""A column of the tables that a user names: the times of samples, for one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from ..errors import DataError
from ..system import closest, is_whole
from .sources.tables import DAMAGE, read_text_table, reason_of

_ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


def table_column(samples: Sequence[str], column: str, *, as_text: bool = False) -> list[object]:
    """The values of a column of tables, in the order of `open_user_images`.

    Args:
        samples: `.csv`, `.tsv` or Parquet files.
        column: its name.
        as_text: whether its whole numbers are wanted as they are written, in tables of text with zeros before them.

    Raises:
        DataError: something else than a table, one that cannot be read, or without this column.
    """
    return [value for name in samples for value in _column(Path(name), column, as_text)]


def _column(path: Path, column: str, as_text: bool) -> list[object]:
    ending = path.suffix.lower()
    if ending not in _ENDINGS or not path.is_file():
        raise DataError(
            f"{path}: wanted a table ({', '.join(_ENDINGS)}) with a column {column!r}; images in folders and archives "
            "have no such column: list their paths in a table"
        )
    try:
        if ending in (".parquet", ".pq"):
            names = pq.read_schema(path).names
        else:
            table = read_text_table(path, texts=(column,) if as_text else ())
            names = table.column_names
        if column not in names:
            raise DataError(f"{path}: no column {column!r}; {closest(column, names)}")
        if ending in (".parquet", ".pq"):
            table = pq.read_table(path, columns=[column])
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as a table: {reason_of(error)}; copy it again, or mend it") from None
    values = table.column(column).to_pylist()
    return [str(value) if as_text and is_whole(value) else value for value in values]
