"""Statistics of the elements of each sample's gradient, in a form that can be merged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from . import kernels
from .errors import ConfigError

NAMED = ("max", "min", "mean", "std")


def norm_order(statistic: str) -> float | None:
    """The p of a p-norm by its name (`l1`, `l2`, `linf`, `l0.5`), None for `max`, `min`, `mean` and `std`.

    Args:
        statistic: the name.

    Returns:
        p, or None.

    Raises:
        ConfigError: no such statistic.

    Example:
        >>> norm_order("l0.5"), norm_order("linf"), norm_order("mean")
        (0.5, inf, None)
    """
    if statistic in NAMED:
        return None
    match = re.fullmatch(r"l(inf|\d+(?:\.\d+)?)", statistic)
    order = float(match.group(1)) if match else 0.0
    if order <= 0:
        raise ConfigError(
            f"no statistic {statistic!r}: use {', '.join(NAMED)}, or a p-norm such as l1, l2, linf, l0.5 (p above 0)"
        )
    return order


@dataclass(frozen=True)
class Wanted:
    """What has to be computed for some statistics.

    Attributes:
        extrema: largest and smallest element.
        mean: mean of the elements.
        spread: root of the sum of squares.
        orders: the p of further p-norms.
    """

    extrema: bool
    mean: bool
    spread: bool
    orders: tuple[float, ...]

    @classmethod
    def by(cls, statistics: Sequence[str]) -> Wanted:
        """What these statistics need.

        Args:
            statistics: names; see `norm_order`.

        Returns:
            The union over all of them.
        """
        orders = {order for order in map(norm_order, statistics) if order is not None and order not in (2.0, inf)}
        names = set(statistics)
        return cls(
            bool(names & {"max", "min", "linf"}),
            bool(names & {"mean", "std"}),
            bool(names & {"std", "l2"}),
            tuple(sorted(orders)),
        )


@dataclass
class Moments:
    """Statistics of the elements of each sample's gradient, in a form that can be merged.

    Attributes:
        wanted: which of the attributes below are kept.
        count: number of elements of each sample.
        maximum: (N,) float64, -inf for no elements.
        minimum: (N,) float64, inf for no elements.
        mean: (N,) float64.
        spread: (N,) float64: root of the sum of squared deviations from the mean, or from zero if no mean is kept.
        norms: (N,) float64 for every order.
    """

    wanted: Wanted
    count: Tensor
    maximum: Tensor
    minimum: Tensor
    mean: Tensor
    spread: Tensor
    norms: dict[float, Tensor]

    @classmethod
    def empty(cls, samples: int, wanted: Wanted, device: torch.device) -> Moments:
        """Statistics of no elements.

        Args:
            samples: N.
            wanted: what is kept.
            device: where.

        Returns:
            Moments to merge others into.
        """
        zero = torch.zeros(samples, dtype=torch.float64, device=device)
        norms = {order: zero.clone() for order in wanted.orders}
        return cls(
            wanted, zero.clone(), torch.full_like(zero, -inf), torch.full_like(zero, inf), zero.clone(), zero, norms
        )

    @classmethod
    def blank(cls, samples: int, elements: int, wanted: Wanted, device: torch.device) -> Moments:
        """Moments to be filled in, of so many elements of each sample; zero where nothing is filled in.

        Args:
            samples: N.
            elements: number of elements of each sample.
            wanted: what is kept.
            device: where.

        Returns:
            Moments whose attributes may share one tensor: merge them into others, never others into them.
        """
        zero = torch.zeros(samples, dtype=torch.float64, device=device)
        count = torch.full_like(zero, elements)
        return cls(wanted, count, zero, zero, zero, zero, dict.fromkeys(wanted.orders, zero))

    def merge(self, rows: slice, other: Moments) -> None:
        """Takes in further elements of some samples.

        Args:
            rows: the samples that `other` describes.
            other: statistics of other elements.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
        """
        mine, theirs = self.count[rows], other.count
        total = mine + theirs
        if self.wanted.extrema:
            self.maximum[rows] = torch.maximum(self.maximum[rows], other.maximum)
            self.minimum[rows] = torch.minimum(self.minimum[rows], other.minimum)
        if self.wanted.mean:
            share = torch.where(total > 0, theirs / total.clamp(min=1), 0.0)
            difference = other.mean - self.mean[rows]
            between = difference * (mine * share).sqrt()
            self.mean[rows] += difference * share
            if self.wanted.spread:
                self.spread[rows] = self.spread[rows].hypot(other.spread).hypot(between)
        elif self.wanted.spread:
            self.spread[rows] = self.spread[rows].hypot(other.spread)
        for order, norm in self.norms.items():
            norm[rows] = join_norms(norm[rows], other.norms[order], order)
        self.count[rows] = total

    def to(self, device: torch.device) -> Moments:
        """The same moments on another device.

        Args:
            device: where.

        Returns:
            Moments there; these ones if they are there already.
        """
        if self.count.device == device:
            return self
        norms = {order: norm.to(device) for order, norm in self.norms.items()}
        return Moments(
            self.wanted,
            self.count.to(device),
            self.maximum.to(device),
            self.minimum.to(device),
            self.mean.to(device),
            self.spread.to(device),
            norms,
        )

    def statistic(self, name: str) -> Tensor:
        """A statistic of every sample.

        Args:
            name: one of those asked for.

        Returns:
            (N,) float64. `std` divides by the number of elements less one, and is 0 for one element; p-norms are the
            sum of |g|^p to the power 1/p.
        """
        order = norm_order(name)
        if order is not None and order in self.norms:
            return self.norms[order]
        if name == "std":
            return self.spread / (self.count - 1).clamp(min=1).sqrt()
        if order == 2:
            return self.spread.hypot(self.mean * self.count.sqrt()) if self.wanted.mean else self.spread
        if order == inf:
            return torch.maximum(self.maximum, -self.minimum)
        return {"max": self.maximum, "min": self.minimum, "mean": self.mean}[name]


def join_norms(one: Tensor, other: Tensor, order: float) -> Tensor:
    """The p-norm of elements of which one part has p-norm `one` and the others `other`, without leaving the range."""
    if order == 1:
        return one + other
    largest = torch.maximum(one, other)
    divisor = torch.where(largest > 0, largest, 1.0)
    joined = divisor * ((one / divisor) ** order + (other / divisor) ** order) ** (1 / order)
    return torch.where(largest > 0, joined, largest)


def measure_exactly(block: Tensor, wanted: Wanted) -> Moments:
    """Moments of rows of elements in float64, in two passes and scaled to magnitude one.

    Args:
        block: (n, p) with p of at least one.
        wanted: what to compute.

    Returns:
        Moments of n samples.
    """
    found = Moments.blank(len(block), block.shape[1], wanted, block.device)
    fast = kernels.row_moments(block, about_mean=wanted.mean) if set(wanted.orders) <= {1.0} else None
    if fast is not None:
        found.maximum, found.minimum, found.mean, found.spread, magnitudes = fast.unbind(1)
        found.norms = dict.fromkeys(found.norms, magnitudes)
        return found
    values = block.double()
    if wanted.extrema:
        found.maximum, found.minimum = values.amax(1), values.amin(1)
    if wanted.mean:
        found.mean = values.mean(1)
    if wanted.spread:
        about = values - found.mean.unsqueeze(1) if wanted.mean else values
        found.spread = scaled_norm(about.abs(), 2.0)
    for order in wanted.orders:
        found.norms[order] = values.abs().sum(1) if order == 1 else scaled_norm(values.abs(), order)
    return found


def scaled_norm(magnitude: Tensor, order: float) -> Tensor:
    """The p-norm of each row of non-negative float64 numbers, scaled so that powers neither under- nor overflow."""
    largest = magnitude.amax(1, keepdim=True)
    divisor = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return divisor.squeeze(1) * ((magnitude / divisor) ** order).sum(1) ** (1 / order)
