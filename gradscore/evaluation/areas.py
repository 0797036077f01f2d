"""Intervals of AUPR and of the areas under risk-coverage curves.

The variance of an area is that of what its samples move it by (its influence function, the infinitesimal jackknife of
Efron, 1982), in a normal interval on the logit scale, as Boyd, Eng and Page (2013) recommend for AUPR. Where few
positives rank low, or none, that variance says little: the interval also holds the area as it would be with
`MORE_OR_LESS` positives more at the lowest score of all, and without as many of the lowest. That is the idea of Agresti
and Coull (1998), who count two successes and two failures more. What it covers is in docs/evidence.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from scipy.stats import norm

from ..system import BoolArray, FloatArray
from .metrics import aupr_in, aupr_out, checked
from .rates import ENOUGH, Bounds
from .selective import augrc, aurc, eaurc

MORE_OR_LESS = 2

Influences = Callable[[FloatArray, BoolArray], FloatArray]


class _Area(NamedTuple):
    value: Callable[[ArrayLike, ArrayLike], float | None]
    influences: Influences


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


def influences(name: str, values: FloatArray, truth: BoolArray) -> FloatArray:
    """What a little more weight of each sample (N,) moves an area by, per weight where the N weigh N together.

    Args:
        name: of `AREAS`.
        values: (N,) scores, ascending.
        truth: (N,) bool, True for positives.
    """
    return AREAS[name].influences(values, truth)


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
