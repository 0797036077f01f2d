"""Differences between two models with their standard errors, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata

from ...evaluation import auroc, paired_delong, paired_delong_of_truths, unpaired_delong
from .score_bounds import paired_bound, unpaired_bound

Status = Literal["pass", "fail", "inconclusive", "info"]
"""What becomes of a gate; `info` gates decide nothing."""

POWER = 0.8
"""The chance of being noticed that the smallest drop is quoted for, as usual in the planning of trials."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two values, the second minus the first with its standard error, and how that was found.

    `error` is None where the samples say nothing of it. `bound` gives the bound of the difference for a quantile of the
    normal distribution where one better than that of the standard error is known.
    """

    before: float | None
    now: float | None
    error: float | None
    method: str
    n: int
    bound: Callable[[float], float] | None = None

    @property
    def value(self) -> float | None:
        """Now minus before."""
        return None if self.before is None or self.now is None else self.now - self.before

    def at(self, quantile: float) -> float | None:
        """The bound for a quantile of the normal distribution: below zero a lower one, above an upper one."""
        if self.value is None or self.error is None:
            return None
        return self.value + quantile * self.error if self.bound is None else self.bound(quantile)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a difference means for a margin.

    Attributes:
        status: `pass` if the model is shown to be no worse than the margin allows, `fail` if it is shown to be worse,
            `inconclusive` if neither.
        low: lower bound of the change for the better, one-sided.
        high: its upper bound.
        smallest_drop: the smallest change for the worse that these samples would have shown in four of five cases.
    """

    status: Status
    low: float | None
    high: float | None
    smallest_drop: float | None


def judge(difference: Difference, *, margin: float, level: float, gates: int, higher_is_better: bool = True) -> Verdict:
    """Non-inferiority: may the second model be called no worse than the first by more than a margin?

    All gates have to pass, so each passes at the full error 1 - level; one is enough to fail, so each fails at that
    error divided by the number of gates.

    Args:
        difference: second minus first.
        margin: the accepted change for the worse.
        level: confidence.
        gates: how many are judged together.
        higher_is_better: direction of the values.

    Returns:
        The verdict.
    """
    sign = 1 if higher_is_better else -1
    to_pass, to_fail = float(norm.ppf(level)), float(norm.ppf(1 - (1 - level) / gates))
    low, high = difference.at(-sign * to_pass), difference.at(sign * to_fail)
    if difference.error is None or low is None or high is None:
        return Verdict(status="inconclusive", low=None, high=None, smallest_drop=None)
    low, high = sign * low, sign * high
    smallest = margin + (to_fail + float(norm.ppf(POWER))) * difference.error
    status: Status = "pass" if low >= -margin else "fail" if high < -margin else "inconclusive"
    return Verdict(status=status, low=float(low), high=float(high), smallest_drop=float(smallest))


def auroc_difference_same(
    before: ArrayLike, now: ArrayLike, positive_before: ArrayLike, positive_now: ArrayLike
) -> Difference:
    """AUROCs on the same samples: DeLong's paired test, in the form for two truths where those differ.

    The truths differ for misclassification, where each model has errors of its own. Where the order of the scores and
    every truth is the same, every sample of either class is one that did not change, and the error is that of a change
    of all samples alike, of which one of N + 2 would not have been seen.

    Args:
        before: (N,) scores of the first model, higher = more uncertain.
        now: (N,) scores of the second.
        positive_before: (N,) bool.
        positive_now: (N,) bool.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    was, is_now = np.asarray(positive_before, dtype=np.bool_), np.asarray(positive_now, dtype=np.bool_)
    values = _Values(auroc(first, was), auroc(second, is_now), len(first))
    if not np.array_equal(was, is_now):
        test = paired_delong_of_truths(second, first, is_now, was)
        return values.difference(None if test is None else test.error, "paired DeLong, two truths")
    if values.before is not None and np.array_equal(rankdata(first), rankdata(second)):
        return values.difference(float(np.sqrt(2)) / (len(first) + 2), "same order")
    test = paired_delong(second, first, was)
    return values.difference(None if test is None else test.error, "paired DeLong")


def auroc_difference_other(
    before: ArrayLike, now: ArrayLike, positive_before: ArrayLike, positive_now: ArrayLike
) -> Difference:
    """AUROCs on different samples, by DeLong's variance of each; arguments as for the same."""
    first, second = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    was, is_now = np.asarray(positive_before, dtype=np.bool_), np.asarray(positive_now, dtype=np.bool_)
    values = _Values(auroc(first, was), auroc(second, is_now), len(second))
    test = unpaired_delong(second, first, is_now, was)
    return values.difference(None if test is None else test.error, "unpaired DeLong")


def rate_difference_same(before: ArrayLike, now: ArrayLike) -> Difference:
    """Shares of the same samples of which something holds, with Tango's score bounds (see `paired_bound`).

    The standard error is Wald's with half a sample in each cell, for the smallest drop that would show.

    Source: Tango, 1998, for the bounds; Agresti and Min, 2005, for the standard error.

    Args:
        before: (N,) bool, of the first model.
        now: (N,) bool, of the second.
    """
    first, second = np.asarray(before, dtype=np.bool_), np.asarray(now, dtype=np.bool_)
    n = len(first)
    if not n:
        return Difference(before=None, now=None, error=None, method="paired rates", n=0)
    losses, wins = int((first & ~second).sum()), int((~first & second).sum())
    lost, won = losses + 0.5, wins + 0.5
    error = np.sqrt(max(0.0, lost + won - (won - lost) ** 2 / (n + 2))) / (n + 2)
    values = _Values(float(first.mean()), float(second.mean()), n)
    return values.difference(float(error), "paired rates", partial(paired_bound, losses, wins, n))


def rate_difference_other(before: ArrayLike, now: ArrayLike) -> Difference:
    """Shares of different samples, with the score bounds of Miettinen and Nurminen (see `unpaired_bound`).

    The standard error is Wald's with two samples more on either side, for the smallest drop that would show.

    Source: Miettinen and Nurminen, 1985, for the bounds; Agresti and Caffo, 2000, for the standard error.
    """
    first, second = np.asarray(before, dtype=np.bool_), np.asarray(now, dtype=np.bool_)
    if not len(first) or not len(second):
        return Difference(before=None, now=None, error=None, method="two rates", n=0)
    variance = 0.0
    for each in (first, second):
        share = (float(each.sum()) + 1) / (len(each) + 2)
        variance += share * (1 - share) / (len(each) + 2)
    values = _Values(float(first.mean()), float(second.mean()), len(second))
    bound = partial(unpaired_bound, int(first.sum()), len(first), int(second.sum()), len(second))
    return values.difference(float(np.sqrt(variance)), "two rates", bound)


class _Values(NamedTuple):
    before: float | None
    now: float | None
    n: int

    def difference(self, error: float | None, method: str, bound: Callable[[float], float] | None = None) -> Difference:
        return Difference(before=self.before, now=self.now, error=error, method=method, n=self.n, bound=bound)
