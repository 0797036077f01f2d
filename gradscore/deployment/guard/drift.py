"""Did the features of the same samples move, and if so, which layer and statistic?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...columns import COSINE, FORWARD, RATE, feature_columns, logit_columns
from ...statistics import STATISTICS
from ...system import FloatArray
from .expected import HASH_DIGITS, Probe


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far features moved.

    Attributes:
        samples: probe samples found in the run.
        schema: what differs in the columns; empty if nothing.
        largest: largest change relative to the size of the feature.
        column: the column it is in.
        moved: columns that changed by more than the tolerance, the largest change first.
    """

    samples: int
    schema: str
    largest: float
    column: str
    moved: list[str]

    @property
    def place(self) -> str:
        """Layer and statistic of the largest change, in words."""
        loss, _, rest = self.column.partition("/")
        layer, _, statistic = rest.rpartition("/")
        of = "" if loss == FORWARD else f", loss {loss}"
        return f"{statistic} of layer {layer}{of}" if layer else self.column


def feature_drift(probe: Probe, test: pd.DataFrame, *, tolerance: float) -> Drift:
    """Compares the features of the probe with those of a run.

    A change counts relative to the feature, or to the largest of the element-sized statistics (max, min, mean, std) of
    the same gradient: a mean that is next to zero beside a large maximum is rounding. Cosines and rates
    count as they are.

    Args:
        probe: samples and their features.
        test: the feature table of `in_dist.test`.
        tolerance: accepted relative change.

    Returns:
        The drift; nothing moved where no sample of the probe is in the run.
    """
    names = [*logit_columns(test.columns), *feature_columns(test.columns)]
    missing, unexpected = _lacking(probe.columns, names), _lacking(names, probe.columns)
    parts = [f"{what} {', '.join(columns[:3])}" + (f" and {len(columns) - 3} more" if len(columns) > 3 else "")
             for what, columns in (("missing", missing), ("unexpected", unexpected)) if columns]  # fmt: skip
    rows = {name: place for place, name in reversed(list(enumerate(test["content_hash"].str[:HASH_DIGITS])))}
    common = [place for place, name in enumerate(probe.content_hash) if name in rows]
    shared = [name for name in probe.columns if name in set(names)]
    if not common or not shared:
        return Drift(samples=len(common), schema="; ".join(parts), largest=0.0, column="", moved=[])
    before = np.array([probe.columns[name] for name in shared], dtype=np.float64)[:, common]
    places = [rows[probe.content_hash[place]] for place in common]
    now = test[shared].iloc[places].to_numpy(dtype=np.float64).T
    changes = _relative_changes(shared, before, now).max(axis=1)
    order = np.argsort(-changes, kind="stable")
    return Drift(
        samples=len(common),
        schema="; ".join(parts),
        largest=float(changes[order[0]]),
        column=shared[order[0]],
        moved=[shared[place] for place in order if changes[place] > tolerance],
    )


def _relative_changes(names: list[str], before: FloatArray, now: FloatArray) -> FloatArray:
    """Changes (columns, samples) relative to sizes; infinite where only one value is finite."""
    finite = np.isfinite(before) & np.isfinite(now)
    sizes = np.where(finite, np.maximum(np.abs(before), np.abs(now)), 0.0)
    sizes[[name.endswith((f"/{COSINE}", f"/{RATE}")) for name in names]] = 1.0
    groups = np.unique([_group(name) for name in names], return_inverse=True)[1]
    largest = np.stack([sizes[groups == group].max(axis=0) for group in range(groups.max() + 1)])[groups]
    gaps = np.abs(np.where(finite, now - before, 0.0))
    changes = np.divide(gaps, largest, out=np.zeros_like(gaps), where=gaps > 0)
    return np.where(np.isfinite(before) == np.isfinite(now), changes, np.inf)


def _group(name: str) -> str:
    """Columns whose sizes count together: the logits, the element-sized statistics of a gradient, or one column."""
    group, _, statistic = name.rpartition("/")
    of_elements = statistic in STATISTICS and STATISTICS[statistic].of_elements
    return "logits" if not group else group if of_elements else name


def _lacking(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    present = set(found)
    return [name for name in wanted if name not in present]
