"""The scores of every reported sample, in one table: what reports and comparisons are made of, without a refit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import StoreError
from ..system import BoolArray, replacing

NAME = "scores.parquet"

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


def score_columns(table: pd.DataFrame) -> list[str]:
    """The names of the scores, in order: those after `LEADING`."""
    return [name for name in table.columns if name not in LEADING]


def scores_of(block: pd.DataFrame) -> list[str]:
    """The scores that every sample of a data set has; a score that does not apply to it is missing throughout."""
    return [name for name in score_columns(block) if bool(block[name].notna().all())]


def write_scores(folder: Path, table: pd.DataFrame) -> Path:
    """Writes `scores.parquet` to a folder and returns its path."""
    path = folder / NAME
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), temporary, compression="zstd")
    return path


def read_scores(folder: Path) -> pd.DataFrame:
    """Reads the `scores.parquet` of an evaluation folder.

    Returns:
        One row for each reported sample of each data set: `LEADING`, then one float64 column per score, higher = more
        likely wrong or OOD.

    Raises:
        StoreError: it is missing or damaged.
    """
    path = folder / NAME
    try:
        table: pd.DataFrame = pq.read_table(path).to_pandas(ignore_metadata=True)
    except FileNotFoundError:
        raise StoreError(
            f"{path}: there are no scores; run `gradscore evaluate {folder.parent}` to write them"
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({error}); run `gradscore evaluate {folder.parent}` again") from None
    missing = [name for name in LEADING if name not in table.columns]
    if missing or not score_columns(table):
        raise StoreError(f"{path}: no column {', '.join(missing) or 'of scores'}; run `gradscore evaluate` again")
    return table


def positive_of(block: pd.DataFrame) -> BoolArray:
    """Which samples of a data set are wrong or OOD, as (N,) bool."""
    return block["positive"].to_numpy(dtype=bool)
