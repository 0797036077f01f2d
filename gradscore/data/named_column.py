"""A column of the tables that a user names: the times of samples, for one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from ..errors import DataError
from ..system import closest
from .sources.tables import DAMAGE

_ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


def table_column(samples: Sequence[str], column: str) -> list[object]:
    """The values of a column of tables, in the order of `open_user_images`.

    Args:
        samples: `.csv`, `.tsv` or Parquet files.
        column: its name.

    Raises:
        DataError: something else than a table, one that cannot be read, or without this column.
    """
    return [value for name in samples for value in _column(Path(name), column)]


def _column(path: Path, column: str) -> list[object]:
    if path.suffix not in _ENDINGS or not path.is_file():
        raise DataError(
            f"{path}: wanted a table ({', '.join(_ENDINGS)}) with a column {column!r}; images in folders and archives "
            "have no such column: list their paths in a table"
        )
    try:
        if path.suffix in (".parquet", ".pq"):
            names = pq.read_schema(path).names
        else:
            frame = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", skipinitialspace=True)
            names = [str(name) for name in frame]
        if column not in names:
            raise DataError(f"{path}: no column {column!r}; {closest(column, names)}")
        if path.suffix in (".parquet", ".pq"):
            return list(pq.read_table(path, columns=[column]).column(0).to_pylist())
        return list(frame[column])
    except DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: cannot be read as a table: {reason}; copy it again") from None
