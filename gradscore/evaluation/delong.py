"""Uncertainty of an AUROC, of a mean of AUROCs, and of the difference of two.

The variance is DeLong's (DeLong, DeLong and Clarke-Pearson, 1988), computed from mid-ranks as in Sun and Xu, 2014. It
is the spread of the samples' placements, so it says little where few samples have one that is not perfect, and is zero
for scores that separate the classes, however few samples there are. Where fewer than `FEW_CARRYING` samples of a class
carry it, other formulas hold instead, as measured in docs/evidence.md:

* for an AUROC the interval is the wider of DeLong's and Newcombe's (2006, method 5), which inverts a variance that
  depends on the true AUROC alone and has a width at an AUROC of 1 too;
* for a difference, one sample of each class is counted as changed all the way, half of it for the better and half for
  the worse, as Agresti and Min (2005) do for a difference of rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import norm, rankdata

from ..errors import EvaluationError
from ..system import BoolArray, FloatArray
from .metrics import checked

FEW_CARRYING = 10
"""Fewer samples of a class than this, counted as Kish (1965) does, do not tell the spread of their placements: see
`benchmarks/coverage_of_intervals.py`."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class DifferenceTest:
    """AUROC of a first score minus that of a second.

    Attributes:
        difference: first minus second.
        low: lower bound of the interval.
        high: upper bound of the interval.
        p_value: two-sided, for a true difference of zero.
        error: standard error of the difference.
    """

    difference: float
    low: float
    high: float
    p_value: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Placements:
    """The parts an AUROC is the mean of, over positives or over negatives.

    Attributes:
        of_positives: (P,) share of negatives below each positive, a tie counting one half.
        of_negatives: (Q,) share of positives above each negative.
    """

    of_positives: FloatArray
    of_negatives: FloatArray

    def __sub__(self, other: Placements) -> Placements:
        """What the samples contribute to the difference of two AUROCs."""
        return Placements(
            of_positives=self.of_positives - other.of_positives, of_negatives=self.of_negatives - other.of_negatives
        )


PERFECT = Placements(of_positives=np.ones(1), of_negatives=np.ones(1))
"""Every positive above every negative, for any number of them."""


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
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if min(positives, negatives) < 2:
        return None
    ranks = rankdata(values)
    beaten = (ranks[truth] - rankdata(values[truth])) / negatives
    beating = 1.0 - (ranks[~truth] - rankdata(values[~truth])) / positives
    return Placements(of_positives=beaten, of_negatives=beating)


