"""Intervals of all figures but AUROC, whose are in `delong`. What they cover is in docs/evidence.md.

Areas (AUPR, and those under risk-coverage curves): the variance is that of what the samples move the area by (its
influence function, the infinitesimal jackknife of Efron, 1982), in a normal interval on the logit scale, as Boyd, Eng
and Page (2013) recommend for AUPR. Where few positives rank low, or none, that variance says little: the interval also
holds the area as it would be with `MORE_OR_LESS` positives more at the lowest score of all, and without as many of the
lowest. That is the idea of Agresti and Coull (1998), who count two successes and two failures more.

FPR at a TPR of 95 %: two things are uncertain, the share of the others beyond the threshold (Wilson's interval), and
the threshold itself, a quantile, between two order statistics (Thompson, 1936). Their distances from the rate are
squared and added, as Newcombe (1998) does for a difference of two rates; Zou and Donner (2008) show that it holds for
any two estimates. Where the threshold is a score that several samples share, the interval goes from the lower end at
the highest threshold to the upper end at the lowest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from scipy.stats import binom, binomtest, norm

from ..system import BoolArray, FloatArray
from .metrics import Metric, augrc, aupr_in, aupr_out, aurc, checked, checked_probabilities, eaurc

Bounds = tuple[float, float]

ENOUGH = 20
"""With fewer samples of a class, intervals are so wide that they say little."""

MORE_OR_LESS = 2

RATES: Mapping[str, int] = MappingProxyType({"fpr95_ood_positive": 1, "fpr95_id_positive": -1})
"""Name -> the sign of the scores with which it is the share of negatives at or above 95 % of the positives."""


class _Area(NamedTuple):
    value: Metric
    influences: Callable[[FloatArray, BoolArray], FloatArray]


def area_bounds(
    scores: ArrayLike, positive: ArrayLike, *, names: Iterable[str], fixed_sizes: bool
) -> dict[str, Bounds]:
    """95 % intervals of areas.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.
        names: of `AREAS`.
        fixed_sizes: somebody chose how many positives there are (OOD samples), rather than that as many happened to be
            drawn (wrong predictions).

    Returns:
        Name -> (low, high) in [0, 1]; empty with fewer than `ENOUGH` samples of a class.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    if min(int(truth.sum()), int((~truth).sum())) < ENOUGH:
        return {}
    order = np.argsort(values, kind="stable")
    values, truth = values[order], truth[order]
    return {name: _bounds(AREAS[name], values, truth, fixed_sizes=fixed_sizes) for name in names}


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


def _of_aupr_in(values: FloatArray, truth: BoolArray) -> FloatArray:
    return _of_average_precision(values, ~truth)


def _of_aupr_out(values: FloatArray, truth: BoolArray) -> FloatArray:
    return _of_average_precision(-values[::-1], truth[::-1])[::-1]


def _of_average_precision(values: FloatArray, hit: BoolArray) -> FloatArray:
    """Of the mean over hits of h / n, where n samples are retrieved up to and including a hit, and h of them are hits.

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
    """Of the mean of r_i, the share of wrong ones among the first i: (y - r_i) / i for each i from the sample on."""
    n = len(values)
    place = np.arange(1.0, n + 1)
    risk = np.cumsum(_mean_of_ties(wrong.astype(np.float64), values)) / place
    own, gained, lost = (
        _mean_of_ties(each, values) for each in (risk, _from_here_on(1 / place), _from_here_on(risk / place))
    )
    return np.asarray((own + wrong * gained - lost - risk.mean()) / n)


def _of_eaurc(values: FloatArray, wrong: BoolArray) -> FloatArray:
    """That of AURC less that of r + (1 - r) log(1 - r), the area of a perfect order with r wrong ones."""
    rate = wrong.mean()
    return np.asarray(_of_aurc(values, wrong) + np.log1p(-rate) * (wrong - rate) / len(values))


def _of_augrc(values: FloatArray, wrong: BoolArray) -> FloatArray:
    """Of the mean of e_i / n, with e_i wrong ones among the first i."""
    n = len(values)
    accepted = np.cumsum(_mean_of_ties(wrong.astype(np.float64), values)) / n
    own, after = (_mean_of_ties(each, values) for each in (accepted, np.arange(n, 0.0, -1) / n))
    return np.asarray((own + wrong * after - 2 * accepted.mean()) / n)


def _from_here_on(parts: FloatArray) -> FloatArray:
    return np.cumsum(parts[::-1])[::-1]


def _mean_of_ties(parts: FloatArray, values: FloatArray) -> FloatArray:
    """The mean (N,) over the samples of equal score: each order of them is as likely."""
    starts = np.r_[0, 1 + np.flatnonzero(np.diff(values))]
    sizes = np.diff(np.r_[starts, len(values)])
    return np.repeat(np.add.reduceat(parts, starts) / sizes, sizes)


AREAS: Mapping[str, _Area] = MappingProxyType(
    {
        "aupr_in": _Area(aupr_in, _of_aupr_in),
        "aupr_out": _Area(aupr_out, _of_aupr_out),
        "aurc": _Area(aurc, _of_aurc),
        "eaurc": _Area(eaurc, _of_eaurc),
        "augrc": _Area(augrc, _of_augrc),
    }
)
"""Name -> the area of scores and truth, and what each sample moves it by."""


def rate_bounds(scores: ArrayLike, positive: ArrayLike) -> dict[str, Bounds]:
    """95 % intervals of the FPR95s, in both conventions.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        Name, of `RATES` -> (low, high) in [0, 1]; empty with fewer than `ENOUGH` samples of a class.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    if min(int(truth.sum()), int((~truth).sum())) < ENOUGH:
        return {}
    return {name: _rate_bounds(sign * values, truth if sign > 0 else ~truth) for name, sign in RATES.items()}


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


def brier_interval(probabilities: ArrayLike, positive: ArrayLike, *, level: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of `brier`, a mean over samples, by the normal approximation.

    There is none for the calibration error: it is never below zero, so that its estimate is too high, the more so the
    fewer samples, and intervals around it covered a calibration error of zero in half of the simulated sets at best.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.
        level: coverage.

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
    half = float(norm.ppf(0.5 + level / 2) * squares.std(ddof=1) / np.sqrt(len(p)))
    return max(0.0, float(squares.mean()) - half), min(1.0, float(squares.mean()) + half)
