"""Score tables as `gradscore evaluate` leaves them, of scores made up by a test."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from gradscore.evaluation.score_table import LEADING, score_columns, writing_scores


def write_scores(folder: Path, table: pd.DataFrame, *, of: Mapping[str, str] | None = None) -> None:
    """Writes `scores.parquet` to a folder; `of` says what the scores are made of, if anybody asks."""
    with writing_scores(folder, score_columns(table), of=of or {}) as write:
        write(table.astype(dict.fromkeys(LEADING[:6], "str")))