def auroc_interval(scores: ArrayLike, positive: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """AUROC with a confidence interval that stays inside [0, 1].

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.
        level: coverage.

    Returns:
        The interval, DeLong's on the logit scale or, where few samples carry its variance, the wider of it and
        Newcombe's; None with fewer than two samples of either class.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    placed = placements(scores, positive)
    return None if placed is None else mean_auroc_interval([placed], [1], level=level)


def mean_auroc_interval(sets: Sequence[Placements], weights: ArrayLike, *, level: float = 0.95) -> Interval:
    """Weighted mean of the AUROCs of several data sets that share their negatives, with its interval.

    Positives of different sets are independent; the negatives are the same samples in each, whether scored by one model
    or by one model per set. With the numbers of positives as weights, and one model, this is the AUROC of the pooled
    sets.

    Args:
        sets: K data sets; their negatives are the same samples in the same order.
        weights: (K,), scaled to sum 1.
        level: coverage.

    Returns:
        The interval, as for `auroc_interval`.

    Raises:
        EvaluationError: the sets differ in the number of negatives.
    """
    mean = _WeightedMean.of(sets, weights)
    quantile = float(norm.ppf(0.5 + level / 2))
    spans = []
    if mean.variance > 0 and 0 < mean.value < 1:
        spans.append(_on_logit_scale(mean.value, mean.variance, quantile))
    if not spans or _far_from_its_end(sets, weights) < FEW_CARRYING:
        spans.append(_newcombe(mean.value, mean.positives, mean.negatives, quantile))
    return Interval(value=mean.value, low=min(low for low, _ in spans), high=max(high for _, high in spans))


def paired_delong(
    first: ArrayLike, second: ArrayLike, positive: ArrayLike, *, level: float = 0.95
) -> DifferenceTest | None:
    """Compare the AUROCs of two scores of the same samples.

    Args:
        first: (N,) higher = more uncertain.
        second: (N,) higher = more uncertain.
        positive: (N,) bool.
        level: coverage of the interval of the difference.

    Returns:
        The test, or None with fewer than two samples of either class. Scores of equal ranking give p = 1.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    one, other = placements(first, positive), placements(second, positive)
    return None if one is None or other is None else paired_mean_delong([one], [other], [1], level=level)


def paired_mean_delong(
    first: Sequence[Placements], second: Sequence[Placements], weights: ArrayLike, *, level: float = 0.95
) -> DifferenceTest:
    """Compare the weighted mean AUROCs of two scores of the same data sets; see `mean_auroc_interval`."""
    mean = _WeightedMean.of([a - b for a, b in zip(first, second, strict=True)], weights)
    variance = mean.variance
    if mean.carrying < FEW_CARRYING or not variance > 0:
        variance += _one_changed(mean.positives, mean.negatives)
    return _tested(mean.value, variance, level=level)


def paired_delong_of_truths(
    first: ArrayLike, second: ArrayLike, positive_first: ArrayLike, positive_second: ArrayLike, *, level: float = 0.95
) -> DifferenceTest | None:
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
    truths = [np.asarray(each, dtype=np.bool_) for each in (positive_first, positive_second)]
    one, other = placements(first, truths[0]), placements(second, truths[1])
    if one is None or other is None:
        return None
    if len(truths[0]) != len(truths[1]):
        raise EvaluationError(f"paired test: wanted the same samples, got {len(truths[0])} and {len(truths[1])}")
    moved = _influence(one, truths[0]) - _influence(other, truths[1])
    variance = float(moved.var(ddof=1) / len(moved))
    if _effective_count(moved) < FEW_CARRYING or not variance > 0:
        variance += _one_changed(*(min(int((truth == kind).sum()) for truth in truths) for kind in (True, False)))
    return _tested(float(one.of_positives.mean() - other.of_positives.mean()), variance, level=level)


def unpaired_delong(
    first: ArrayLike, second: ArrayLike, positive_first: ArrayLike, positive_second: ArrayLike, *, level: float = 0.95
) -> DifferenceTest | None:
    """Compare the AUROCs of two scores of different samples.

    Args:
        first: (N,) higher = more uncertain.
        second: (M,) higher = more uncertain.
        positive_first: (N,) bool.
        positive_second: (M,) bool.
        level: coverage of the interval of the difference.

    Returns:
        The test, or None with fewer than two samples of either class on either side.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    one, other = placements(first, positive_first), placements(second, positive_second)
    if one is None or other is None:
        return None
    means = [_WeightedMean.of([each], [1]) for each in (one, other)]
    variance = 0.0
    for mean, placed in zip(means, (one, other), strict=True):
        variance += mean.variance
        if _far_from_its_end([placed], [1]) < FEW_CARRYING or not mean.variance > 0:
            variance += _one_changed(mean.positives, mean.negatives)
    return _tested(means[0].value - means[1].value, variance, level=level)


@dataclass(frozen=True, kw_only=True)
class _WeightedMean:
    """Weighted mean over data sets of the mean placement, or of the mean difference of two.

    Attributes:
        value: the mean.
        variance: DeLong's.
        carrying: how many samples of the class with fewer of them have a part in the value.
        positives: as many independent samples of equal weight would have the positives' part of the variance.
        negatives: negatives of every set.
    """

    value: float
    variance: float
    carrying: float
    positives: float
    negatives: int

    @classmethod
    def of(cls, sets: Sequence[Placements], weights: ArrayLike) -> _WeightedMean:
        negatives = sorted({len(each.of_negatives) for each in sets})
        if len(negatives) > 1:
            raise EvaluationError(f"mean AUROC: wanted the same negatives in each set, got {negatives} of them")
        shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
        sizes = np.array([len(each.of_positives) for each in sets])
        means = np.array([each.of_positives.mean() for each in sets])
        variances = np.array([each.of_positives.var(ddof=1) for each in sets]) / sizes
        parts = [each.of_positives * share / len(each.of_positives) for each, share in zip(sets, shares, strict=True)]
        shared = shares @ np.stack([each.of_negatives for each in sets])
        return cls(
            value=float(shares @ means),
            variance=float(shares**2 @ variances + shared.var(ddof=1) / len(shared)),
            carrying=min(_effective_count(np.concatenate(parts)), _effective_count(shared)),
            positives=float(1 / (shares**2 / sizes).sum()),
            negatives=negatives[0],
        )


def _far_from_its_end(sets: Sequence[Placements], weights: ArrayLike) -> float:
    """How many samples of the class with fewer of them keep a mean AUROC from the nearer of 0 and 1."""
    mean = _WeightedMean.of(sets, weights)
    return mean.carrying if mean.value < 0.5 else _WeightedMean.of([PERFECT - each for each in sets], weights).carrying


def _effective_count(parts: FloatArray) -> float:
    """How many equal parts would have the spread of these; zero if all are zero. Source: Kish, 1965."""
    squares = float((parts**2).sum())
    return float(np.abs(parts).sum()) ** 2 / squares if squares else 0.0


def _on_logit_scale(area: float, variance: float, quantile: float) -> tuple[float, float]:
    centre = np.log(area) - np.log1p(-area)
    half = quantile * np.sqrt(variance) / (area * (1.0 - area))
    low, high = 1.0 / (1.0 + np.exp(-(centre + np.array([-half, half]))))
    return float(low), float(high)


def _newcombe(area: float, positives: float, negatives: float, quantile: float) -> tuple[float, float]:
    """All true AUROCs that are no more than `quantile` of their own standard errors away.

    Source: Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic, part 2",
    2006, method 5.
    """
    half_size = (positives + negatives) / 2 - 1

    def excess(true: float) -> float:
        spread = 1 + half_size * (1 - true) / (2 - true) + half_size * true / (1 + true)
        return float((area - true) ** 2 - quantile**2 * true * (1 - true) * spread / (positives * negatives))

    # At the area itself the excess is negative, or zero at the ends of the scale, where it is negative next to them.
    near = 1e-12
    low = 0.0 if area <= near else brentq(excess, 0.0, min(area, 1 - near))
    high = 1.0 if area >= 1 - near else brentq(excess, max(area, near), 1.0)
    return float(low), float(high)


def _one_changed(positives: float, negatives: float) -> float:
    """Variance of a difference if one sample of each class more had changed all the way, half of it in each sense."""
    return 1 / (positives + 2) ** 2 + 1 / (negatives + 2) ** 2


def _tested(difference: float, variance: float, *, level: float) -> DifferenceTest:
    error = float(np.sqrt(variance))
    half = float(norm.ppf(0.5 + level / 2)) * error
    return DifferenceTest(
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=float(2.0 * norm.sf(abs(difference) / error)),
        error=error,
    )


def _influence(placed: Placements, truth: BoolArray) -> FloatArray:
    """What each sample (N,) moves the AUROC by, times N."""
    area = placed.of_positives.mean()
    moved = np.empty(len(truth))
    moved[truth] = (placed.of_positives - area) / truth.mean()
    moved[~truth] = (placed.of_negatives - area) / (1.0 - truth.mean())
    return moved
