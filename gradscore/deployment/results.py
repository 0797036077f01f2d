"""Results of scoring files, and a file of results: one table of all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..data import UserFile, open_user_file
from ..errors import DataError
from ..notices import called, storable
from ..system import followed, replacing, write_csv
from .scorer import Scorer

FORMATS = (".parquet", ".csv")

Writer = Callable[[pd.DataFrame], None]
"""Appends the rows of a table."""


def score_files(
    scorer: Scorer,
    files: Iterable[UserFile],
    *,
    options: Mapping[str, str | Path | None],
    batch_size: int,
    explain: int,
) -> Iterator[tuple[UserFile, int, pd.DataFrame]]:
    """Scores files one after the other.

    Args:
        scorer: decides.
        files: the files of samples.
        options: as `open_user_file` takes them.
        batch_size: as `Scorer.stream` takes it.
        explain: the same.

    Yields:
        A file, how many samples it has, and the results of some of them, with a column `file` that says where each
        comes from, as errors do.

    Raises:
        DataError: a file cannot be read at all, or holds other samples than the model takes.
    """
    for file in files:
        if scorer.form.takes_texts and file.kind is None:
            known = scorer.bundle.input_columns
            column = (
                "a column of texts" if known is None else f"a column {known[0]!r}, or another one named by --column"
            )
            raise DataError(
                f"{file.name}: this bundle takes texts; give them in a .csv, .tsv or .parquet with {column}"
            )
        try:
            samples = open_user_file(file, options=options, columns=scorer.bundle.input_columns)
        except DataError as error:
            raise DataError(f"{error}{scorer.form.files}") from None
        source = None if file.file is None else storable(called(str(file.file)))  # images are files of their own
        try:
            for table in scorer.stream(samples, batch_size=batch_size, explain=explain):
                yield file, len(samples), table.assign(file=table["sample_id"] if source is None else source)
        except DataError as error:
            raise (error if file.name in str(error) else DataError(f"{file.name}: {error}")) from None


@contextmanager
def table_writer(path: Path, columns: Sequence[str]) -> Iterator[Writer]:
    """Writes tables to a `.parquet` or `.csv` file, which is there when the block ends well.

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
    with replacing(followed(path)) as temporary:
        if path.suffix == ".parquet":
            schema = pa.schema([(name, _kind(name)) for name in columns])
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                yield lambda table: writer.write_table(
                    pa.Table.from_pandas(table[list(columns)], schema=schema, preserve_index=False)
                )
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                yield lambda table: write_csv(table, file, header=file.tell() == 0, float_format="%.17g")


def _kind(name: str) -> pa.DataType:
    if name == "prediction":
        return pa.int64()
    return pa.float64() if name.startswith(("probability_", "score_", "p_value_")) else pa.string()
