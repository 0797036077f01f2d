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
        count: how many for each; fewer where there are fewer, see `nearest_notices`.
        similarity: as for `Projections.nearest`.

    Returns:
        As many rows for each of the queries, in order: `sample_id`, `label` (-1 for none), `rank` (from 1),
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


def nearest_notices(bank: Projections, queries: Projections, *, count: int, bank_name: str) -> list[str]:
    """What a reader of `nearest_table` should know.

    Args:
        bank: as for `nearest_table`.
        queries: as for `nearest_table`.
        count: how many were asked for.
        bank_name: what messages call the bank.
    """
    own = bank.own_places(queries)[0]
    shared, there = len(np.unique(own)), len(bank) - int(np.bincount(own).max(initial=0))
    found = []
    if shared:
        found.append(
            f"{shared} of {len(queries)} samples are in {bank_name} themselves, by name and content; none is its own "
            "nearest"
        )
    if there < count:
        beside = ", beside the sample itself" if shared else ""
        found.append(f"{count} nearest samples were asked for, and {bank_name} has {there}{beside}")
    return found


def write_nearest(table: pd.DataFrame, folder: str | Path) -> Path:
    """Writes what `nearest_table` found into a folder, as `nearest.parquet`.

    Raises:
        OutputError: it cannot be written.
    """
    path = Path(folder) / "nearest.parquet"
    with replacing(path) as temporary:
        table.to_parquet(temporary, index=False)
    return path
