"""Calibrated scores: what decides on a sample, and thresholds whose false-alarm rate holds for any score.

A calibration sample and a new one of the same distribution are exchangeable, provided that neither fitted the
classifier or the meta model. Then the rank of the new score among the calibration scores is (super)uniform, whatever
the score is, and flagging p <= alpha raises false alarms at a rate of at most alpha, on average over calibrations
(split-conformal calibration).

So of new in-distribution samples that are predicted right, at most a share alpha is rejected. Every detector is
calibrated on the calibration samples that are predicted right; given how many these are, they and a new one that is
predicted right are exchangeable. All detectors flag as many of their largest scores, as many as let them reject at most
alpha together (`joint_levels`).

Copies among the calibration samples mean one of two things. New samples come again as often (blank images, rows of a
few categories): then all samples are exchangeable with a new one, and those without copies are not. Or somebody put the
same samples in twice: then it is the other way round. Nothing tells which, so detectors are calibrated for both; for a
mixture of the two nothing is promised.

Source: Vovk, Gammerman and Shafer, 2005; Bates, Candes, Lei, Romano and Sesia, 2023, for the use against OOD samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import beta, betabinom, rankdata

from ..errors import EvaluationError
from ..meta import SOUGHT, BaselineScore, MetaInputs, MetaModel, Rows
from ..system import FloatArray, IntArray, as_rate


class Question(NamedTuple):
    """Question that a detector answers.

    Attributes:
        task: its name in tables.
        what: what sentences call the samples it finds.
        reason: why it rejects a sample.
    """

    task: str
    what: str
    reason: str


DETECTORS = {
    "wrong": Question("misclassification", SOUGHT["misclassification"], "wrong-prediction score above its threshold"),
    "ood": Question("ood", SOUGHT["ood"], "OOD score above its threshold"),
}
"""Detectors of a bundle, by name."""


@dataclass(frozen=True, kw_only=True)
class CalibratedScore:
    """A meta model, or a baseline in its place, and when it fires.

    Attributes:
        model: the meta model or the baseline.
        protocol: what it was fitted on, as `gradscore fit-meta` names it; `baseline` of a baseline.
        calibration: (n,) its scores of the calibration samples that are predicted right, ascending.
        levels: (n,) the share that all detectors together reject at most, where each fires above its k-th largest
            calibration score; see `joint_levels`.
        threshold: a score above it fires.
    """

    model: MetaModel | BaselineScore
    protocol: str
    calibration: FloatArray
    levels: FloatArray
    threshold: Threshold

    def at(self, alpha: float) -> CalibratedScore:
        """The score with another bound of what all detectors reject; `EvaluationError` as in `threshold`."""
        return replace(self, threshold=threshold(self.calibration, alpha, levels=self.levels))


class ScoreInputs:
    """Inputs of scores: those of meta models, and baselines; each is computed when it is asked for."""

    def __init__(self, inputs: MetaInputs, rows: Rows) -> None:
        self._inputs, self._rows = inputs, rows

    @cached_property
    def baselines(self) -> dict[str, FloatArray]:
        """All baselines (N,) by name."""
        return self._inputs.baseline_scores(self._rows)

    @cached_property
    def scaled(self) -> FloatArray:
        """The inputs (N, D) of meta models."""
        return self._inputs.scaled(self._rows, self.baselines)

    def by(self, model: MetaModel | BaselineScore) -> FloatArray:
        """The scores (N,) by a meta model or a baseline."""
        if isinstance(model, BaselineScore):
            return self.baselines[model.name]
        return model.of_scaled(self.scaled)


def calibrated(
    models: Mapping[str, tuple[MetaModel | BaselineScore, str]],
    right: pd.DataFrame,
    *,
    with_copies: pd.DataFrame | None = None,
    alpha: float,
) -> dict[str, CalibratedScore]:
    """Detectors that together reject at most a share `alpha` of the samples that are predicted right.

    Args:
        models: the meta model of each detector, or its baseline, and its protocol.
        right: the feature table of the calibration samples that are predicted right, each content once.
        with_copies: that of all that are predicted right, where some contents are there several times.
        alpha: bound of the rate, on average over calibrations.

    Raises:
        EvaluationError: there are too few samples for it; the message says how many are needed.
        ConfigError: `alpha` is out of range.
    """
    with_copies = right if with_copies is None else with_copies
    if len(right) < (needed := samples_needed(as_rate(alpha, "alpha") / len(models))):
        copies = len(with_copies) - len(right)
        beside = f"; {copies} more are copies of these, or of samples of in_dist.fit" if copies else ""
        raise EvaluationError(f"{_too_few(alpha, needed, len(right))}{beside}")
    distinct, of_all = (
        {name: model.decision(each) for name, (model, _) in models.items()} for each in (right, with_copies)
    )
    levels = joint_levels(list(distinct.values()), list(of_all.values()))
    found = {}
    for name, (model, protocol) in models.items():
        scores = holding_for_both(np.sort(distinct[name]), np.sort(of_all[name]))
        limit = threshold(scores, alpha, levels=levels)
        found[name] = CalibratedScore(
            model=model, protocol=protocol, calibration=scores, levels=levels, threshold=limit
        )
    return found


def joint_levels(distinct: Sequence[FloatArray], with_copies: Sequence[FloatArray]) -> FloatArray:
    """Shares that several detectors reject together at most, each firing above its k-th largest calibration score.

    Where they fire on the same samples, each may fire more often than its part of that share. Of n calibration samples
    and a new one, exchangeable, those among the k largest by any detector are at most one more than of the n alone. So
    a k allowed by the n, where 1 + how many of them are among the k largest is at most alpha (n + 1), is at most the
    largest K that all n + 1 together allow, and whoever fires is among the K largest of the n + 1: at most a share
    alpha of them is, and the new one as likely as any. Nor are they ever more than k for each detector. What is larger
    for one of both sets counts.

    Args:
        distinct: of each detector the scores (n,) of the calibration samples, each content once.
        with_copies: likewise (m,) of all of them, m of n at least.

    Returns:
        (n,) shares for k = 1 ... n, ascending, above 1 where k is of no use.
    """
    n, m = len(distinct[0]), len(with_copies[0])
    k = np.arange(1, n + 1)
    return np.maximum(_levels(distinct, k), _levels(with_copies, k * (m + 1) // (n + 1)))


def _levels(scores: Sequence[FloatArray], k: IntArray) -> FloatArray:
    """The bounds for the k largest of one set of calibration samples."""
    count = len(scores[0])
    ranks = np.min([rankdata(-each, method="max") for each in scores], axis=0)
    among = np.searchsorted(np.sort(ranks), k, side="right")
    return np.asarray(np.minimum(1 + among, len(scores) * k) / (count + 1))


def neighbouring_levels(detectors: Mapping[str, CalibratedScore]) -> tuple[float, float]:
    """Share that detectors reject together at most, and the lowest bound at which one of them fires more often.

    The bounds that calibration samples tell apart are steps; of equal scores none is flagged.

    Returns:
        Both shares; the second is infinite where none fires more often at any bound.
    """
    now, more = 0.0, float("inf")
    for each in detectors.values():
        at_or_above = int((each.calibration >= each.threshold.value).sum())
        now = max(now, float(each.levels[each.threshold.rank - 1]))
        more = min([more, *map(float, each.levels[at_or_above : at_or_above + 1])])
    return now, more


def holding_for_both(distinct: FloatArray, with_copies: FloatArray) -> FloatArray:
    """Calibration scores whose p-values, and so thresholds, hold for new samples like either of two sets.

    At each level k / (n + 1) the threshold is the higher one of the two.

    Args:
        distinct: (n,) ascending.
        with_copies: (m,) ascending, m of n at least.

    Returns:
        (n,) ascending.
    """
    n, m = len(distinct), len(with_copies)
    ranks = np.arange(1, n + 1) * (m + 1) // (n + 1)
    return np.maximum(distinct, with_copies[m - ranks][::-1])


@dataclass(frozen=True, kw_only=True)
class FalseAlarms:
    """False-alarm rate of samples like those of the calibration.

    Attributes:
        alpha: bound of the rate, k / (n + 1).
        n: calibration samples it comes from.
        rank: k.
        of_one: that of one detector alone, if this is of several: together they fire as often at least.
    """

    alpha: float
    n: int
    rank: int
    of_one: int | None = None

    def realised_rate(self) -> tuple[float, float]:
        """90 % interval of the false-alarm rate of this very calibration.

        The bound alpha is one on average over calibrations; for scores without ties the rate given the calibration
        follows a beta distribution with parameters k and n + 1 - k.

        Source: Vovk, 2012.
        """
        ends = ((self.rank if self.of_one is None else self.of_one, 0.05), (self.rank, 0.95))
        low, high = (float(beta(rank, self.n + 1 - rank).ppf(share)) for rank, share in ends)
        return low, high

    def chance_of(self, rejected: int, samples: int) -> float:
        """Probability that so many of new samples, or more, are rejected: at most, where scores have ties."""
        return float(betabinom.sf(rejected - 1, samples, self.rank, self.n + 1 - self.rank))


@dataclass(frozen=True, kw_only=True)
class Threshold(FalseAlarms):
    """Above which score a sample is flagged: the k-th largest calibration score.

    Attributes:
        value: a score; a sample is flagged when its score is greater.
    """

    value: float


def joint_false_alarms(detectors: Mapping[str, CalibratedScore]) -> FalseAlarms:
    """False alarms of detectors together; scores with one order have up to one sample fewer (`joint_levels`)."""
    alpha, _ = neighbouring_levels(detectors)
    limits = [each.threshold for each in detectors.values()]
    n, of_one = limits[0].n, max(each.rank for each in limits)
    return FalseAlarms(alpha=alpha, n=n, rank=ceil(alpha * (n + 1) - 1e-9), of_one=of_one)


def p_values(calibration: ArrayLike, scores: ArrayLike) -> FloatArray:
    """P-values (N,) of scores among those of the calibration samples.

    Args:
        calibration: (n,) scores, in any order, higher = more unusual.
        scores: (N,) scores to judge.

    Returns:
        (N,) (1 + number of calibration scores at or above the score) / (n + 1), in [1 / (n + 1), 1].

    Raises:
        EvaluationError: a value that is not finite.

    Example:
        >>> p_values([1.0, 2.0, 3.0], [2.5, 2.0, 9.0]).tolist()
        [0.5, 0.75, 0.25]
    """
    ordered = np.sort(_finite(calibration, "calibration scores"))
    at_or_above = len(ordered) - np.searchsorted(ordered, _finite(scores, "scores"), side="left")
    return np.asarray((1 + at_or_above) / (len(ordered) + 1), dtype=np.float64)


def threshold(calibration: ArrayLike, alpha: float, *, levels: ArrayLike | None = None) -> Threshold:
    """The threshold that flags exactly the samples with a p-value of at most alpha.

    Args:
        calibration: (n,) scores, in any order.
        alpha: bound of the false-alarm rate, in (0, 1).
        levels: (n,) ascending; the bound that holds where the k largest scores are flagged, k / (n + 1) without.

    Raises:
        EvaluationError: a score is not finite, or there are too few calibration samples.
        ConfigError: alpha is out of range.

    Example:
        >>> threshold([1.0, 2.0, 3.0, 4.0], alpha=0.4).value
        3.0
    """
    values = np.sort(_finite(calibration, "calibration scores"))
    n = len(values)
    bounds = np.arange(1, n + 1) / (n + 1) if levels is None else np.asarray(levels, dtype=np.float64)
    # Shares are quotients rounded once, as decimals are read: 29 of 100 equals 0.29.
    rank = int(np.searchsorted(bounds, as_rate(alpha, "alpha"), side="right"))
    if not rank:
        detectors = ceil(bounds[0] * (n + 1) - 1e-9) if n else 1
        raise EvaluationError(_too_few(alpha, samples_needed(alpha / detectors), n))
    value = values[-rank]
    rank = 1 + int((values > value).sum())  # of ties none is flagged
    return Threshold(value=float(value), alpha=rank / (n + 1), n=n, rank=rank)


def samples_needed(alpha: float) -> int:
    """The smallest number of calibration samples with which a p-value can be as small as alpha: ceil(1 / alpha) - 1.

    Example:
        >>> samples_needed(0.05)
        19
    """
    # 0.07 is 7/100, not the nearest float.
    return ceil(1 / Fraction(repr(as_rate(alpha, "alpha")))) - 1


def _too_few(alpha: float, needed: int, got: int) -> str:
    return (
        f"a false-alarm rate of {alpha:g} needs at least {needed} correctly predicted calibration samples, got {got}; "
        "add samples to data.in_dist.calibration (in Python: calibration=...), or allow a higher rate"
    )


def _finite(values: ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise EvaluationError(f"{name}: {int((~np.isfinite(array)).sum())} of {len(array)} are not finite")
    return array
