"""Changes of rates: bounds that hold for small sets and rare changes, and the smallest drop that a test would notice.

A bound is the difference at which the score statistic, whose variance is that of the likeliest rates with this very
difference, reaches a quantile of the normal distribution; Wald's bounds are too narrow here. Of models that are worse
by exactly a margin of 0.02, at most 6 % are above a lower bound at 95 %, by enumeration for 81 to 523 samples of which
2 to 10 % change.

The smallest drop that is noticed in four of five cases follows from the binomial distribution itself. Normal errors at
what was found say too little: where nothing changed on fifty samples, a drop that they call noticed in four of five
cases is noticed in 6 of 100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from scipy.special import betaincinv

POWER = 0.8
"""The chance of being noticed that the smallest drop is quoted for, as usual in the planning of trials."""

STEPS = 50
"""Bisections: beyond the resolution of rates of any number of samples."""


class Rates(Protocol):
    """A rate before and now."""

    def bound(self, quantile: float) -> float:
        """Bound of the change in [-1, 1], now minus before.

        Args:
            quantile: of the normal distribution; below zero for a lower bound, above for an upper one.
        """

    def complement(self) -> Self:
        """The rate of samples of which it does not hold."""

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """The smallest drop that is shown to be more than a margin in four of five cases.

        Args:
            margin: the accepted drop.
            quantile: of the normal distribution, for the bound that has to be beyond the margin.

        Returns:
            The drop; None if none would be noticed so often.
        """


@dataclass(frozen=True)
class PairedRates:
    """A rate before and now, of the same samples; see `Rates`.

    The smallest drop is one where as many samples are won as were found.

    Source: Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design", Statistics in Medicine 17, 1998, for the bound.

    Attributes:
        lost: samples of which it held before and does not now.
        won: samples of which it holds now and did not before.
        held: all samples of which it held before.
        n: all samples.
    """

    lost: int
    won: int
    held: int
    n: int

    def bound(self, quantile: float) -> float:
        """Bound of the change."""
        lost, won, n = self.lost, self.won, self.n

        def score(change: float) -> float:
            sum_of_roots = -won - lost + (2 * n - won + lost) * change
            product = -8 * n * lost * change * (1 - change)
            share_lost = (np.sqrt(max(0.0, sum_of_roots**2 - product)) - sum_of_roots) / (4 * n)
            return _statistic(won - lost - n * change, n * (2 * share_lost + change * (1 - change)))

        return _bound(score, (won - lost) / n, quantile)

    def complement(self) -> PairedRates:
        """The rate of samples of which it does not hold."""
        return PairedRates(lost=self.won, won=self.lost, held=self.n - self.held, n=self.n)

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """The smallest drop that is noticed."""
        fewest = _fewest(self.held, lambda lost: replace(self, lost=lost).bound(quantile) < -margin)
        if fewest is None:
            return None
        share = _share(fewest, self.n)
        return None if share > self.held / self.n else share - self.won / self.n


@dataclass(frozen=True)
class TwoRates:
    """A rate before of some samples, and now of others; see `Rates`.

    The smallest drop is one from the rate that was found before.

    Source: Miettinen and Nurminen, "Comparative analysis of two rates", Statistics in Medicine 4, 1985, for the bound.

    Attributes:
        held: samples of which it held before.
        n_before: all samples then.
        holds: samples of which it holds now.
        n_now: all samples now.
    """

    held: int
    n_before: int
    holds: int
    n_now: int

    def bound(self, quantile: float) -> float:
        """Bound of the change."""
        n = self.n_before + self.n_now

        def score(change: float) -> float:
            before = self._likeliest(change)
            now = before + change
            variance = now * (1 - now) / self.n_now + before * (1 - before) / self.n_before
            distance = self.holds / self.n_now - self.held / self.n_before - change
            return _statistic(distance, variance * n / (n - 1))

        return _bound(score, self.holds / self.n_now - self.held / self.n_before, quantile)

    def complement(self) -> TwoRates:
        """The rate of samples of which it does not hold."""
        return TwoRates(self.n_before - self.held, self.n_before, self.n_now - self.holds, self.n_now)

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """The smallest drop that is noticed."""

        def is_shown(lacking: int) -> bool:
            return replace(self, holds=self.n_now - lacking).bound(quantile) < -margin

        fewest = _fewest(self.n_now, is_shown)
        return None if fewest is None else self.held / self.n_before - (1 - _share(fewest, self.n_now))

    def _likeliest(self, change: float) -> float:
        """The likeliest rate before, where that now is greater by `change`: a root of a cubic equation."""
        n, held = self.n_before + self.n_now, self.held + self.holds
        c2 = ((self.n_before + n) * change - n - held) / n
        c1 = (self.n_before * change - n - 2 * self.held) * change / n + held / n
        c0 = self.held * change * (1 - change) / n
        q = (c2 / 3) ** 3 - c1 * c2 / 6 + c0 / 2
        p = float(np.copysign(np.sqrt(max(0.0, (c2 / 3) ** 2 - c1 / 3)), q))
        angle = (np.pi + np.arccos(np.clip(q / p**3 if p else 0.0, -1.0, 1.0))) / 3
        return float(np.clip(2 * p * np.cos(angle) - c2 / 3, max(0.0, -change), min(1.0, 1 - change)))


@dataclass(frozen=True)
class OverlappingRates:
    """A rate before of some samples, and now of samples some of which are the same; see `Rates`.

    The bound is by Wilson's limits of both rates, squared and added, less what the samples that are the same have in
    common; a correlation of few samples is corrected as the source does, since it would leave next to nothing of the
    limits. In the smallest drop, as many in proportion of those that are the same lack it, those that did before first.

    Source: method 10 of Newcombe, "Improved confidence intervals for the difference between binomial proportions based
    on paired data", Statistics in Medicine 17, 1998; Zou and Donner, "Construction of confidence limits about effect
    measures: a general approach", Statistics in Medicine 27, 2008.

    Attributes:
        apart: the rates of all.
        both: samples that are the same of which it held and holds.
        lost: those of which it held and does not now.
        won: those of which it did not and does now.
        common: all samples that are the same.
    """

    apart: TwoRates
    both: int
    lost: int
    won: int
    common: int

    @property
    def neither(self) -> int:
        """Samples that are the same of which it did not hold and does not."""
        return self.common - self.both - self.lost - self.won

    def bound(self, quantile: float) -> float:
        """Bound of the change."""
        apart, both, lost, won, neither = self.apart, self.both, self.lost, self.won, self.neither
        margins = (both + lost) * (won + neither) * (both + won) * (lost + neither)
        excess = both * neither - lost * won
        corrected = max(excess - self.common / 2, 0.0) if excess > 0 else excess
        phi = corrected / np.sqrt(margins) if margins else 0.0
        correlation = phi * self.common / np.sqrt(apart.n_before * apart.n_now)
        before, now = apart.held / apart.n_before, apart.holds / apart.n_now
        far_now = _wilson(apart.holds, apart.n_now, quantile) - now
        far_before = _wilson(apart.held, apart.n_before, -quantile) - before
        far = np.sqrt(max(0.0, far_now**2 + far_before**2 + 2 * correlation * far_now * far_before))
        return float(np.clip(now - before + np.copysign(far, quantile), -1.0, 1.0))

    def complement(self) -> OverlappingRates:
        """The rate of samples of which it does not hold."""
        return OverlappingRates(self.apart.complement(), self.neither, self.won, self.lost, self.common)

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """The smallest drop that is noticed."""
        apart = self.apart
        fewest = _fewest(apart.n_now, lambda lacking: self._with_lacking(lacking).bound(quantile) < -margin)
        return None if fewest is None else apart.held / apart.n_before - (1 - _share(fewest, apart.n_now))

    def _with_lacking(self, lacking: int) -> OverlappingRates:
        """The same samples before, so many of which lack it now."""
        apart, held = replace(self.apart, holds=self.apart.n_now - lacking), self.both + self.lost
        lacking_in_common = round(lacking * self.common / apart.n_now)
        lost = max(0, lacking_in_common - (self.common - held))
        won = max(0, self.common - held - lacking_in_common)
        return OverlappingRates(apart, held - lost, lost, won, self.common)


def _wilson(held: int, n: int, quantile: float) -> float:
    """Wilson's limit of a rate, below it for a negative quantile."""
    square = quantile**2
    middle = (held + square / 2) / (n + square)
    return float(middle + quantile * np.sqrt(held * (n - held) / n + square / 4) / (n + square))


def _statistic(distance: float, variance: float) -> float:
    return float(distance / np.sqrt(variance)) if variance > 0 else float(np.copysign(np.inf, distance))


def _bound(score: Callable[[float], float], found: float, quantile: float) -> float:
    """The change, from `found` to the end of [-1, 1] on the side of `quantile`, where |score| reaches |quantile|."""
    inside, outside = found, float(np.copysign(1.0, quantile))
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        if abs(score(middle)) < abs(quantile):
            inside = middle
        else:
            outside = middle
    return outside


def _fewest(most: int, is_shown: Callable[[int], bool]) -> int | None:
    """The smallest number up to `most` by which it is shown, by bisection; None if by none."""
    if not is_shown(most):
        return None
    too_few, enough = -1, most
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_shown(middle) else (middle, enough)
    return enough


def _share(fewest: int, n: int) -> float:
    """The share of samples of which `fewest` or more among n are found with a chance of `POWER`."""
    return float(betaincinv(fewest, n - fewest + 1, POWER)) if fewest else 0.0
