"""Many samples through a scorer, in order and in constant memory, and the results into a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from ..data import RawImage, UserImages, form, stacked
from ..errors import DataError, ModelError
from ..objects import called
from ..printable import storable
from ..system import csv_quoting, replacing, without_formulas
from .scorer import Scorer, with_errors

FORMATS = (".parquet", ".csv", ".jsonl")

NOTE = b"gradscore.score"
"""What the note of a table of results is called in its Parquet file."""


class Writer(Protocol):
    """Takes tables one after the other."""

    def __call__(self, table: pd.DataFrame) -> None:
        """Appends the rows of a table."""


def score_stream(
    scorer: Scorer, images: Iterable[RawImage], *, batch_size: int = 64, explain: int = 0, watch: bool = False
) -> Iterator[pd.DataFrame]:
    """Scores images batch by batch.

    An image that cannot be decoded, has another size than the model takes, or whose values are not finite gives a row
    with an error; the others of its batch are scored.

    Args:
        scorer: decides.
        images: in order.
        batch_size: images in a batch.
        explain: how many drivers of each score to name.
        watch: add what `gradscore.Monitor` watches.

    Yields:
        Tables as `Scorer` gives them, a row for each image, in order.

    Raises:
        ModelError: the model fails on images of the size it was run on.
    """
    source = iter(images)
    while chunk := list(islice(source, batch_size)):
        yield _scored(scorer, chunk, explain=explain, watch=watch)


def score_file(
    scorer: Scorer, images: UserImages, *, file: Path | None, batch_size: int = 64, explain: int = 0
) -> Iterator[pd.DataFrame]:
    """Scores what a user named, as `score_stream` does, and says in a column `file` where each sample comes from.

    Args:
        scorer: decides.
        images: of one file, or image files.
        file: the file; None of image files, which are files of their own.
        batch_size: images in a batch.
        explain: how many drivers of each score to name.
    """
    for table in score_stream(scorer, images, batch_size=batch_size, explain=explain):
        yield table.assign(file=table["sample_id"] if file is None else storable(called(str(file))))


def result_columns(scorer: Scorer, *, explain: int = 0) -> list[str]:
    """The names of the columns of `score_file`, in order."""
    return [*scorer.columns(explain=explain), "file"]


@contextmanager
def table_writer(path: Path, columns: Sequence[str], *, note: str | None = None) -> Iterator[Writer]:
    """Writes tables to a `.parquet`, `.csv` or `.jsonl` file, which is there when the block ends well.

    Args:
        path: the file; its suffix says the format.
        columns: names of the columns, as `Scorer.columns` or `result_columns` gives them.
        note: what a Parquet file says of itself.

    Yields:
        What takes the tables.

    Raises:
        DataError: another suffix.
    """
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: wanted a file that ends in {', '.join(FORMATS)}, got {path.suffix or 'no ending'}")
    with replacing(path) as temporary:
        opened = (
            _parquet_writer(temporary, columns, note)
            if path.suffix == ".parquet"
            else _text_writer(temporary, path.suffix)
        )
        with opened as write:
            yield write


def _scored(scorer: Scorer, chunk: Sequence[RawImage], *, explain: int, watch: bool) -> pd.DataFrame:
    errors = {place: raw.error for place, raw in enumerate(chunk) if raw.pixels is None}
    groups: dict[tuple[object, ...], dict[int, Tensor | Mapping[str, Tensor]]] = {}
    for place, raw in enumerate(chunk):
        if raw.pixels is not None:
            try:
                image = scorer.model_input(raw.pixels)
                groups.setdefault(form(image), {})[place] = image
            except (DataError, RuntimeError, ValueError) as error:
                errors[place] = f"{raw.sample_id} cannot be preprocessed: {error}"
    tables = [scorer.nothing(explain=explain, watch=watch)]
    places: list[int] = []
    for shape, members in groups.items():
        names = [chunk[place].sample_id for place in members]
        try:
            tables.append(scorer(stacked(list(members.values())), sample_ids=names, explain=explain, watch=watch))
        except ModelError as error:
            if shape == scorer.input_shape:
                raise
            size = f"{shape} after preprocessing, the model was run on {scorer.input_shape}"
            errors |= {place: f"{chunk[place].sample_id} has size {size}: {error}" for place in members}
            continue
        places += members
    table = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    lost = sorted(errors)
    if lost:
        table = with_errors(table, [chunk[place].sample_id for place in lost], [errors[place] for place in lost])
    rows = [*places, *lost]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return table.iloc[order].reset_index(drop=True)


@contextmanager
def _parquet_writer(path: Path, columns: Sequence[str], note: str | None) -> Iterator[Writer]:
    schema = pa.schema([(name, _kind(name)) for name in columns], None if note is None else {NOTE: note.encode()})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:

        def write(table: pd.DataFrame) -> None:
            writer.write_table(pa.Table.from_pandas(table[list(columns)], schema=schema, preserve_index=False))

        yield write


def _text_writer(path: Path, suffix: str) -> AbstractContextManager[Writer]:
    return _csv_writer(path) if suffix == ".csv" else _jsonl_writer(path)


@contextmanager
def _csv_writer(path: Path) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8", newline="") as file:

        def write(table: pd.DataFrame) -> None:
            quoting = csv_quoting(table)
            without_formulas(table).to_csv(
                file, index=False, header=file.tell() == 0, float_format="%.17g", quoting=quoting
            )

        yield write


@contextmanager
def _jsonl_writer(path: Path) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8") as file:

        def write(table: pd.DataFrame) -> None:
            _write_lines(table, file)

        yield write


def _write_lines(table: pd.DataFrame, file: IO[str]) -> None:
    plain = table.astype(object).where(table.notna(), None)
    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in plain.to_dict("records"))


def _kind(name: str) -> pa.DataType:
    if name == "prediction":
        return pa.int64()
    return pa.float64() if is_number(name) else pa.string()


def is_number(name: str) -> bool:
    """Whether a column of results holds figures."""
    return name.startswith(("probability_", "score_", "p_value_"))
