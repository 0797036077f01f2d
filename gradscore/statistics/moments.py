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


@dataclass(frozen=True)
class Wanted:
    """What has to be computed for some statistics.

    Attributes:
        extrema: largest and smallest element.
        mean: mean of the elements.
        deviation: root of the sum of squared deviations.
        orders: the p of further p-norms.
    """

    extrema: bool = False
    mean: bool = False
    deviation: bool = False
    orders: tuple[float, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is what one compiled loop gives: of p-norms that of order 1 alone."""
        return set(self.orders) <= {1.0}


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
        deviation: (N,): root of the sum of squared deviations from the mean, or from zero if no mean is kept.
        norms: (N,) for every order.
    """

    wanted: Wanted
    count: Array
    maximum: Array
    minimum: Array
    mean: Array
    deviation: Array
    norms: dict[float, Array]

    @classmethod
    def of_zeros(cls, samples: int, elements: int, wanted: Wanted, device: torch.device) -> Moments:
        """Moments of elements that are all zero, or of none.

        Args:
            samples: N.
            elements: number of elements of each sample.
            wanted: what is kept.
            device: where the gradients are.
        """

        def filled(value: float) -> Array:
            return as_array(torch.full((samples,), value, dtype=torch.float64, device=device))

        largest, smallest = (0.0, 0.0) if elements else (-inf, inf)
        norms = {order: filled(0) for order in wanted.orders}
        return cls(wanted, filled(elements), filled(largest), filled(smallest), filled(0), filled(0), norms)

    @classmethod
    def of_rows(cls, rows: kernels.RowMoments, count: Array, wanted: Wanted) -> Moments:
        """What a kernel found of rows of elements; of p-norms that of order 1 alone."""
        norms = dict.fromkeys(wanted.orders, rows.magnitudes)
        return cls(wanted, count, rows.maximum, rows.minimum, rows.mean, rows.deviation, norms)

    @classmethod
    def stacked(cls, several: Sequence[Moments]) -> Moments:
        """Moments of G groups of elements beside each other: attributes are (G, N)."""
        return several[0]._changed(lambda *each: several[0].xp.stack(each), *several[1:])

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.count.device if isinstance(self.count, Tensor) else torch.device("cpu")

    @property
    def xp(self) -> Any:
        """NumPy or PyTorch: what the attributes belong to."""
        return torch if isinstance(self.count, Tensor) else np

    def to(self, device: torch.device) -> Moments:
        """The same moments beside gradients on another device."""
        if self.device == device:
            return self
        return self._changed(lambda each: as_array(torch.as_tensor(each).to(device)))

    def of(self, rows: Any) -> Moments:
        """The moments of some samples, or of some groups of elements: what is at these places of the first axis."""
        return self._changed(lambda each: each[rows])

    def _changed(self, change: Callable[..., Array], *others: Moments) -> Moments:
        """With every attribute what is made of it, and of the same of others."""
        every = (self, *others)
        return Moments(
            self.wanted,
            change(*[each.count for each in every]),
            change(*[each.maximum for each in every]),
            change(*[each.minimum for each in every]),
            change(*[each.mean for each in every]),
            change(*[each.deviation for each in every]),
            {order: change(*[each.norms[order] for each in every]) for order in self.norms},
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
        if self.wanted.deviation:
            self.deviation[rows] = xp.hypot(self.deviation[rows], other.deviation)
        if self.wanted.mean:
            share = xp.where(total > 0, theirs / total.clip(min=1), 0.0)
            difference = other.mean - self.mean[rows]
            if self.wanted.deviation:
                self.deviation[rows] = xp.hypot(self.deviation[rows], difference * xp.sqrt(mine * share))
            self.mean[rows] += difference * share
        for order, norm in self.norms.items():
            norm[rows] = _join_norms(xp, norm[rows], other.norms[order], order)
        self.count[rows] = total


def _join_norms(xp: Any, one: Array, other: Array, order: float) -> Array:
    """The p-norm of elements of which one part has p-norm `one` and the others `other`, without leaving the range."""
    if order == 1:
        return one + other
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
    count = as_array(torch.full((len(block),), float(block.shape[1]), dtype=torch.float64, device=block.device))
    fast = kernels.row_moments(block, about_mean=wanted.mean) if wanted.is_plain else None
    if fast is not None:
        return Moments.of_rows(fast, count, wanted)
    values = block.double()
    nothing = values.new_zeros(len(values))
    ends = [values.amax(1), values.amin(1)] if wanted.extrema else [nothing, nothing]
    middle = values.mean(1) if wanted.mean else nothing
    about = scaled_norm((values - middle.unsqueeze(1)).abs(), 2.0) if wanted.deviation else nothing
    orders = [values.abs().sum(1) if order == 1 else scaled_norm(values.abs(), order) for order in wanted.orders]
    maximum, minimum, mean, deviation, *norms = as_array(torch.stack([*ends, middle, about, *orders]))
    by_order = dict(zip(wanted.orders, norms, strict=True))
    return Moments(wanted, count, maximum, minimum, mean, deviation, by_order)


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
        return Moments.of_rows(fast, np.broadcast_to(widths, fast.mean.shape), wanted)
    alike: dict[int, list[int]] = {}
    for place, block in enumerate(blocks):
        alike.setdefault(block.shape[1], []).append(place)
    rows, found = len(blocks[0]), {}
    for places in alike.values():
        measured = measure_exactly(torch.cat([blocks[place] for place in places]), wanted)
        for turn, place in enumerate(places):
            found[place] = measured.of(slice(turn * rows, (turn + 1) * rows))
    return Moments.stacked([found[place] for place in range(len(blocks))])


def as_array(values: Tensor) -> Array:
    """A float64 tensor in the form of moments: an array if it is on the CPU, itself otherwise."""
    values = values.detach()
    return values.numpy() if values.device.type == "cpu" else values


def scaled_norm(magnitude: Tensor, order: float) -> Tensor:
    """The p-norm of each row of non-negative float64 numbers, scaled so that powers neither under- nor overflow."""
    largest = magnitude.amax(1, keepdim=True)
    divisor = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return divisor.squeeze(1) * ((magnitude / divisor) ** order).sum(1) ** (1 / order)
