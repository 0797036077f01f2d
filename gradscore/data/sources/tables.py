"""Tables in CSV and Parquet files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DataError
from .base import Request, no_file
from .columns import ColumnSource, Table, column_source
from .text_tables import read_text_table

DAMAGE = (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError, ValueError, KeyError)
"""What reading a damaged table raises."""


def csv_source(request: Request) -> ColumnSource:
    """A table as text, with names of columns in its first line; columns are parted by commas, in `.tsv` by tabs."""
    path = existing(request)
    images = request.arguments.get("inputs")
    is_name = isinstance(images, str) and {"folder", "suffix"} & request.arguments.keys()
    try:
        rows = read_text_table(path, texts=[str(images)] if is_name else [])  # 0012 is a name
    except DAMAGE as error:
        raise unreadable(path, error, "a table with the names of its columns in the first line") from None
    return column_source(Table(rows, f"data file {path}", path.parent, {}), request)


def parquet_source(request: Request) -> ColumnSource:
    """A table in a Parquet file; names of classes that `datasets` wrote into it are read."""
    path = existing(request)
    return column_source(read_parquet([path], where=f"data file {path}", folder=path.parent), request)


def read_parquet(paths: list[Path], *, where: str, folder: Path) -> Table:
    """One table of several Parquet files.

    Raises:
        DataError: one cannot be read, or they differ in their columns.
    """
    tables = []
    for path in paths:
        try:
            tables.append(pq.ParquetFile(path).read())
        except DAMAGE as error:
            raise unreadable(path, error, "a Parquet file") from None
    return joined(tables, where=where, folder=folder)


def joined(tables: list[pa.Table], *, where: str, folder: Path) -> Table:
    """Several tables of the same columns as one, with the names of classes that `datasets` noted there."""
    try:
        rows = pa.concat_tables(tables)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{where}: its files differ in their columns: {str(error).splitlines()[0]}") from None
    _refuse_copies(rows.column_names, where=where)
    return Table(rows, where, folder, _class_names(rows.schema))


def _refuse_copies(names: Sequence[str], *, where: str) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"{where}: two columns are called {twice!r}, and it cannot be told which is meant; rename or remove one"
        )


def existing(request: Request) -> Path:
    """The file that a source names.

    Raises:
        DataError: there is none.
    """
    path = Path(request.name)
    if not path.is_file():
        raise DataError(f"data file {path} {no_file(path)}")
    return path


def unreadable(path: Path, error: Exception, wanted: str) -> DataError:
    """Says that a file cannot be read, and why."""
    return DataError(f"data file {path} cannot be read: {reason_of(error)}; wanted {wanted}")


def reason_of(error: Exception) -> str:
    """The first line of what an exception says, or its name where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    try:
        noted: Any = json.loads((schema.metadata or {})[b"huggingface"])
        features = noted["info"]["features"]
        return {
            name: [str(each) for each in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
