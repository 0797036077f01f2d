"""Results of scoring in a file: one table of all samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError
from ..system import replacing, write_csv

FORMATS = (".parquet", ".csv", ".jsonl")

Writer = Callable[[pd.DataFrame], None]
"""Appends the rows of a table."""


@contextmanager
def table_writer(path: Path, columns: Sequence[str]) -> Iterator[Writer]:
    """Writes tables to a `.parquet`, `.csv` or `.jsonl` file, which is there when the block ends well.

    Args:
        path: the file; its suffix says the format.
        columns: names of the columns, as `Scorer.columns` gives them.

    Yields:
        What takes the tables.

    Raises:
        DataError: another suffix.
    """
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: wanted a file that ends in {', '.join(FORMATS)}, got {path.suffix or 'no ending'}")
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            schema = pa.schema([(name, _kind(name)) for name in columns])
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                yield lambda table: writer.write_table(
                    pa.Table.from_pandas(table[list(columns)], schema=schema, preserve_index=False)
                )
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                yield partial(_write_csv if path.suffix == ".csv" else _write_lines, file)


def _write_csv(file: IO[str], table: pd.DataFrame) -> None:
    write_csv(table, file, header=file.tell() == 0, float_format="%.17g")


def _write_lines(file: IO[str], table: pd.DataFrame) -> None:
    plain = table.astype(object).where(table.notna(), None)
    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in plain.to_dict("records"))


def _kind(name: str) -> pa.DataType:
    if name == "prediction":
        return pa.int64()
    return pa.float64() if name.startswith(("probability_", "score_", "p_value_")) else pa.string()
