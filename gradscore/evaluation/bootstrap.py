"""Intervals by resampling, for figures without a formula for their uncertainty.

Positives and negatives are drawn apart, with replacement, so that the prevalence stays (stratified). A resample is
stored as how often each sample was drawn; all figures of all scores of a data set see the same resamples, and are
computed from counts at distinct scores, for many resamples at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .calibration import BINS, bin_of
from .metrics import checked
from .selective import augrc_of_counts, aurc_of_counts, eaurc_of_counts

FloatArray = NDArray[np.float64]
Bounds = tuple[float, float]
CountedMetric = Callable[[FloatArray, FloatArray], FloatArray]

RESAMPLES = 500
_AT_ONCE = 50


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
        for name, metric in metrics.items():
            results[name].append(metric(positives, drawn - positives))
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


def _average_precision(hits: FloatArray, false: FloatArray) -> FloatArray:
    """Average precision (R,) from counts (R, G), best retrieved first."""
    found = np.cumsum(hits, axis=1)
    retrieved = found + np.cumsum(false, axis=1)
    precision = np.divide(found, retrieved, out=np.zeros_like(found), where=retrieved > 0)
    return np.asarray((hits * precision).sum(axis=1) / found[:, -1])


def _false_positive_rate_at_95(hits: FloatArray, false: FloatArray) -> FloatArray:
    """Share (R,) of the others flagged when at least 95 % of the hits are, from counts (R, G), most certain hit first.

    Both totals are those of the data: a resample has as many of each.
    """
    found, flagged = np.cumsum(hits, axis=1), np.cumsum(false, axis=1)
    needed = -(-95 * found[:, -1:] // 100)
    place = np.argmax(found >= needed, axis=1)
    return np.asarray(flagged[np.arange(len(flagged)), place] / flagged[:, -1])


def _accepting(area: CountedMetric) -> CountedMetric:
    return lambda positives, negatives: area(positives, positives + negatives)


RANKING: Mapping[str, CountedMetric] = MappingProxyType(
    {
        "aupr_in": lambda positives, negatives: _average_precision(negatives, positives),
        "aupr_out": lambda positives, negatives: _average_precision(positives[:, ::-1], negatives[:, ::-1]),
        "fpr95_ood_positive": lambda positives, negatives: _false_positive_rate_at_95(
            positives[:, ::-1], negatives[:, ::-1]
        ),
        "fpr95_id_positive": lambda positives, negatives: _false_positive_rate_at_95(negatives, positives),
    }
)
"""Name -> function from counts of positives and negatives (R, G) at distinct scores, lowest first, to values (R,)."""

SELECTIVE: Mapping[str, CountedMetric] = MappingProxyType(
    {
        "aurc": _accepting(aurc_of_counts),
        "eaurc": _accepting(eaurc_of_counts),
        "augrc": _accepting(augrc_of_counts),
    }
)
"""As `RANKING`, for misclassification."""
