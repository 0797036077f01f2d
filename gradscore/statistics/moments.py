"""Moments of the elements of each sample's gradient, in a form that can be merged over blocks and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels

Array = Any
"""NumPy arrays on the CPU, PyTorch tensors elsewhere, all of them float64."""

Sums = Callable[[Tensor], Tensor]
"""From rows of elements (n, p), float32 or float64, to sums over each row (n, c) float64, which add up over parts."""


@dataclass(frozen=True)
class Wanted:
    """What has to be computed for some statistics.

    Attributes:
        extrema: largest and smallest element.
        mean: mean of the elements.
        spread: root of the sum of squares.
        orders: the p of further p-norms.
        sums: further sums over the elements, by the name of the statistic that asks for them.
    """

    extrema: bool = False
    mean: bool = False
    spread: bool = False
    orders: tuple[float, ...] = ()
    sums: tuple[tuple[str, Sums], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is what one compiled loop gives: of p-norms that of order 1 alone, and no further sums."""
        return not self.sums and set(self.orders) <= {1.0}


@dataclass
class Moments:
    """Moments of the elements of each sample's gradient.

    They stay where the gradients are, so that a GPU need not wait for a copy. On the CPU they are NumPy arrays: of some
    tens of numbers NumPy makes ten times as many operations a second as PyTorch, and there are a dozen for every
    parameter of every batch.

    Attributes:
        wanted: which of the attributes below are kept.
        count: (N,) number of elements of each sample.
        maximum: (N,), -inf for no elements.
        minimum: (N,), inf for no elements.
        mean: (N,).
        spread: (N,): root of the sum of squared deviations from the mean, or from zero if no mean is kept.
        norms: (N,) for every order.
        sums: (N, c) by name.
    """

    wanted: Wanted
    count: Array
    maximum: Array
    minimum: Array
    mean: Array
    spread: Array
    norms: dict[float, Array]
    sums: dict[str, Array]

    @classmethod
    def empty(cls, samples: int, wanted: Wanted, device: torch.device) -> Moments:
        """Moments of no elements, to merge others into.

        Args:
            samples: N.
            wanted: what is kept.
            device: where the gradients are.
        """

        def filled(value: float) -> Array:
            return native(torch.full((samples,), value, dtype=torch.float64, device=device))

        norms = {order: filled(0) for order in wanted.orders}
        return cls(wanted, filled(0), filled(-inf), filled(inf), filled(0), filled(0), norms, {})

    @classmethod
    def blank(cls, samples: int, elements: int, wanted: Wanted, device: torch.device) -> Moments:
        """Moments of elements that are all zero, to be filled in.

        Args:
            samples: N.
            elements: number of elements of each sample.
            wanted: what is kept.
            device: where the gradients are.

        Returns:
            Moments whose attributes may share one array: merge them into others, never others into them.
        """
        zero = native(torch.zeros(samples, dtype=torch.float64, device=device))
        rows = torch.zeros(samples, elements, device=device) if wanted.sums else None
        sums = {name: native(add_up(rows)) for name, add_up in wanted.sums if rows is not None}
        return cls(wanted, zero + float(elements), zero, zero, zero, zero, dict.fromkeys(wanted.orders, zero), sums)

    @classmethod
    def stacked(cls, several: Sequence[Moments]) -> Moments:
        """Moments of G groups of elements beside each other: attributes are (G, N)."""
        first = several[0]
        xp = first.xp
        return cls(
            first.wanted,
            xp.stack([each.count for each in several]),
            xp.stack([each.maximum for each in several]),
            xp.stack([each.minimum for each in several]),
            xp.stack([each.mean for each in several]),
            xp.stack([each.spread for each in several]),
            {order: xp.stack([each.norms[order] for each in several]) for order in first.norms},
            {name: xp.stack([each.sums[name] for each in several]) for name in first.sums},
        )

    @property
    def xp(self) -> Any:
        """NumPy or PyTorch: what the attributes belong to."""
        return torch if isinstance(self.count, Tensor) else np

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.count.device if isinstance(self.count, Tensor) else torch.device("cpu")

    def to(self, device: torch.device) -> Moments:
        """The same moments beside gradients on another device."""
        if self.device == device:
            return self

        def moved(values: Array) -> Array:
            return native(torch.as_tensor(values).to(device))

        count, maximum, minimum, mean, spread = map(
            moved, (self.count, self.maximum, self.minimum, self.mean, self.spread)
        )
        norms = {order: moved(norm) for order, norm in self.norms.items()}
        sums = {name: moved(each) for name, each in self.sums.items()}
        return Moments(self.wanted, count, maximum, minimum, mean, spread, norms, sums)

    def of(self, rows: Any) -> Moments:
        """The moments of some samples, or of some groups of elements: what is at these places of the first axis."""
        return Moments(
            self.wanted,
            self.count[rows],
            self.maximum[rows],
            self.minimum[rows],
            self.mean[rows],
            self.spread[rows],
            {order: norm[rows] for order, norm in self.norms.items()},
            {name: each[rows] for name, each in self.sums.items()},
        )

    @np.errstate(all="ignore")
    def merge(self, rows: slice, other: Moments) -> None:
        """Takes in further elements of some samples.

        Args:
            rows: the samples that `other` describes.
            other: moments of other elements.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
        """
        xp = self.xp
        mine, theirs = self.count[rows], other.count
        total = mine + theirs
        if self.wanted.extrema:
            self.maximum[rows] = xp.maximum(self.maximum[rows], other.maximum)
            self.minimum[rows] = xp.minimum(self.minimum[rows], other.minimum)
        if self.wanted.mean:
            share = xp.where(total > 0, theirs / total.clip(min=1), 0.0)
            difference = other.mean - self.mean[rows]
            between = difference * xp.sqrt(mine * share)
            self.mean[rows] += difference * share
            if self.wanted.spread:
                self.spread[rows] = xp.hypot(xp.hypot(self.spread[rows], other.spread), between)
        elif self.wanted.spread:
            self.spread[rows] = xp.hypot(self.spread[rows], other.spread)
        for order, norm in self.norms.items():
            norm[rows] = join_norms(norm[rows], other.norms[order], order)
        for name, each in other.sums.items():
            self.sums.setdefault(name, self.count[:, None] * xp.zeros_like(each[:1]))[rows] += each
        self.count[rows] = total


