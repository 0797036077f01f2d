"""Intervals by resampling, for figures without a formula for their uncertainty.

A resample draws samples with replacement: of both classes together where their shares are part of what is uncertain
(wrong and right predictions), of each apart where somebody chose how many there are (OOD samples). It is stored as how
many positives and negatives were drawn at each distinct score, and the figures of many resamples are computed from
these at once. Of more than `MOST_GROUPS` distinct scores neighbours are drawn together, so that memory and time do not
grow with the number of samples; what that moves a figure by, the interval is moved back by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from ..system import BoolArray, FloatArray
from .metrics import checked
from .selective import augrc_of_counts, aurc_of_counts, eaurc_of_counts

Bounds = tuple[float, float]

RESAMPLES = 500

MOST_GROUPS = 1000

ENOUGH = 20
"""With fewer samples of a class, percentile intervals cover too rarely: see `docs/coverage-of-intervals.md`."""

ENOUGH_FOR_QUANTILES = 40
"""The same for figures at a rate of 95 %: fewer have at most one sample beyond it."""

_CELLS_AT_ONCE = 1 << 19


class Counts:
    """Positives and negatives drawn at each distinct score, lowest first, in R resamples.

    Args:
        positives: (R, G).
        negatives: (R, G).

    Attributes:
        positives_to: (R, G) positives with this score or a lower one; likewise `negatives_to`, and `to` for both.
        positives_from: (R, G) positives with this score or a higher one.
        here: (R, G) samples with this score.
        size: number of samples in a resample.
    """

    def __init__(self, positives: FloatArray, negatives: FloatArray) -> None:
        self.positives, self.negatives = positives, negatives
        self.here = positives + negatives
        self.positives_to = np.cumsum(positives, axis=1)
        self.negatives_to = np.cumsum(negatives, axis=1)
        self.to = self.positives_to + self.negatives_to
        self.positives_from = self.positives_to[:, -1:] - self.positives_to + positives
        self.size = float(self.to[0, -1])


CountedMetric = Callable[[Counts], FloatArray]


def ranking_bounds(
    scores: ArrayLike,
    positive: ArrayLike,
    *,
    metrics: Mapping[str, CountedMetric],
    seed: int,
    fixed_sizes: bool,
    resamples: int = RESAMPLES,
) -> dict[str, Bounds]:
    """Percentile intervals (95 %) of figures that depend on the order of a score alone.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.
        metrics: name -> function, from `RANKING` or `SELECTIVE`.
        seed: of the draws.
        fixed_sizes: every resample has as many positives as there are, rather than as many as happen to be drawn.
        resamples: how many.

    Returns:
        Name -> (low, high), without the metrics that too few samples of a class tell too little about (`ENOUGH`).

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    fewest = min(int(truth.sum()), int((~truth).sum()))
    wanted = {name: metric for name, metric in metrics.items() if fewest >= _enough(name)}
    if not wanted:
        return {}
    exact = _by_score(values, truth)
    grouped = _merged(*exact)
    generator = np.random.default_rng(seed)
    results: dict[str, list[FloatArray]] = {name: [] for name in wanted}
    at_once = max(1, _CELLS_AT_ONCE // len(grouped[0]))
    for first in range(0, resamples, at_once):
        drawn = _drawn(*grouped, generator, min(at_once, resamples - first), fixed_sizes=fixed_sizes)
        for name, metric in wanted.items():
            results[name].append(metric(drawn))
    moved = {name: _value(metric, *exact) - _value(metric, *grouped) for name, metric in wanted.items()}
    # All of these figures are shares or areas, so that none lies outside of 0 and 1.
    return {name: _bounds(np.clip(np.concatenate(parts) + moved[name], 0, 1)) for name, parts in results.items()}


def _enough(metric: str) -> int:
    return ENOUGH_FOR_QUANTILES if metric.startswith("fpr95") else ENOUGH


def _by_score(values: FloatArray, truth: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Positives (G,) and negatives (G,) at each distinct score, lowest first."""
    order = np.argsort(values, kind="stable")
    starts = np.r_[0, 1 + np.flatnonzero(np.diff(values[order]))]
    sizes = np.diff(np.r_[starts, len(values)])
    positives = np.add.reduceat(truth[order].astype(np.float64), starts)
    return positives, sizes - positives


def _merged(positives: FloatArray, negatives: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The same with neighbours put together until there are few enough, each with about as many samples."""
    if len(positives) <= MOST_GROUPS:
        return positives, negatives
    to = np.cumsum(positives + negatives)
    group = np.minimum((to - 1) * MOST_GROUPS // to[-1], MOST_GROUPS - 1).astype(np.int64)
    starts = np.r_[0, 1 + np.flatnonzero(np.diff(group))]
    return np.add.reduceat(positives, starts), np.add.reduceat(negatives, starts)


def _drawn(
    positives: FloatArray, negatives: FloatArray, generator: np.random.Generator, count: int, *, fixed_sizes: bool
) -> Counts:
    cells = np.concatenate([positives, negatives])
    if fixed_sizes:
        halves = [
            generator.multinomial(int(each.sum()), each / each.sum(), size=count) for each in (positives, negatives)
        ]
    else:
        halves = np.split(generator.multinomial(int(cells.sum()), cells / cells.sum(), size=count), 2, axis=1)
    return Counts(*(half.astype(np.float64) for half in halves))


def _value(metric: CountedMetric, positives: FloatArray, negatives: FloatArray) -> float:
    return float(metric(Counts(positives[None, :], negatives[None, :]))[0])


def _bounds(values: FloatArray) -> Bounds:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _aupr_in(counts: Counts) -> FloatArray:
    return _average_precision(counts.negatives, counts.negatives_to, counts.to)


def _aupr_out(counts: Counts) -> FloatArray:
    return _average_precision(counts.positives, counts.positives_from, counts.size - counts.to + counts.here)


def _fpr95_id_positive(counts: Counts) -> FloatArray:
    enough = counts.negatives_to >= -(-95 * counts.negatives_to[:, -1:] // 100)
    place = np.argmax(enough, axis=1)
    return np.asarray(counts.positives_to[np.arange(len(place)), place] / counts.positives_to[:, -1])


def _fpr95_ood_positive(counts: Counts) -> FloatArray:
    enough = counts.positives_from >= -(-95 * counts.positives_to[:, -1:] // 100)
    place = enough.sum(axis=1) - 1
    others = counts.negatives_to[:, -1]
    rows = np.arange(len(place))
    return np.asarray((others - counts.negatives_to[rows, place] + counts.negatives[rows, place]) / others)


def _average_precision(hits: FloatArray, found: FloatArray, retrieved: FloatArray) -> FloatArray:
    """Average precision (R,): hits at each score, hits found and samples retrieved up to and including it."""
    precision = np.divide(found, retrieved, out=np.zeros_like(found), where=retrieved > 0)
    return np.asarray((hits * precision).sum(axis=1) / hits.sum(axis=1))


def _accepting(area: Callable[[FloatArray, FloatArray], FloatArray]) -> CountedMetric:
    return lambda counts: area(counts.positives, counts.here)


RANKING: Mapping[str, CountedMetric] = MappingProxyType(
    {
        "aupr_in": _aupr_in,
        "aupr_out": _aupr_out,
        "fpr95_ood_positive": _fpr95_ood_positive,
        "fpr95_id_positive": _fpr95_id_positive,
    }
)
"""Name -> function from counts of R resamples to values (R,)."""

SELECTIVE: Mapping[str, CountedMetric] = MappingProxyType(
    {
        "aurc": _accepting(aurc_of_counts),
        "eaurc": _accepting(eaurc_of_counts),
        "augrc": _accepting(augrc_of_counts),
    }
)
"""As `RANKING`, for misclassification."""
