"""Intervals by resampling, for figures without a formula for their uncertainty.

Positives and negatives are drawn apart, with replacement, so that the prevalence stays (stratified). A resample is
stored as how often each sample was drawn; all figures of all scores of a data set see the same resamples, and are
computed from counts at distinct scores, for many resamples at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from ..system import FloatArray
from .calibration import BINS, bin_of
from .metrics import checked
from .selective import augrc_of_counts, aurc_of_counts, eaurc_of_counts

Bounds = tuple[float, float]

RESAMPLES = 500
"""Resamples of an interval: from seed to seed its bounds move by 5 % of its width at most, on the 523 digits.

With 200 it was 9 %, with 2,000, which take four times as long, 3 %.
"""

_AT_ONCE = 50
"""Resamples counted together: 4 MB for 10,000 samples. All at once took three times as long."""


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


def draw_counts(positive: ArrayLike, *, seed: int, resamples: int = RESAMPLES) -> FloatArray:
    """How often each sample is drawn.

    Args:
        positive: (N,) bool.
        seed: of the draws.
        resamples: R, how many.

    Returns:
        (R, N) float64; each row sums to the number of positives over the positives, and likewise for negatives.
    """
    truth = np.asarray(positive, dtype=bool)
    generator = np.random.default_rng(seed)
    counts = np.zeros((resamples, len(truth)))
    rows = np.arange(resamples)[:, None]
    for places in (np.flatnonzero(truth), np.flatnonzero(~truth)):
        size = len(places)
        if size:
            drawn = rows * size + generator.integers(0, size, (resamples, size))
            counts[:, places] = np.bincount(drawn.ravel(), minlength=resamples * size).reshape(resamples, size)
    return counts


def ranking_bounds(
    scores: ArrayLike, positive: ArrayLike, counts: FloatArray, *, metrics: Mapping[str, CountedMetric]
) -> dict[str, Bounds]:
    """Percentile intervals (95 %) of figures that depend on the order of a score alone.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool, both classes present.
        counts: (R, N) from `draw_counts`.
        metrics: name -> function, from `RANKING`.

    Returns:
        Name -> (low, high).

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    order = np.argsort(values, kind="stable")
    starts = np.r_[0, 1 + np.flatnonzero(np.diff(values[order]))]
    results: dict[str, list[FloatArray]] = {name: [] for name in metrics}
    for first in range(0, len(counts), _AT_ONCE):
        drawn = counts[first : first + _AT_ONCE, order]
        positives = drawn * truth[order]
        if len(starts) < len(values):
            drawn, positives = (np.add.reduceat(each, starts, axis=1) for each in (drawn, positives))
        counted = Counts(positives, drawn - positives)
        for name, metric in metrics.items():
            results[name].append(metric(counted))
    return {name: _bounds(np.concatenate(parts)) for name, parts in results.items()}


def calibration_bounds(probabilities: ArrayLike, positive: ArrayLike, counts: FloatArray) -> dict[str, Bounds]:
    """Percentile intervals (95 %) of `brier` and `ece`; arguments as for `ranking_bounds`, probabilities in [0, 1]."""
    p, truth = checked(probabilities, positive)
    squared = (counts @ ((p - truth) ** 2)) / len(p)
    gaps = np.zeros((len(p), BINS))
    gaps[np.arange(len(p)), bin_of(p)] = p - truth
    ece = np.abs(counts @ gaps).sum(axis=1) / len(p)
    return {"brier": _bounds(squared), "ece": _bounds(ece)}


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
