"""Uncertainty of all figures: AUROCs, their means and differences, other areas, FPR95s and the Brier score.

What the intervals cover is measured in docs/evidence.md. All are of 95 % where no level is asked for.

AUROCs: the variance is DeLong's (DeLong, DeLong and Clarke-Pearson, 1988), computed from mid-ranks as in Sun and Xu,
2014. It is that of the samples' placements, so it says little where few samples have one that is not perfect, and is
zero for scores that separate the classes, however few samples there are. Where fewer than `FEW_CARRYING` samples of a
class carry it, other formulas hold instead:

* for an AUROC the interval is the wider of DeLong's and Newcombe's (2006, method 5), which inverts a variance that
  depends on the true AUROC alone and has a width at an AUROC of 1 too;
* for a difference, one sample of each class is counted as changed all the way, half of it for the better and half for
  the worse, as Agresti and Min (2005) do for a difference of rates.

Other areas (AUPR, and those under risk-coverage curves): the variance is that of what the samples move the area by (its
influence function, the infinitesimal jackknife of Efron, 1982), in a normal interval on the logit scale, as Boyd, Eng
and Page (2013) recommend for AUPR. Where few positives rank low, or none, that variance says little: the interval also
holds the area as it would be with `MORE_OR_LESS` positives more at the lowest score of all, and without as many of the
lowest. That is the idea of Agresti and Coull (1998), who count two successes and two failures more.

FPR at a TPR of 95 %: two things are uncertain, the share of the others beyond the threshold (Wilson's interval), and
the threshold itself, a quantile, between two order statistics (Thompson, 1936). Their distances from the rate are
squared and added, as Newcombe (1998) does for a difference of two rates; Zou and Donner (2008) show that it holds for
any two estimates. Where the threshold is a score that several samples share, the interval goes from the lower end at
the highest threshold to the upper end at the lowest.

Scores that are not finite, or of another shape than the truth, are an `EvaluationError` everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import binom, binomtest, norm

from ..errors import EvaluationError
from ..meta import Placements
from ..system import BoolArray, FloatArray
from .metrics import Metric, aupr_in, aupr_out, aurc, checked, checked_probabilities

Bounds = tuple[float, float]

ENOUGH = 20
"""With fewer samples of a class, intervals of other figures than AUROCs are so wide that they say little."""

MORE_OR_LESS = 2

FEW_CARRYING = 10
"""Fewer samples of a class than this, counted as Kish (1965) does, do not tell the variance of their placements: see
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


def placements(scores: ArrayLike, positive: ArrayLike) -> Placements | None:
    """Placements of the samples of a data set among those of the other class.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        The placements, or None with fewer than two samples of either class.
    """
    values, truth = checked(scores, positive)
    if min(truth.sum(), (~truth).sum()) < 2:
        return None
    return Placements.of(values, truth)


def mean_auroc_interval(sets: Sequence[Placements]) -> Interval:
    """Mean of the AUROCs of data sets that share their negatives, with an interval that stays inside [0, 1].

    Positives of different sets are independent; the negatives are the same samples in each, whether scored by one model
    or by one model per set.

    Args:
        sets: K data sets; their negatives are the same samples in the same order.

    Returns:
        The interval, DeLong's on the logit scale or, where few samples carry its variance, the wider of it and
        Newcombe's.

    Raises:
        EvaluationError: the sets differ in the number of negatives.
    """
    mean = _Mean.of(sets)
    quantile = float(norm.ppf(0.975))
    spans = []
    if mean.variance > 0 and 0 < mean.value < 1:
        spans.append(_on_logit_scale(mean.value, mean.variance, quantile))
    if not spans or _far_from_its_end(sets) < FEW_CARRYING:
        spans.append(_newcombe(mean.value, mean.positives, mean.negatives, quantile))
    return Interval(value=mean.value, low=min(low for low, _ in spans), high=max(high for _, high in spans))


def paired_delong(first: ArrayLike, second: ArrayLike, positive: ArrayLike) -> DifferenceTest | None:
    """Compare the AUROCs of two scores of the same samples.

    Args:
        first: (N,) higher = more uncertain.
        second: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        The test, or None with fewer than two samples of either class. Scores of equal ranking give p = 1.
    """
    one, other = placements(first, positive), placements(second, positive)
    return None if one is None or other is None else paired_mean_delong([one], [other])


