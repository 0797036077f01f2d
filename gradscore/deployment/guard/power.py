"""The smallest true drop of a rate that a gate notices in four of five cases, by the binomial distribution itself.

Normal errors at what was found say too little: where nothing changed on fifty samples, a drop that they call noticed in
four of five cases is noticed in 6 of 100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import betaincinv

from .score_bounds import overlapping_bound, paired_bound, unpaired_bound

POWER = 0.8
"""The chance of being noticed that the smallest drop is quoted for, as usual in the planning of trials."""


@dataclass(frozen=True)
class PairedRates:
    """A rate before and now, of the same samples.

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
        """The bound of the change for a quantile of the normal distribution."""
        return paired_bound(self.lost, self.won, self.n, quantile)

    def complement(self) -> PairedRates:
        """The rate of samples of which it does not hold."""
        return PairedRates(lost=self.won, won=self.lost, held=self.n - self.held, n=self.n)

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """The smallest drop that is shown to be more than a margin, where as many are won as were found.

        Args:
            margin: the accepted drop.
            quantile: of the normal distribution, for the bound that has to be beyond the margin.

        Returns:
            The drop; None if no change of those of which it held would be noticed so often.
        """
        fewest = _fewest(self.held, lambda lost: paired_bound(lost, self.won, self.n, quantile) < -margin)
        if fewest is None:
            return None
        share = _share(fewest, self.n)
        return None if share > self.held / self.n else share - self.won / self.n


@dataclass(frozen=True)
class TwoRates:
    """A rate before of some samples, and now of others.

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
        """The bound of the change for a quantile of the normal distribution."""
        return unpaired_bound(self.held, self.n_before, self.holds, self.n_now, quantile)

    def complement(self) -> TwoRates:
        """The rate of samples of which it does not hold."""
        return TwoRates(self.n_before - self.held, self.n_before, self.n_now - self.holds, self.n_now)

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """As of `PairedRates`, below the rate that was found before."""

        def shown(lacking: int) -> bool:
            return unpaired_bound(self.held, self.n_before, self.n_now - lacking, self.n_now, quantile) < -margin

        fewest = _fewest(self.n_now, shown)
        return None if fewest is None else self.held / self.n_before - (1 - _share(fewest, self.n_now))


@dataclass(frozen=True)
class OverlappingRates:
    """A rate before of some samples, and now of samples some of which are the same.

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
    def held(self) -> int:
        """Samples that are the same of which it held."""
        return self.both + self.lost

    def bound(self, quantile: float) -> float:
        """The bound of the change for a quantile of the normal distribution."""
        apart, neither = self.apart, self.common - self.both - self.lost - self.won
        cells = (self.both, self.lost, self.won, neither)
        return overlapping_bound(apart.held, apart.n_before, apart.holds, apart.n_now, cells, quantile)

    def complement(self) -> OverlappingRates:
        """The rate of samples of which it does not hold."""
        neither = self.common - self.both - self.lost - self.won
        return OverlappingRates(self.apart.complement(), neither, self.won, self.lost, self.common)

    def smallest_drop(self, *, margin: float, quantile: float) -> float | None:
        """As of `TwoRates`; as many in proportion of those that are the same lack it, those that did before first."""
        apart = self.apart

        def shown(lacking: int) -> bool:
            return self._lacking(lacking).bound(quantile) < -margin

        fewest = _fewest(apart.n_now, shown)
        return None if fewest is None else apart.held / apart.n_before - (1 - _share(fewest, apart.n_now))

    def _lacking(self, lacking: int) -> OverlappingRates:
        """The same samples before, so many of which lack it now."""
        apart = TwoRates(self.apart.held, self.apart.n_before, self.apart.n_now - lacking, self.apart.n_now)
        here = round(lacking * self.common / self.apart.n_now)
        lost = max(0, here - (self.common - self.held))
        won = max(0, self.common - self.held - here)
        return OverlappingRates(apart, self.held - lost, lost, won, self.common)


def _fewest(most: int, shown: Callable[[int], bool]) -> int | None:
    """The smallest number up to `most` by which it is shown, by bisection; None if by none."""
    if not shown(most):
        return None
    too_few, enough = -1, most
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if shown(middle) else (middle, enough)
    return enough


def _share(fewest: int, n: int) -> float:
    """The share of samples of which `fewest` or more among n are found with a chance of `POWER`."""
    return float(betaincinv(fewest, n - fewest + 1, POWER)) if fewest else 0.0
