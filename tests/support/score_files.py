"""Score tables as `gradscore evaluate` leaves them, of scores made up by a test."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from gradscore.evaluation.score_tables import LEADING, SET_KEY, ScoredSet, score_columns, scores_of, writing_scores


def write_scores(folder: Path, table: pd.DataFrame, *, of: Mapping[str, str] | None = None) -> None:
    """Writes `scores.parquet` to a folder; `of` says what the scores are made of, if anybody asks."""
    with writing_scores(folder, score_columns(table), of=of or {}) as write:
        write(table.astype(dict.fromkeys(LEADING[:6], "str")))


def scored_sets_of(table: pd.DataFrame) -> Iterator[ScoredSet]:
    """The data sets of a table as `read_scores` gives it."""
    for (task, protocol, dataset), rows in table.groupby(SET_KEY, sort=False):
        yield ScoredSet(
            task=str(task),
            protocol=str(protocol),
            dataset=str(dataset),
            positive=rows["positive"].to_numpy(dtype=bool),
            names=scores_of(rows),
            score=lambda name, rows=rows: rows[name].to_numpy(dtype=np.float64),  # type: ignore[misc]
            content=lambda rows=rows: rows["content_hash"],  # type: ignore[misc]
        )
