"""Score tables as `gradscore evaluate` leaves them, of scores made up by a test."""

from pathlib import Path

import pandas as pd

from gradscore.evaluation.score_table import LEADING, score_columns, writing_scores


def write_scores(folder: Path, table: pd.DataFrame) -> None:
    """Writes `scores.parquet` to a folder."""
    with writing_scores(folder, score_columns(table)) as write:
        write(table.astype(dict.fromkeys(LEADING[:6], "str")))
