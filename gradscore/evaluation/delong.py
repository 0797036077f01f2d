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
from .metrics import checked

Array = NDArray[np.float64]
Placed = tuple[Array, Array]


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


def auroc_variance(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """DeLong variance of the AUROC.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        The variance, or None with fewer than two samples of either class.
    """
    values, truth = checked(scores, positive)
    if not _enough(truth):
        return None
    _, covariance = _delong(values[None, :], truth)
    return float(covariance[0, 0])


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


def mean_auroc_interval(
    scores: Sequence[ArrayLike], positive: Sequence[ArrayLike], weights: ArrayLike, *, level: float = 0.95
) -> Interval | None:
    """Weighted mean of the AUROCs of several data sets that share their negatives, with its interval.

    Positives of different sets are independent, the negatives are the same samples in each, whether scored by one model
    or by one model per set. With the numbers of positives as weights, and one model, this is the AUROC of the pooled
    sets.

    Args:
        scores: of each data set (N_k,), higher = more uncertain.
        positive: of each data set (N_k,) bool; the negatives are the same samples in the same order in each.
        weights: (K,), scaled to sum 1.
        level: coverage.

    Returns:
        The interval, or None where no variance can be estimated, as for `auroc_interval`.

    Raises:
        EvaluationError: shapes differ, a score is not finite, or the sets differ in the number of negatives.
    """
    placed = _placements_of_sets(scores, positive)
    if placed is None:
        return None
    value, variance = _weighted(placed, np.asarray(weights, dtype=np.float64))
    return _on_logit_scale(value, variance, level=level)


def paired_mean_delong(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    positive: Sequence[ArrayLike],
    weights: ArrayLike,
    *,
    level: float = 0.95,
) -> PairedTest | None:
    """Compare the weighted mean AUROCs of two scores; arguments and errors as for `mean_auroc_interval`."""
    ones, others = _placements_of_sets(first, positive), _placements_of_sets(second, positive)
    if ones is None or others is None:
        return None
    gaps = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(ones, others, strict=True)]
    difference, variance = _weighted(gaps, np.asarray(weights, dtype=np.float64))
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


def _placements_of_sets(scores: Sequence[ArrayLike], positive: Sequence[ArrayLike]) -> list[Placed] | None:
    """Placements of the positives and of the negatives of each set; None with too few of either."""
    pairs = [checked(values, truth) for values, truth in zip(scores, positive, strict=True)]
    negatives = {int((~truth).sum()) for _, truth in pairs}
    if len(negatives) > 1:
        raise EvaluationError(f"mean AUROC: wanted the same negatives in each set, got {sorted(negatives)} of them")
    if not all(_enough(truth) for _, truth in pairs):
        return None
    placed = [_placements(values[None, :], truth) for values, truth in pairs]
    return [(beaten[0], beating[0]) for beaten, beating in placed]


def _weighted(placed: Sequence[Placed], weights: Array) -> tuple[float, float]:
    """Weighted mean over the sets of the mean placement, and its variance."""
    shares = weights / weights.sum()
    value = sum(share * beaten.mean() for share, (beaten, _) in zip(shares, placed, strict=True))
    of_positives = sum(
        share**2 * beaten.var(ddof=1) / len(beaten) for share, (beaten, _) in zip(shares, placed, strict=True)
    )
    of_negatives = shares @ np.stack([beating for _, beating in placed])
    return float(value), float(of_positives + of_negatives.var(ddof=1) / len(of_negatives))


def _enough(truth: NDArray[np.bool_]) -> bool:
    return min(int(truth.sum()), int((~truth).sum())) >= 2


def _delong(scores: Array, truth: NDArray[np.bool_]) -> tuple[Array, Array]:
    """AUROCs (M,) and their covariance (M, M) of scores (M, N)."""
    beaten, beating = _placements(scores, truth)
    of_positives = np.atleast_2d(np.cov(beaten)) / beaten.shape[1]
    return beaten.mean(axis=1), of_positives + np.atleast_2d(np.cov(beating)) / beating.shape[1]


def _placements(scores: Array, truth: NDArray[np.bool_]) -> Placed:
    """Share of negatives below each positive (M, P), and of positives above each negative, a tie counting one half."""
    positives, negatives = int(truth.sum()), int((~truth).sum())
    ranks = rankdata(scores, axis=1)
    beaten = (ranks[:, truth] - rankdata(scores[:, truth], axis=1)) / negatives
    beating = 1.0 - (ranks[:, ~truth] - rankdata(scores[:, ~truth], axis=1)) / positives
    return beaten, beating
