"""The scores of every reported sample, in one table: what reports and comparisons are made of, without a refit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ..data import CALIBRATION
from ..errors import StoreError
from ..store import RunFolder
from ..system import BoolArray, FloatArray, IntArray, file_sha256, replacing, sha256, some

NAME = "scores.parquet"

MADE_OF = b"gradscore.made_of"
"""The entry of the file's metadata that says which features and meta models the scores were made of."""

_META = "meta models"

LEADING = (
    "task",
    "protocol",
    "dataset",
    "split",
    "sample_id",
    "content_hash",
    "label",
    "prediction",
    "positive",
    "probability",
)
"""The columns before the scores. `positive` marks wrong predictions (tasks `misclassification` and `shifted`) or OOD
samples (`ood`); `probability` is that of the meta model: of a wrong prediction at the prevalence it was fitted on, of
an OOD sample as if one in two were; missing for models without log-odds."""

BLOCK = ["task", "protocol", "dataset"]
"""The columns that tell one reported data set from another."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The scores of one reported data set of N samples, read one at a time.

    Attributes:
        task: `misclassification`, `ood` or `shifted`.
        protocol: what its meta model was fitted on.
        dataset: the data set.
        positive: (N,) which samples are wrong or OOD.
        names: the scores that every sample has; one that does not apply is missing throughout.
        score: from the name of a score, or `probability`, to its values (N,).
        content: (N,) the content hashes, read when they are asked for.
    """

    task: str
    protocol: str
    dataset: str
    positive: BoolArray
    names: list[str]
    score: Callable[[str], FloatArray]
    content: Callable[[], pd.Series[str]]


def blocks_of(table: pd.DataFrame) -> Iterator[Block]:
    """The data sets of a table as `read_scores` gives it."""
    for (task, protocol, dataset), rows in table.groupby(BLOCK, sort=False):
        yield Block(
            task=str(task),
            protocol=str(protocol),
            dataset=str(dataset),
            positive=positive_of(rows),
            names=scores_of(rows),
            score=lambda name, rows=rows: rows[name].to_numpy(dtype=np.float64),  # type: ignore[misc]
            content=lambda rows=rows: rows["content_hash"],  # type: ignore[misc]
        )


def score_columns(table: pd.DataFrame) -> list[str]:
    """The names of the scores, in order: those after `LEADING`."""
    return [name for name in table.columns if name not in LEADING]


def scores_of(block: pd.DataFrame) -> list[str]:
    """The scores that every sample of a data set has; a score that does not apply to it is missing throughout."""
    return [name for name in score_columns(block) if bool(block[name].notna().all())]


def made_of(run: RunFolder) -> dict[str, str]:
    """The hashes of all that the scores of a run are made of: its meta models, and the features of each split.

    Raises:
        StoreError: the run is not finished, or a file is missing.
    """
    tables = {info.name: run.table_sha256(info.name) for info in run.splits() if info.name != CALIBRATION}
    models = sorted(path for path in run.meta_path.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(run.path).as_posix()} {file_sha256(path)}\n" for path in models]
    return {_META: sha256("".join(lines).encode()), **tables}


