"""Differences between two models with their uncertainty, and what they mean for a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata

from ..evaluation import auroc, paired_delong, paired_delong_of_truths, unpaired_delong
from .rates import POWER, OverlappingRates, PairedRates, Rates, TwoRates

Status = Literal["pass", "fail", "inconclusive", "info"]
"""What becomes of a test; `info` decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two values, the second minus the first with its standard error, and how that was found.

    `error` is None where the samples say nothing of it, and for `rates`, whose bounds take its place.
    """

    before: float | None
    now: float | None
    method: str
    n: int
    error: float | None = None
    rates: Rates | None = None

    @property
    def value(self) -> float | None:
        """Now minus before."""
        return None if self.before is None or self.now is None else self.now - self.before

    def at(self, quantile: float) -> float | None:
        """The bound for a quantile of the normal distribution: below zero a lower one, above an upper one."""
        if self.rates is not None:
            return self.rates.bound(quantile)
        return None if self.value is None or self.error is None else self.value + quantile * self.error

    def smallest(self, *, margin: float, quantile: float, higher_is_better: bool) -> float | None:
        """The smallest change for the worse that is shown to be more than a margin in four of five cases.

        None if no change would be.
        """
        if self.rates is not None:
            rates = self.rates if higher_is_better else self.rates.complement()
            return rates.smallest_drop(margin=margin, quantile=quantile)
        if self.before is None or self.error is None:
            return None
        drop = margin + (quantile + float(norm.ppf(POWER))) * self.error
        return drop if drop <= (self.before if higher_is_better else 1 - self.before) else None


class Judgement(NamedTuple):
    """What a difference means for a margin.

    Attributes:
        status: `pass` if the model is shown to be no worse than the margin allows, `fail` if it is shown to be worse,
            `inconclusive` if neither.
        low: lower bound of the change for the better, one-sided; None without a value.
        high: its upper bound.
        smallest_drop: the smallest change for the worse that these samples would have shown in four of five cases; None
            if they would have shown none.
    """

    status: Status
    low: float | None = None
    high: float | None = None
    smallest_drop: float | None = None


def judge(
    difference: Difference, *, margin: float, level: float, tests: int, higher_is_better: bool = True
) -> Judgement:
    """Non-inferiority: may the second model be called no worse than the first by more than a margin?

    All tests have to pass, so each passes at the full error 1 - level; one is enough to fail, so each fails at that
    error divided by the number of tests.

    Args:
        difference: second minus first.
        margin: the accepted change for the worse.
        level: confidence.
        tests: how many are judged together.
        higher_is_better: direction of the values.
    """
    sign = 1 if higher_is_better else -1
    to_pass, to_fail = float(norm.ppf(level)), float(norm.ppf(1 - (1 - level) / tests))
    low, high = difference.at(-sign * to_pass), difference.at(sign * to_fail)
    if low is None or high is None:
        return Judgement("inconclusive")
    low, high = sign * low, sign * high
    smallest = difference.smallest(margin=margin, quantile=to_fail, higher_is_better=higher_is_better)
    status: Status = "pass" if low >= -margin else "fail" if high < -margin else "inconclusive"
    return Judgement(status, float(low), float(high), smallest)


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
    area, enough = auroc(first, was), 2 <= was.sum() <= len(was) - 2
    if not np.array_equal(was, is_now):
        test, method = paired_delong_of_truths(second, first, is_now, was), "paired DeLong, two truths"
    elif area is not None and enough and np.array_equal(rankdata(first), rankdata(second)):
        error = float(np.sqrt(2)) / (len(first) + 2)
        return Difference(before=area, now=auroc(second, is_now), error=error, method="same order", n=len(first))
    else:
        test, method = paired_delong(second, first, was), "paired DeLong"
    error_of_test = None if test is None else test.error
    return Difference(before=area, now=auroc(second, is_now), error=error_of_test, method=method, n=len(first))


def auroc_difference_other(
    before: ArrayLike, now: ArrayLike, positive_before: ArrayLike, positive_now: ArrayLike
) -> Difference:
    """AUROCs on different samples, by DeLong's variance of each; arguments as for the same."""
    first, second = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    was, is_now = np.asarray(positive_before, dtype=np.bool_), np.asarray(positive_now, dtype=np.bool_)
    test = unpaired_delong(second, first, is_now, was)
    error = None if test is None else test.error
    return Difference(
        before=auroc(first, was), now=auroc(second, is_now), error=error, method="unpaired DeLong", n=len(second)
    )


def rate_difference_same(before: ArrayLike, now: ArrayLike) -> Difference:
    """Shares of the same samples of which something holds, with Tango's score bounds (see `PairedRates`).

    Args:
        before: (N,) bool, of the first model.
        now: (N,) bool, of the second.
    """
    first, second = np.asarray(before, dtype=np.bool_), np.asarray(now, dtype=np.bool_)
    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    return _of_rates(first, second, PairedRates(lost, won, int(first.sum()), len(first)), "paired rates")


def rate_difference_other(before: ArrayLike, now: ArrayLike) -> Difference:
    """Shares of different samples, with the score bounds of Miettinen and Nurminen (see `TwoRates`)."""
    first, second = np.asarray(before, dtype=np.bool_), np.asarray(now, dtype=np.bool_)
    rates = TwoRates(int(first.sum()), len(first), int(second.sum()), len(second))
    return _of_rates(first, second, rates, "two rates")


def rate_difference_overlapping(before: pd.Series[bool], now: pd.Series[bool]) -> Difference:
    """Shares of samples some of which are the same, as the errors of two models are, by the names in the index.

    Where all are the same it is `rate_difference_same`, where none is `rate_difference_other`; see `OverlappingRates`
    for what lies between.
    """
    common = before.index[before.index.isin(now.index)]
    if len(common) == len(before) == len(now):
        return rate_difference_same(before, now.loc[common])
    if not len(common):
        return rate_difference_other(before, now)
    first, second = before.loc[common].to_numpy(dtype=np.bool_), now.loc[common].to_numpy(dtype=np.bool_)
    rates = OverlappingRates(
        apart=TwoRates(int(before.sum()), len(before), int(now.sum()), len(now)),
        both=int((first & second).sum()),
        lost=int((first & ~second).sum()),
        won=int((~first & second).sum()),
        common=len(common),
    )
    return _of_rates(before.to_numpy(), now.to_numpy(), rates, "rates of samples partly the same")


def _of_rates(before: ArrayLike, now: ArrayLike, rates: Rates, method: str) -> Difference:
    """The difference of shares of samples (n,) and (m,) of which something holds; no value if there are none."""
    first, second = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    if not len(first) or not len(second):
        return Difference(before=None, now=None, method=method, n=0)
    return Difference(before=float(first.mean()), now=float(second.mean()), method=method, n=len(second), rates=rates)