def join_norms(one: Array, other: Array, order: float) -> Array:
    """The p-norm of elements of which one part has p-norm `one` and the others `other`, without leaving the range."""
    if order == 1:
        return one + other
    xp: Any = torch if isinstance(one, Tensor) else np
    largest = xp.maximum(one, other)
    divisor = xp.where(largest > 0, largest, 1.0)
    joined = divisor * ((one / divisor) ** order + (other / divisor) ** order) ** (1 / order)
    return xp.where(largest > 0, joined, largest)


def measure_exactly(block: Tensor, wanted: Wanted) -> Moments:
    """Moments of rows of elements in float64, in two passes and scaled to magnitude one.

    Args:
        block: (n, p) with p of at least one.
        wanted: what to compute.

    Returns:
        Moments of n samples.
    """
    count = native(torch.full((len(block),), float(block.shape[1]), dtype=torch.float64, device=block.device))
    sums = own_sums(block, wanted)
    fast = kernels.row_moments(block, about_mean=wanted.mean) if set(wanted.orders) <= {1.0} else None
    if fast is not None:
        maximum, minimum, mean, spread, magnitudes = fast
        return Moments(wanted, count, maximum, minimum, mean, spread, dict.fromkeys(wanted.orders, magnitudes), sums)
    values = block.double()
    nothing = values.new_zeros(len(values))
    ends = [values.amax(1), values.amin(1)] if wanted.extrema else [nothing, nothing]
    middle = values.mean(1) if wanted.mean else nothing
    about = scaled_norm((values - middle.unsqueeze(1)).abs(), 2.0) if wanted.spread else nothing
    orders = [values.abs().sum(1) if order == 1 else scaled_norm(values.abs(), order) for order in wanted.orders]
    maximum, minimum, mean, spread, *norms = native(torch.stack([*ends, middle, about, *orders]))
    return Moments(wanted, count, maximum, minimum, mean, spread, dict(zip(wanted.orders, norms, strict=True)), sums)


def measure_together(blocks: Sequence[Tensor], wanted: Wanted) -> Moments:
    """As `measure_exactly` of several blocks, by as few calls as there can be.

    Args:
        blocks: (n, p) with p of at least one, which may differ from block to block; at least one of them.
        wanted: what to compute.

    Returns:
        Moments of the G blocks beside each other: attributes are (G, n).
    """
    fast = kernels.moments_of_all(blocks, about_mean=wanted.mean) if wanted.is_plain else None
    if fast is not None:
        widths = np.array([[block.shape[1]] for block in blocks], dtype=np.float64)
        maximum, minimum, mean, spread, magnitudes = fast
        count = np.broadcast_to(widths, mean.shape)
        return Moments(wanted, count, maximum, minimum, mean, spread, dict.fromkeys(wanted.orders, magnitudes), {})
    alike: dict[int, list[int]] = {}
    for place, block in enumerate(blocks):
        alike.setdefault(block.shape[1], []).append(place)
    rows, found = len(blocks[0]), {}
    for places in alike.values():
        measured = measure_exactly(torch.cat([blocks[place] for place in places]), wanted)
        for turn, place in enumerate(places):
            found[place] = measured.of(slice(turn * rows, (turn + 1) * rows))
    return Moments.stacked([found[place] for place in range(len(blocks))])


def own_sums(block: Tensor, wanted: Wanted) -> dict[str, Array]:
    """The sums that statistics ask for beyond the usual ones, of rows of elements (n, p)."""
    return {name: native(add_up(block)) for name, add_up in wanted.sums}


def native(values: Tensor) -> Array:
    """A float64 tensor in the form of moments: an array if it is on the CPU, itself otherwise."""
    values = values.detach()
    return values.numpy() if values.device.type == "cpu" else values


def scaled_norm(magnitude: Tensor, order: float) -> Tensor:
    """The p-norm of each row of non-negative float64 numbers, scaled so that powers neither under- nor overflow."""
    largest = magnitude.amax(1, keepdim=True)
    divisor = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return divisor.squeeze(1) * ((magnitude / divisor) ** order).sum(1) ** (1 / order)
