"""Statistics of the elements of each sample's gradient, in a form that can be merged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..errors import ConfigError
from ..system import FloatArray

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

    They are NumPy arrays on the host, wherever the gradients were: of some tens of numbers NumPy makes ten times as
    many operations a second as PyTorch, and there are a dozen for every parameter of every batch.

    Attributes:
        wanted: which of the attributes below are kept.
        count: number of elements of each sample.
        maximum: (N,), -inf for no elements.
        minimum: (N,), inf for no elements.
        mean: (N,).
        spread: (N,): root of the sum of squared deviations from the mean, or from zero if no mean is kept.
        norms: (N,) for every order.
    """

    wanted: Wanted
    count: FloatArray
    maximum: FloatArray
    minimum: FloatArray
    mean: FloatArray
    spread: FloatArray
    norms: dict[float, FloatArray]

    @classmethod
    def empty(cls, samples: int, wanted: Wanted) -> Moments:
        """Statistics of no elements.

        Args:
            samples: N.
            wanted: what is kept.

        Returns:
            Moments to merge others into.
        """
        count, mean, spread = np.zeros((3, samples))
        norms = {order: np.zeros(samples) for order in wanted.orders}
        return cls(wanted, count, np.full(samples, -inf), np.full(samples, inf), mean, spread, norms)

    @classmethod
    def blank(cls, samples: int, elements: int, wanted: Wanted) -> Moments:
        """Moments to be filled in, of so many elements of each sample; zero where nothing is filled in.

        Args:
            samples: N.
            elements: number of elements of each sample.
            wanted: what is kept.

        Returns:
            Moments whose attributes may share one array: merge them into others, never others into them.
        """
        zero = np.zeros(samples)
        count = np.full(samples, float(elements))
        return cls(wanted, count, zero, zero, zero, zero, dict.fromkeys(wanted.orders, zero))

    @classmethod
    def stacked(cls, several: Sequence[Moments]) -> Moments:
        """Moments of G groups of elements beside each other: attributes are (G, N)."""
        return cls(
            several[0].wanted,
            np.stack([each.count for each in several]),
            np.stack([each.maximum for each in several]),
            np.stack([each.minimum for each in several]),
            np.stack([each.mean for each in several]),
            np.stack([each.spread for each in several]),
            {order: np.stack([each.norms[order] for each in several]) for order in several[0].norms},
        )

    def of(self, rows: slice) -> Moments:
        """The moments of some samples."""
        return Moments(
            self.wanted,
            self.count[rows],
            self.maximum[rows],
            self.minimum[rows],
            self.mean[rows],
            self.spread[rows],
            {order: norm[rows] for order, norm in self.norms.items()},
        )

    @np.errstate(all="ignore")
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
            self.maximum[rows] = np.maximum(self.maximum[rows], other.maximum)
            self.minimum[rows] = np.minimum(self.minimum[rows], other.minimum)
        if self.wanted.mean:
            share = np.where(total > 0, theirs / np.maximum(total, 1), 0.0)
            difference = other.mean - self.mean[rows]
            between = difference * np.sqrt(mine * share)
            self.mean[rows] += difference * share
            if self.wanted.spread:
                self.spread[rows] = np.hypot(np.hypot(self.spread[rows], other.spread), between)
        elif self.wanted.spread:
            self.spread[rows] = np.hypot(self.spread[rows], other.spread)
        for order, norm in self.norms.items():
            norm[rows] = join_norms(norm[rows], other.norms[order], order)
        self.count[rows] = total

    @np.errstate(all="ignore")
    def statistic(self, name: str) -> FloatArray:
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
            return self.spread / np.sqrt(np.maximum(self.count - 1, 1))
        if order == 2:
            return np.hypot(self.spread, self.mean * np.sqrt(self.count)) if self.wanted.mean else self.spread
        if order == inf:
            return np.maximum(self.maximum, -self.minimum)
        return {"max": self.maximum, "min": self.minimum, "mean": self.mean}[name]


def join_norms(one: FloatArray, other: FloatArray, order: float) -> FloatArray:
    """The p-norm of elements of which one part has p-norm `one` and the others `other`, without leaving the range."""
    if order == 1:
        return one + other
    largest = np.maximum(one, other)
    divisor = np.where(largest > 0, largest, 1.0)
    joined = divisor * ((one / divisor) ** order + (other / divisor) ** order) ** (1 / order)
    return np.where(largest > 0, joined, largest)


def measure_exactly(block: Tensor, wanted: Wanted) -> Moments:
    """Moments of rows of elements in float64, in two passes and scaled to magnitude one.

    Args:
        block: (n, p) with p of at least one.
        wanted: what to compute.

    Returns:
        Moments of n samples.
    """
    count = np.full(len(block), float(block.shape[1]))
    fast = kernels.row_moments(block, about_mean=wanted.mean) if set(wanted.orders) <= {1.0} else None
    if fast is not None:
        maximum, minimum, mean, spread, magnitudes = fast.T
        return Moments(wanted, count, maximum, minimum, mean, spread, dict.fromkeys(wanted.orders, magnitudes))
    values = block.double()
    nothing = values.new_zeros(len(values))
    ends = [values.amax(1), values.amin(1)] if wanted.extrema else [nothing, nothing]
    middle = values.mean(1) if wanted.mean else nothing
    about = scaled_norm((values - middle.unsqueeze(1)).abs(), 2.0) if wanted.spread else nothing
    orders = [values.abs().sum(1) if order == 1 else scaled_norm(values.abs(), order) for order in wanted.orders]
    maximum, minimum, mean, spread, *norms = on_host(torch.stack([*ends, middle, about, *orders]))
    return Moments(wanted, count, maximum, minimum, mean, spread, dict(zip(wanted.orders, norms, strict=True)))


def on_host(values: Tensor) -> FloatArray:
    """A float64 tensor as an array."""
    array: FloatArray = values.detach().cpu().numpy()
    return array


def scaled_norm(magnitude: Tensor, order: float) -> Tensor:
    """The p-norm of each row of non-negative float64 numbers, scaled so that powers neither under- nor overflow."""
    largest = magnitude.amax(1, keepdim=True)
    divisor = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return divisor.squeeze(1) * ((magnitude / divisor) ** order).sum(1) ** (1 / order)
