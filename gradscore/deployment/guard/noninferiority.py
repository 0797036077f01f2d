"""Differences between two models with their standard errors, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata

from ...evaluation import auroc, paired_delong, paired_delong_of_truths, unpaired_delong

Status = Literal["pass", "fail", "inconclusive", "info"]
"""What becomes of a gate; `info` gates decide nothing."""

POWER = 0.8
"""The chance of being noticed that the smallest drop is quoted for, as usual in the planning of trials."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two values, the second minus the first with its standard error, and how that was found.

    `error` is None where the samples say nothing of it.
    """

    before: float | None
    now: float | None
    error: float | None
    method: str
    n: int

    @property
    def value(self) -> float | None:
        """Now minus before."""
        return None if self.before is None or self.now is None else self.now - self.before


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
    if difference.value is None or difference.error is None:
        return Verdict(status="inconclusive", low=None, high=None, smallest_drop=None)
    gain = difference.value if higher_is_better else -difference.value
    to_pass, to_fail = float(norm.ppf(level)), float(norm.ppf(1 - (1 - level) / gates))
    low, high = gain - to_pass * difference.error, gain + to_fail * difference.error
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
    """Shares of the same samples of which something holds, by a Wald interval with half a sample in each cell.

    Source: Agresti and Min, 2005.

    Args:
        before: (N,) bool, of the first model.
        now: (N,) bool, of the second.
    """
    first, second = np.asarray(before, dtype=np.bool_), np.asarray(now, dtype=np.bool_)
    n = len(first)
    if not n:
        return Difference(before=None, now=None, error=None, method="paired rates", n=0)
    lost, won = float((first & ~second).sum()) + 0.5, float((~first & second).sum()) + 0.5
    error = np.sqrt(max(0.0, lost + won - (won - lost) ** 2 / (n + 2))) / (n + 2)
    return Difference(
        before=float(first.mean()), now=float(second.mean()), error=float(error), method="paired rates", n=n
    )


def rate_difference_other(before: ArrayLike, now: ArrayLike) -> Difference:
    """Shares of different samples, by a Wald interval with two samples more on either side.

    Source: Agresti and Caffo, 2000.
    """
    first, second = np.asarray(before, dtype=np.bool_), np.asarray(now, dtype=np.bool_)
    if not len(first) or not len(second):
        return Difference(before=None, now=None, error=None, method="two rates", n=0)
    variance = 0.0
    for each in (first, second):
        share = (float(each.sum()) + 1) / (len(each) + 2)
        variance += share * (1 - share) / (len(each) + 2)
    values = _Values(float(first.mean()), float(second.mean()), len(second))
    return values.difference(float(np.sqrt(variance)), "two rates")


class _Values(NamedTuple):
    before: float | None
    now: float | None
    n: int

    def difference(self, error: float | None, method: str) -> Difference:
        return Difference(before=self.before, now=self.now, error=error, method=method, n=self.n)