@contextmanager
def writing_scores(
    folder: Path, columns: Sequence[str], *, of: Mapping[str, str]
) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Writes `scores.parquet` to a folder, part by part and in one step: all of it, or nothing.

    Args:
        folder: of the evaluation.
        columns: of the scores, after `LEADING`; a score that a part lacks is missing there.
        of: what they are made of, see `made_of`.

    Yields:
        What is given parts of the table, each of one data set, those of a data set one after the other.
    """
    types = {"label": pa.int64(), "prediction": pa.int64(), "positive": pa.bool_(), "probability": pa.float64()}
    text = {name: pa.large_string() for name in LEADING}
    schema = pa.schema({**text, **types, **dict.fromkeys(columns, pa.float64())})
    schema = schema.with_metadata({MADE_OF: json.dumps(dict(of))})
    with (
        replacing(folder / NAME) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):

        def write(part: pd.DataFrame) -> None:
            writer.write_table(pa.Table.from_pandas(part.reindex(columns=schema.names), schema, preserve_index=False))

        yield write


def read_scores(run: RunFolder) -> pd.DataFrame:
    """Reads the scores of the last evaluation of a run, if they are of the features and meta models that it has now.

    Returns:
        One row for each reported sample of each data set: `LEADING`, then one float64 column per score, higher = more
        likely wrong or OOD.

    Raises:
        StoreError: they are missing, damaged, or older than the features or meta models.
    """
    file = ScoreFile(run.evaluation_path)
    _check_current(run, file.made_of())
    return file.table()


def _check_current(run: RunFolder, known: Mapping[str, str]) -> None:
    """Makes sure that scores made of this are what an evaluation would be made of now.

    Raises:
        StoreError: something else is there now.
    """
    now = made_of(run)
    others = [name for name in dict.fromkeys([*known, *now]) if known.get(name) != now.get(name)]
    if not others:
        return
    tables = [name for name in others if name != _META]
    found = [
        *(["the meta models"] if _META in others else []),
        *([f"the features of {some(tables)}"] if tables else []),
    ]
    first = f"gradscore fit-meta {quote(str(run.path))}` and `" if tables else ""
    raise StoreError(
        f"{run.evaluation_path}: not of what the run holds now: {' and '.join(found)} changed since; "
        f"run `{first}gradscore evaluate {quote(str(run.path))}`"
    )


@dataclass(frozen=True)
class ScoreFile:
    """The `scores.parquet` of an evaluation folder, of which one data set is read at a time.

    Attributes:
        folder: of the evaluation.
    """

    folder: Path

    def made_of(self) -> dict[str, str]:
        """What the scores were made of, see `made_of`; nothing where the file does not say.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with _reading(self.folder) as path:
            found = json.loads((pq.read_schema(path).metadata or {}).get(MADE_OF, b"{}"))
            if not isinstance(found, dict):
                raise ValueError(f"{MADE_OF.decode()} is no JSON object")
        return found

    def table(self) -> pd.DataFrame:
        """All of it; see `read_scores`.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with _reading(self.folder) as path:
            table: pd.DataFrame = pq.read_table(path).to_pandas(ignore_metadata=True)
        missing = [name for name in LEADING if name not in table.columns]
        if missing or not score_columns(table):
            raise StoreError(f"{path}: no column {', '.join(missing) or 'of scores'}; run `gradscore evaluate` again")
        return table

    def columns(self, task: str, protocol: str, dataset: str, names: Sequence[str]) -> pd.DataFrame:
        """Some columns of one reported data set; those that the file lacks are left out.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with _reading(self.folder) as path:
            there = [name for name in names if name in pq.read_schema(path).names]
            found = ds.dataset(path).to_table(columns=there, filter=_is_of(task, protocol, dataset))
        frame: pd.DataFrame = found.to_pandas(ignore_metadata=True)
        return frame

    def rows(self, task: str, protocol: str, dataset: str, places: IntArray) -> pd.DataFrame:
        """Some rows of one reported data set, whole and in the order of their places; see `columns`."""
        order = np.argsort(places, kind="stable")
        with _reading(self.folder) as path:
            scanner = ds.dataset(path).scanner(filter=_is_of(task, protocol, dataset))
            found = scanner.take(pa.array(np.asarray(places)[order]))
        frame: pd.DataFrame = found.to_pandas(ignore_metadata=True)
        return frame.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


@contextmanager
def _reading(folder: Path) -> Iterator[Path]:
    path = folder / NAME
    try:
        yield path
    except FileNotFoundError:
        raise StoreError(
            f"{path}: there are no scores; run `gradscore evaluate {folder.parent}` to write them"
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({error}); run `gradscore evaluate {folder.parent}` again") from None


def _is_of(task: str, protocol: str, dataset: str) -> pc.Expression:
    return (pc.field("task") == task) & (pc.field("protocol") == protocol) & (pc.field("dataset") == dataset)


def positive_of(block: pd.DataFrame) -> BoolArray:
    """Which samples of a data set are wrong or OOD, as (N,) bool."""
    return block["positive"].to_numpy(dtype=bool)
