"""Uncertainty of an AUROC, and of the difference of two AUROCs on the same samples.

Source: DeLong, DeLong and Clarke-Pearson, 1988; computed from mid-ranks as in Sun and Xu, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, rankdata

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
    area, variance = float(areas[0]), float(covariance[0, 0])
    if variance <= 0.0 or not 0.0 < area < 1.0:
        return None
    centre = np.log(area) - np.log1p(-area)
    half = norm.ppf(0.5 + level / 2) * np.sqrt(variance) / (area * (1.0 - area))
    low, high = 1.0 / (1.0 + np.exp(-(centre + np.array([-half, half]))))
    return Interval(value=area, low=float(low), high=float(high))


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
    difference = float(areas[0] - areas[1])
    variance = max(0.0, float(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]))
    if variance == 0.0:
        return PairedTest(difference=difference, low=difference, high=difference, p_value=float(difference == 0.0))
    deviation = np.sqrt(variance)
    half = float(norm.ppf(0.5 + level / 2) * deviation)
    p_value = float(2.0 * norm.sf(abs(difference) / deviation))
    return PairedTest(difference=difference, low=difference - half, high=difference + half, p_value=p_value)


def _enough(truth: NDArray[np.bool_]) -> bool:
    return min(int(truth.sum()), int((~truth).sum())) >= 2


def _delong(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """AUROCs (M,) and their covariance (M, M) of scores (M, N)."""
    positives, negatives = int(truth.sum()), int((~truth).sum())
    ranks = rankdata(scores, axis=1)
    # Share of negatives below each positive, and of positives above each negative, a tie counting one half.
    beaten = (ranks[:, truth] - rankdata(scores[:, truth], axis=1)) / negatives
    beating = 1.0 - (ranks[:, ~truth] - rankdata(scores[:, ~truth], axis=1)) / positives
    covariance = np.atleast_2d(np.cov(beaten)) / positives + np.atleast_2d(np.cov(beating)) / negatives
    return beaten.mean(axis=1), covariance
