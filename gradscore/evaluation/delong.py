"""Uncertainty of an AUROC, and of the difference of two AUROCs on the same samples.

Source: DeLong, DeLong and Clarke-Pearson, 1988; computed from mid-ranks as in Sun and Xu, 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, rankdata

from ..errors import EvaluationError
from ..system import FloatArray
from .metrics import checked


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """AUROC of a first score minus that of a second on the same samples.

    Attributes:
        difference: first minus second.
        low: lower bound of the interval.
        high: upper bound of the interval.
        p_value: two-sided, for a true difference of zero.
    """

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Placements:
    """The parts an AUROC is the mean of, over positives or over negatives.

    Attributes:
        of_positives: (P,) share of negatives below each positive, a tie counting one half.
        of_negatives: (Q,) share of positives above each negative.
    """

    of_positives: FloatArray
    of_negatives: FloatArray


def auroc_interval(scores: ArrayLike, positive: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """AUROC with a DeLong confidence interval, symmetric on the logit scale, so it stays inside (0, 1).

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.
        level: coverage.

    Returns:
        The interval, or None where no variance can be estimated: fewer than two samples of either class, or scores that
        separate the classes without a single exception (the estimate would be an interval of width zero).
    """
    values, truth = checked(scores, positive)
    if not _enough(truth):
        return None
    areas, covariance = _delong(values[None, :], truth)
    return _on_logit_scale(float(areas[0]), float(covariance[0, 0]), level=level)


def paired_delong(
    first: ArrayLike, second: ArrayLike, positive: ArrayLike, *, level: float = 0.95
) -> PairedTest | None:
    """Compare the AUROCs of two scores of the same samples.

    Args:
        first: (N,) higher = more uncertain.
        second: (N,) higher = more uncertain.
        positive: (N,) bool.
        level: coverage of the interval of the difference.

    Returns:
        The test, or None with fewer than two samples of either class. Scores of equal ranking give p = 1.
    """
    one, truth = checked(first, positive)
    other, _ = checked(second, positive)
    if not _enough(truth):
        return None
    areas, covariance = _delong(np.stack([one, other]), truth)
    variance = max(0.0, float(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]))
    return _tested(float(areas[0] - areas[1]), variance, level=level)


def paired_delong_of_truths(
    first: ArrayLike, second: ArrayLike, positive_first: ArrayLike, positive_second: ArrayLike, *, level: float = 0.95
) -> PairedTest | None:
    """Compare the AUROCs of two scores of the same samples where each has its own truth.

    Two classifiers are wrong on different samples. The variance is that of the difference of each sample's influence on
    the two AUROCs; where the truths agree this is `paired_delong` but for terms that vanish with many samples.

    Args:
        first: (N,) higher = more uncertain.
        second: (N,) higher = more uncertain.
        positive_first: (N,) bool, what the first score should find.
        positive_second: (N,) bool, what the second score should find.
        level: coverage of the interval of the difference.

    Returns:
        The test, or None with fewer than two samples of either class in either truth.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    one, other = _influence(first, positive_first), _influence(second, positive_second)
    if one is None or other is None:
        return None
    if one[1].shape != other[1].shape:
        raise EvaluationError(f"paired test: wanted the same samples, got {len(one[1])} and {len(other[1])}")
    variance = float((one[1] - other[1]).var(ddof=1) / len(one[1]))
    return _tested(one[0] - other[0], variance, level=level)


def placements(scores: ArrayLike, positive: ArrayLike) -> Placements | None:
    """Where the samples of a data set stand among those of the other class.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        The placements, or None with fewer than two samples of either class.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    if not _enough(truth):
        return None
    beaten, beating = _placements(values[None, :], truth)
    return Placements(of_positives=beaten[0], of_negatives=beating[0])


def mean_auroc_interval(sets: Sequence[Placements], weights: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Weighted mean of the AUROCs of several data sets that share their negatives, with its interval.

    Positives of different sets are independent; the negatives are the same samples in each, whether scored by one model
    or by one model per set. With the numbers of positives as weights, and one model, this is the AUROC of the pooled
    sets.

    Args:
        sets: K data sets; their negatives are the same samples in the same order.
        weights: (K,), scaled to sum 1.
        level: coverage.

    Returns:
        The interval, or None where no variance can be estimated, as for `auroc_interval`.

    Raises:
        EvaluationError: the sets differ in the number of negatives.
    """
    value, variance = _weighted(sets, weights)
    return _on_logit_scale(value, variance, level=level)