def paired_mean_delong(first: Sequence[Placements], second: Sequence[Placements]) -> DifferenceTest:
    """Compare the mean AUROCs of two scores of the same data sets; see `mean_auroc_interval`."""
    mean = _Mean.of([a - b for a, b in zip(first, second, strict=True)])
    variance = mean.variance
    if mean.carrying < FEW_CARRYING or not variance > 0:
        variance += _one_changed(mean.positives, mean.negatives)
    return _tested(mean.value, variance)


def paired_delong_of_truths(
    first: ArrayLike, second: ArrayLike, positive_first: ArrayLike, positive_second: ArrayLike
) -> DifferenceTest | None:
    """Compare the AUROCs of two scores of the same samples where each has its own truth.

    Two classifiers are wrong on different samples. The variance is that of the difference of each sample's influence on
    the two AUROCs; where the truths agree this is `paired_delong` but for terms that vanish with many samples.

    Args:
        first: (N,) higher = more uncertain.
        second: (N,) higher = more uncertain.
        positive_first: (N,) bool, what the first score should find.
        positive_second: (N,) bool, what the second score should find.

    Returns:
        The test, or None with fewer than two samples of either class in either truth.
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
    return _tested(float(one.of_positives.mean() - other.of_positives.mean()), variance)


@dataclass(frozen=True, kw_only=True)
class _Mean:
    """Mean over data sets of the mean placement, or of the mean difference of two.

    Attributes:
        value: the mean.
        variance: DeLong's.
        carrying: how many samples of the class with fewer of them have a part in the value; of sets of several sizes
            mostly those of the small ones, which most of the variance comes from (Satterthwaite, 1946).
        positives: as many independent samples of equal weight would have the positives' part of the variance.
        negatives: negatives of every set.
    """

    value: float
    variance: float
    carrying: float
    positives: float
    negatives: int

    @classmethod
    def of(cls, sets: Sequence[Placements]) -> _Mean:
        negatives = sorted({len(each.of_negatives) for each in sets})
        if len(negatives) > 1:
            raise EvaluationError(f"mean AUROC: wanted the same negatives in each set, got {negatives} of them")
        share = 1 / len(sets)
        sizes = np.array([len(each.of_positives) for each in sets], dtype=np.float64)
        alike = (1 / sizes).sum() ** 2 / (1 / sizes**3).sum()
        variances = np.array([each.of_positives.var(ddof=1) for each in sets]) / sizes
        parts = np.concatenate([each.of_positives for each in sets])
        shared = np.mean([each.of_negatives for each in sets], axis=0)
        return cls(
            value=float(np.mean([each.of_positives.mean() for each in sets])),
            variance=float(share**2 * variances.sum() + shared.var(ddof=1) / len(shared)),
            carrying=min(alike * _effective_count(parts) / len(parts), _effective_count(shared)),
            positives=float(1 / (share**2 / sizes).sum()),
            negatives=negatives[0],
        )


def _far_from_its_end(sets: Sequence[Placements]) -> float:
    """Effective sample size (Kish) of the smaller class, for how far a mean AUROC is from the nearer of 0 and 1."""
    mean = _Mean.of(sets)
    if mean.value < 0.5:
        return mean.carrying
    from_one = [Placements(of_positives=1 - each.of_positives, of_negatives=1 - each.of_negatives) for each in sets]
    return _Mean.of(from_one).carrying


def _effective_count(parts: FloatArray) -> float:
    """How many equal parts would have the variance of these; zero if all are zero. Source: Kish, 1965."""
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
        factor = 1 + half_size * (1 - true) / (2 - true) + half_size * true / (1 + true)
        return float((area - true) ** 2 - quantile**2 * true * (1 - true) * factor / (positives * negatives))

    # At the area itself the excess is negative, or zero at the ends of the scale, where it is negative next to them.
    near = 1e-12
    low = 0.0 if area <= near else brentq(excess, 0.0, min(area, 1 - near))
    high = 1.0 if area >= 1 - near else brentq(excess, max(area, near), 1.0)
    return float(low), float(high)


def _one_changed(positives: float, negatives: float) -> float:
    """Variance of a difference if one sample of each class more had changed all the way, half of it in each sense."""
    return 1 / (positives + 2) ** 2 + 1 / (negatives + 2) ** 2


def _tested(difference: float, variance: float) -> DifferenceTest:
    error = float(np.sqrt(variance))
    half = float(norm.ppf(0.975)) * error
    return DifferenceTest(
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=float(2.0 * norm.sf(abs(difference) / error)),
        error=error,
    )


def _influence(placed: Placements, truth: BoolArray) -> FloatArray:
    """Influence (N,) of each sample on the AUROC, times N."""
    area = placed.of_positives.mean()
    moved = np.empty(len(truth))
    moved[truth] = (placed.of_positives - area) / truth.mean()
    moved[~truth] = (placed.of_negatives - area) / (1.0 - truth.mean())
    return moved


RATES: Mapping[str, int] = MappingProxyType({"fpr95_ood_positive": 1, "fpr95_id_positive": -1})
"""Name -> the sign of the scores with which it is the share of negatives at or above 95 % of the positives."""


class _Area(NamedTuple):
    value: Metric
    influences: Callable[[FloatArray, BoolArray], FloatArray]


def _bounds(area: _Area, values: FloatArray, truth: BoolArray, *, fixed_sizes: bool) -> Bounds:
    extremes = [area.value(values, truth), *_with_more_or_less(area, values, truth)]
    found = [float(each) for each in extremes if each is not None]
    moved = area.influences(values, truth)
    groups = (truth, ~truth) if fixed_sizes else (np.ones_like(truth),)
    variance = sum(int(group.sum()) * float(moved[group].var(ddof=1)) for group in groups)
    if 0 < found[0] < 1 and variance > 0:
        half = norm.ppf(0.975) * np.sqrt(variance) / (found[0] * (1 - found[0]))
        found += [float(expit(logit(found[0]) + side * half)) for side in (-1, 1)]
    return max(0.0, min(found)), min(1.0, max(found))


def _with_more_or_less(area: _Area, values: FloatArray, truth: BoolArray) -> tuple[float | None, float | None]:
    more = area.value(
        np.r_[np.full(MORE_OR_LESS, np.nextafter(values[0], -np.inf)), values],
        np.r_[np.ones(MORE_OR_LESS, dtype=bool), truth],
    )
    lowest = np.flatnonzero(truth)[:MORE_OR_LESS]
    return more, area.value(np.delete(values, lowest), np.delete(truth, lowest))


def _of_average_precision(values: FloatArray, hit: BoolArray) -> FloatArray:
    """Influence on the mean over hits of h / n, where n samples are retrieved up to a hit, and h of them are hits.

    A hit adds its own precision, and others / n^2 to that of every hit from it on; another sample takes h / n^2 away.
    """
    last = np.r_[np.flatnonzero(np.diff(values)), len(values) - 1]
    group = np.searchsorted(last, np.arange(len(values)))
    retrieved = last + 1.0
    hits = np.cumsum(hit, dtype=np.float64)[last]
    here = np.diff(hits, prepend=0.0)
    precision = hits / retrieved
    gained = _from_here_on(here * (1 - precision) / retrieved)
    lost = _from_here_on(here * precision / retrieved)
    mean = float(here @ precision) / hits[-1]
    return np.asarray(np.where(hit, (precision + gained - mean)[group], -lost[group]) / hits[-1])


def _of_aurc(values: FloatArray, wrong: BoolArray) -> FloatArray:
    """Influence on the mean of r_i, the share of wrong ones among the first i: (y - r_i) / i from the sample on."""
    n = len(values)
    place = np.arange(1.0, n + 1)
    risk = np.cumsum(_mean_of_ties(wrong.astype(np.float64), values)) / place
    own, gained, lost = (
        _mean_of_ties(each, values) for each in (risk, _from_here_on(1 / place), _from_here_on(risk / place))
    )
    return np.asarray((own + wrong * gained - lost - risk.mean()) / n)


def _from_here_on(parts: FloatArray) -> FloatArray:
    return np.cumsum(parts[::-1])[::-1]


def _mean_of_ties(parts: FloatArray, values: FloatArray) -> FloatArray:
    """The mean (N,) over the samples of equal score: each order of them is as likely."""
    starts = np.r_[0, 1 + np.flatnonzero(np.diff(values))]
    sizes = np.diff(np.r_[starts, len(values)])
    return np.repeat(np.add.reduceat(parts, starts) / sizes, sizes)


AREAS: Mapping[str, _Area] = MappingProxyType(
    {
        "aupr_in": _Area(aupr_in, lambda values, truth: _of_average_precision(values, ~truth)),
        "aupr_out": _Area(aupr_out, lambda values, truth: _of_average_precision(-values[::-1], truth[::-1])[::-1]),
        "aurc": _Area(aurc, _of_aurc),
    }
)
"""Name -> the area of scores and truth, and what each sample moves it by."""


def metric_bounds(
    scores: ArrayLike, positive: ArrayLike, *, areas: Iterable[str], fixed_sizes: bool
) -> dict[str, Bounds]:
    """95 % intervals of the FPR95s, in both conventions, and of areas.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.
        areas: names, of `AREAS`.
        fixed_sizes: somebody chose how many positives there are (OOD samples), rather than that as many happened to be
            drawn (wrong predictions).

    Returns:
        Name, of `RATES` and the areas -> (low, high) in [0, 1]; empty with fewer than `ENOUGH` samples of a class.
    """
    values, truth = checked(scores, positive)
    if min(int(truth.sum()), int((~truth).sum())) < ENOUGH:
        return {}
    order = np.argsort(values, kind="stable")
    values, truth = values[order], truth[order]
    found = {name: _rate_bounds(sign * values, truth if sign > 0 else ~truth) for name, sign in RATES.items()}
    return found | {name: _bounds(AREAS[name], values, truth, fixed_sizes=fixed_sizes) for name in areas}


def _rate_bounds(values: FloatArray, truth: BoolArray) -> Bounds:
    found, others = np.sort(values[truth]), np.sort(values[~truth])
    fewest, most = (int(binom.ppf(share, len(found), 0.05)) for share in (0.025, 0.975))
    least = found[fewest - 1] if fewest else -np.inf
    thresholds = np.array([least, found[len(found) - -(-95 * len(found) // 100)], found[min(most, len(found) - 1)]])
    flagged = len(others) - np.searchsorted(others, thresholds, side="left")
    above, rate, below = flagged / len(others)
    if np.count_nonzero(found == thresholds[1]) > 1:
        # On a step of tied scores the rate jumps as the threshold moves: errors do not add up like distances.
        return wilson(int(flagged[2]), len(others))[0], wilson(int(flagged[0]), len(others))[1]
    own_low, own_high = wilson(int(flagged[1]), len(others))
    low = rate - np.hypot(rate - own_low, rate - below)
    high = rate + np.hypot(own_high - rate, above - rate)
    return max(0.0, float(low)), min(1.0, float(high))


def wilson(count: int, total: int) -> Bounds:
    """Wilson's 95 % interval of a share."""
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def brier_interval(probabilities: ArrayLike, positive: ArrayLike) -> Bounds | None:
    """Confidence interval of `brier`, a mean over samples, by the normal approximation.

    There is none for the calibration error: it is never below zero, so that its estimate is too high, the more so the
    fewer samples, and intervals around it covered a calibration error of zero in half of the simulated sets at best.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.

    Returns:
        (low, high) in [0, 1], or None where the squared differences do not vary: that says nothing of how far their
        mean is from the true one.

    Raises:
        EvaluationError: shapes differ, or a value outside [0, 1].
    """
    p, truth = checked_probabilities(probabilities, positive)
    squares = (p - truth) ** 2
    if len(p) < 2 or np.ptp(squares) <= np.finfo(np.float64).eps:
        return None
    half = float(norm.ppf(0.975) * squares.std(ddof=1) / np.sqrt(len(p)))
    return max(0.0, float(squares.mean()) - half), min(1.0, float(squares.mean()) + half)
