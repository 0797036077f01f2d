"""Nearest samples by projected gradients, as a table and a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ..system import replacing
from .table import Projections, Similarity


def nearest_table(
    bank: Projections, queries: Projections, *, count: int = 10, similarity: Similarity = "cosine"
) -> pd.DataFrame:
    """The samples of a bank whose gradients are most like those of others.

    Args:
        bank: where they are looked for.
        queries: what they are like.
        count: how many for each, or all there are.
        similarity: as for `Projections.nearest`.

    Returns:
        `count` rows for each of the queries, in order: `sample_id`, `label` (-1 for none), `rank` (from 1),
        `nearest_sample_id`, `nearest_label`, `similarity` (higher is nearer).

    Raises:
        EvaluationError: as `Projections.nearest`.
    """
    found = bank.nearest(queries, count=count, similarity=similarity)
    asked, ranks = np.divmod(np.arange(found.places.size), found.places.shape[1])
    places = found.places.reshape(-1)
    return pd.DataFrame(
        {
            "sample_id": np.asarray(queries.sample_ids, dtype=object)[asked],
            "label": queries.labels[asked],
            "rank": ranks + 1,
            "nearest_sample_id": np.asarray(bank.sample_ids, dtype=object)[places],
            "nearest_label": bank.labels[places],
            "similarity": found.similarities.reshape(-1),
        }
    )


def write_nearest(table: pd.DataFrame, folder: str | Path) -> Path:
    """Writes what `nearest_table` found into a folder, as `nearest.parquet`.

    Raises:
        OutputError: it cannot be written.
    """
    path = Path(folder) / "nearest.parquet"
    with replacing(path) as temporary:
        table.to_parquet(temporary, index=False)
    return path