def paired_mean_delong(
    first: Sequence[Placements], second: Sequence[Placements], weights: ArrayLike, *, level: float = 0.95
) -> PairedTest:
    """Compare the weighted mean AUROCs of two scores of the same data sets; see `mean_auroc_interval`."""
    gaps = [
        Placements(of_positives=a.of_positives - b.of_positives, of_negatives=a.of_negatives - b.of_negatives)
        for a, b in zip(first, second, strict=True)
    ]
    difference, variance = _weighted(gaps, weights)
    return _tested(difference, variance, level=level)


def _on_logit_scale(area: float, variance: float, *, level: float) -> Interval | None:
    if variance <= 0.0 or not 0.0 < area < 1.0:
        return None
    centre = np.log(area) - np.log1p(-area)
    half = norm.ppf(0.5 + level / 2) * np.sqrt(variance) / (area * (1.0 - area))
    low, high = 1.0 / (1.0 + np.exp(-(centre + np.array([-half, half]))))
    return Interval(value=area, low=float(low), high=float(high))


def _tested(difference: float, variance: float, *, level: float) -> PairedTest:
    if variance == 0.0:
        return PairedTest(difference=difference, low=difference, high=difference, p_value=float(difference == 0.0))
    deviation = np.sqrt(variance)
    half = float(norm.ppf(0.5 + level / 2) * deviation)
    p_value = float(2.0 * norm.sf(abs(difference) / deviation))
    return PairedTest(difference=difference, low=difference - half, high=difference + half, p_value=p_value)


def _influence(scores: ArrayLike, positive: ArrayLike) -> tuple[float, FloatArray] | None:
    """AUROC, and what each sample (N,) moves it by, times N."""
    placed = placements(scores, positive)
    if placed is None:
        return None
    truth = np.asarray(positive, dtype=np.bool_)
    area = float(placed.of_positives.mean())
    moved = np.empty(len(truth))
    moved[truth] = (placed.of_positives - area) / truth.mean()
    moved[~truth] = (placed.of_negatives - area) / (1.0 - truth.mean())
    return area, moved


def _weighted(sets: Sequence[Placements], weights: ArrayLike) -> tuple[float, float]:
    """Weighted mean over the sets of the mean placement, and its variance."""
    negatives = {len(each.of_negatives) for each in sets}
    if len(negatives) > 1:
        raise EvaluationError(f"mean AUROC: wanted the same negatives in each set, got {sorted(negatives)} of them")
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    means = np.array([each.of_positives.mean() for each in sets])
    variances = np.array([each.of_positives.var(ddof=1) / len(each.of_positives) for each in sets])
    shared = shares @ np.stack([each.of_negatives for each in sets])
    return float(shares @ means), float(shares**2 @ variances + shared.var(ddof=1) / len(shared))


def _enough(truth: NDArray[np.bool_]) -> bool:
    return min(int(truth.sum()), int((~truth).sum())) >= 2


def _delong(scores: FloatArray, truth: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """AUROCs (M,) and their covariance (M, M) of scores (M, N)."""
    beaten, beating = _placements(scores, truth)
    of_positives = np.atleast_2d(np.cov(beaten)) / beaten.shape[1]
    return beaten.mean(axis=1), of_positives + np.atleast_2d(np.cov(beating)) / beating.shape[1]


def _placements(scores: FloatArray, truth: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Share of negatives below each positive (M, P), and of positives above each negative, a tie counting one half."""
    positives, negatives = int(truth.sum()), int((~truth).sum())
    ranks = rankdata(scores, axis=1)
    beaten = (ranks[:, truth] - rankdata(scores[:, truth], axis=1)) / negatives
    beating = 1.0 - (ranks[:, ~truth] - rankdata(scores[:, ~truth], axis=1)) / positives
    return beaten, beating
