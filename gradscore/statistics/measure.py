"""From per-sample gradients of one parameter to their moments, without ever holding those of more than a few samples.

`Moments` can be merged over blocks and parameters. `measure` chooses the way: a closed form, parts of tied tables,
float64 at once of what is small, scalar products of factors, sums in the gradients' own precision on the CPU, and on an
accelerator, where looking for samples whose sums lose digits would mean to wait for it, sums in float64.

Sums of float32 lose digits where the mean is as large as the deviation from it, and where squares leave the range of
the type. The samples for which they do are reduced once more in float64, in two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..gradients import Convolved, Factored, PerSample, Tied, sample_slices
from ..kernels import LARGEST, MAGNITUDES, SMALLEST, SQUARES, TOTAL
from ..system import SQUARABLE, BoolArray, FloatArray, as_rows, squared_norms

Array = Any
"""NumPy arrays on the CPU, PyTorch tensors elsewhere, all of them float64."""


@dataclass(frozen=True)
class Wanted:
    """Moments that have to be computed for some statistics.

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
        """Whether one compiled loop gives all that is wanted: of p-norms that of order 1 alone."""
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
        _deviation: (N,): root of the sum of squared deviations from the mean, or from zero if no mean is kept; `l2` and
            `std` are the same either way.
        norms: (N,) for every order.
    """

    wanted: Wanted
    count: Array
    maximum: Array
    minimum: Array
    mean: Array
    _deviation: Array
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
        """Moments that a kernel found of rows of elements; of p-norms that of order 1 alone."""
        norms = dict.fromkeys(wanted.orders, rows.magnitudes)
        return cls(wanted, count, rows.maximum, rows.minimum, rows.mean, rows.deviation, norms)

    @classmethod
    def stacked(cls, several: Sequence[Moments]) -> Moments:
        """Moments of G groups of elements beside each other: attributes are (G, N)."""
        return several[0]._changed(lambda *each: several[0].xp.stack(each), *several[1:])

    @property
    def l2(self) -> Array:
        """Roots (N,) of the sums of squares; needs `deviation` among what is kept."""
        assert self.wanted.deviation, "a statistic of the root of the sum of squares says l2=True"
        return (
            self.xp.hypot(self._deviation, self.mean * self.xp.sqrt(self.count))
            if self.wanted.mean
            else self._deviation
        )

    @property
    def std(self) -> Array:
        """Standard deviations (N,), over one less than the number of elements; needs `deviation` and `mean`."""
        assert self.wanted.deviation, "a statistic of the standard deviation says std=True"
        assert self.wanted.mean, "a statistic of the standard deviation says std=True"
        return self._deviation / self.xp.sqrt((self.count - 1).clip(min=1))

    @property
    def device(self) -> torch.device:
        """Device of the moments."""
        return self.count.device if isinstance(self.count, Tensor) else torch.device("cpu")

    @property
    def xp(self) -> Any:
        """NumPy or PyTorch: what the attributes belong to."""
        return torch if isinstance(self.count, Tensor) else np

    def to(self, device: torch.device) -> Moments:
        """The same moments beside gradients on another device."""
        if self.device == device:
            return self
        return self._changed(lambda each: as_array(torch.as_tensor(each, device=device)))

    def of(self, rows: Any) -> Moments:
        """The moments of some samples, or of some groups of elements: what is at these places of the first axis."""
        if isinstance(rows, list) and self.xp is torch:
            # Once, and nothing is waited for.
            rows = torch.tensor(rows, device="cpu").to(self.device, non_blocking=True)
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
            change(*[each._deviation for each in every]),
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
            self._deviation[rows] = xp.hypot(self._deviation[rows], other._deviation)
        if self.wanted.mean:
            share = xp.where(total > 0, theirs / total.clip(min=1), 0.0)
            difference = other.mean - self.mean[rows]
            if self.wanted.deviation:
                self._deviation[rows] = xp.hypot(self._deviation[rows], difference * xp.sqrt(mine * share))
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
    if block.device.type != "cpu" and has_pivot(block, wanted):
        return of_pivoted_sums([PivotedSums.of(block, wanted)], [block.shape[1]], wanted).of(0)
    count = as_array(torch.full((len(block),), float(block.shape[1]), dtype=torch.float64, device=block.device))
    fast = kernels.moments_of_all([block], about_mean=wanted.mean) if wanted.is_plain else None
    if fast is not None:
        return Moments.of_rows(fast, count[None], wanted).of(0)
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
    """Moments of several blocks as of `measure_exactly`, by as few calls as there can be.

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


TIED_ELEMENTS = 1 << 24
"""Elements of the factors of tied embeddings that are copied at a time, 64 MiB of float32."""

ACCELERATOR_ELEMENTS = 1 << 25
"""Elements of a block on an accelerator, where few large reductions are better than many small ones.

256 samples of a ResNet-18 took 98 ms on an H100; with half of it 146 ms, with twice as much, and 0.8 GB of it, 94 ms.
"""

CACHE_ELEMENTS = 1 << 20
"""Elements of a block on the CPU: small enough to stay in the cache between the reductions.

8 gradients of 256 x 1152 took 4.0 ms with blocks of this size, 6.1 ms with a sixteenth and 4.7 ms with four times it.
"""

SMALL_ELEMENTS = 1 << 16
"""Blocks up to this size are reduced in float64 at once.

That took 0.06 ms here where sums in blocks took 0.09 ms; at four times the size 0.15 and 0.11 ms.
"""

TILE = 128
"""Positions whose scalar products with others are taken at a time: what is symmetric is computed once.

8 gradients of 3072 x 768 with 256 positions took 36 ms; 48 ms with tiles of 256, 46 ms with tiles of 32.
"""

GRAM_ELEMENTS = 1 << 22
"""Scalar products held at a time, 16 MiB of float32."""

TRUSTED = 1e-2
"""A squared norm at least this large beside the sum of those of the single outer products has all its digits.

The rounding of scalar products is of the size of that sum: float32 rounds by 6e-8, so the norm is good to about 3e-6.
"""


def measure(gradient: PerSample, wanted: Wanted) -> Moments:
    """Reduces per-sample gradients of one parameter.

    Args:
        gradient: the gradients.
        wanted: what to compute.

    Returns:
        Moments of all elements of every sample.
    """
    if not prod(gradient.shape):
        return Moments.of_zeros(len(gradient), 0, wanted, gradient.device)
    if has_closed_form(gradient):
        both = measure_together([each.flatten(1) for each in (gradient.left, gradient.right)], wanted)
        return of_outer_products(both.of(0), both.of(1))
    if isinstance(gradient, Tied):
        found = Moments.of_zeros(len(gradient), 0, wanted, gradient.device)
        for rows, part in gradient.parts(TIED_ELEMENTS):
            found.merge(rows, measure(part, wanted))
        return found
    if gradient.device.type != "cpu":
        return _on_accelerator(gradient, wanted)
    if _is_small(gradient):
        return measure_exactly(as_rows(gradient.dense(slice(None))), wanted)
    return _on_cpu(gradient, wanted)


def _is_small(gradient: PerSample) -> bool:
    """Whether a gradient is faster written out; not where windows of images are many times its size.

    A MobileNet with six such layers took 0.56 s for a batch, and takes 0.43 s.
    """
    if len(gradient) * prod(gradient.shape) > SMALL_ELEMENTS:
        return False
    return not (isinstance(gradient, Convolved) and gradient.has_loops())


# Outer products, in closed form.


def has_closed_form(gradient: PerSample) -> TypeGuard[Factored]:
    """Whether moments of the gradients follow from those of two vectors of each sample."""
    return isinstance(gradient, Factored) and gradient.is_outer_product


@np.errstate(all="ignore")
def of_outer_products(left: Moments, right: Moments) -> Moments:
    """Moments of outer products in closed form, from the moments of the two vectors.

    Args:
        left: of the one vector of every sample, of N samples or of G groups of N.
        right: of the other, likewise.

    Returns:
        Moments of the products, in the same form.
    """
    xp, wanted = left.xp, left.wanted
    norms = {order: left.norms[order] * right.norms[order] for order in wanted.orders}
    found = replace(left, count=left.count * right.count, norms=norms)
    if wanted.extrema:
        corners = [a * b for a in (left.maximum, left.minimum) for b in (right.maximum, right.minimum)]
        found.maximum = xp.maximum(xp.maximum(*corners[:2]), xp.maximum(*corners[2:]))
        found.minimum = xp.minimum(xp.minimum(*corners[:2]), xp.minimum(*corners[2:]))
    if wanted.mean:
        found.mean = left.mean * right.mean
    if wanted.deviation:
        found._deviation = left._deviation * right._deviation
        if wanted.mean:
            # Sum of squares of a b about its mean: every term is positive, so nothing cancels.
            found._deviation = xp.hypot(found._deviation, left._deviation * right.mean * xp.sqrt(right.count))
            found._deviation = xp.hypot(found._deviation, right._deviation * left.mean * xp.sqrt(left.count))
    return found


# On an accelerator.


class PivotedSums(NamedTuple):
    """Sums over each sample's elements that lose no digits, each by one operation.

    Where the mean is wanted, they are of differences in float64 from one element, the pivot. Their cancellation is
    harmless: a pivot far from the mean is itself one of the p elements, so that what is left is at least a p-th.

    Attributes:
        largest: (n,) the largest element.
        smallest: (n,) the smallest.
        pivot: (n,) float64, zero where no mean is wanted.
        total: (n,) float64, the sum of the differences.
        distance: (n,) float64, the root of the sum of their squares.
        magnitudes: (n,) the sum of magnitudes.

    What is not wanted is zero.

    Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", on shifted data.
    """

    largest: Tensor
    smallest: Tensor
    pivot: Tensor
    total: Tensor
    distance: Tensor
    magnitudes: Tensor

    @classmethod
    def of(cls, block: Tensor, wanted: Wanted, pivot: Tensor | None = None) -> PivotedSums:
        """Sums of elements (n, p); with the pivot (n,) of other elements of the same samples, if there were any."""
        nothing = block.new_zeros(len(block), dtype=torch.float64)
        if pivot is None:
            pivot = block[:, 0].double() if wanted.mean else nothing
        largest = smallest = total = distance = magnitudes = nothing
        if wanted.extrema:
            smallest, largest = torch.aminmax(block, dim=1)
        if wanted.mean or wanted.deviation:
            apart = block - pivot.unsqueeze(1)
            total = apart.sum(1) if wanted.mean else nothing
            distance = torch.linalg.vector_norm(apart, 2, 1) if wanted.deviation else nothing
        if wanted.orders:
            magnitudes = torch.linalg.vector_norm(block.float(), 1, 1)
        return cls(largest, smallest, pivot, total, distance, magnitudes)

    def joined(self, other: PivotedSums) -> PivotedSums:
        """The sums of all elements of samples from those of some and of the others, about one pivot."""
        return PivotedSums(
            torch.maximum(self.largest, other.largest),
            torch.minimum(self.smallest, other.smallest),
            self.pivot,
            self.total + other.total,
            torch.hypot(self.distance, other.distance),
            self.magnitudes + other.magnitudes,
        )

    def with_zeros(self, zeros: int) -> PivotedSums:
        """The sums of the same elements and of so many zeros."""
        nothing = torch.zeros_like(self.largest)
        apart = PivotedSums(nothing, nothing, self.pivot, -zeros * self.pivot, zeros**0.5 * self.pivot.abs(), nothing)
        return self.joined(apart)


def has_pivot(block: Tensor, wanted: Wanted) -> bool:
    """Whether `PivotedSums` do for these elements, if any: squares of float64 leave its own range."""
    return wanted.is_plain and block.shape[-1] > 0 and block.dtype in (torch.float32, torch.float16, torch.bfloat16)


def of_pivoted_sums(several: Sequence[PivotedSums], elements: Sequence[int], wanted: Wanted) -> Moments:
    """Moments (G, N) of G gradients at once.

    Args:
        several: of N samples each, on one device.
        elements: of a sample, for each gradient.
        wanted: what the sums were asked for.
    """
    largest, smallest, pivot, total, distance, magnitudes = (
        torch.stack(each).double() for each in zip(*several, strict=True)
    )
    sizes = torch.tensor(elements, dtype=torch.float64, device="cpu").to(pivot.device, non_blocking=True)
    count = sizes.unsqueeze(1).repeat(1, pivot.shape[1])
    away = total / count
    deviation = (distance.square() - total * away).clamp(min=0).sqrt()
    return Moments(wanted, count, largest, smallest, pivot + away, deviation, dict.fromkeys(wanted.orders, magnitudes))


def _on_accelerator(gradient: PerSample, wanted: Wanted) -> Moments:
    """Moments in float64; nothing is copied to the host."""
    found = sums_or_moments(gradient, wanted)
    return found if isinstance(found, Moments) else of_pivoted_sums([found], [prod(gradient.shape)], wanted).of(0)


def sums_or_moments(gradient: PerSample, wanted: Wanted) -> PivotedSums | Moments:
    """Sums or moments of the gradients' blocks on an accelerator.

    Args:
        gradient: of N samples, of one element at least.
        wanted: what to compute.

    Returns:
        Sums, whose moments can wait for those of others; moments, merged block by block, of float64 and where p-norms
        of other orders than 1 are wanted.
    """
    sums: dict[int, PivotedSums] = {}
    moments = None
    for rows, block in gradient.blocks(ACCELERATOR_ELEMENTS):
        for part in block if block.dim() == 3 else (block,):
            if has_pivot(part, wanted):
                before = sums.get(rows.start)
                found = PivotedSums.of(part, wanted, None if before is None else before.pivot)
                sums[rows.start] = found if before is None else before.joined(found)
                continue
            if moments is None:
                moments = Moments.of_zeros(len(gradient), 0, wanted, gradient.device)
            if part.shape[1]:
                moments.merge(rows, measure_exactly(part, wanted))
    zeros = gradient.implicit_zeros
    if moments is not None:
        if zeros:
            moments.merge(slice(None), Moments.of_zeros(len(gradient), zeros, wanted, gradient.device))
        return moments
    every = list(sums.values())
    whole = every[0] if len(every) == 1 else PivotedSums(*(torch.cat(each) for each in zip(*every, strict=True)))
    return whole.with_zeros(zeros) if zeros else whole


# On the CPU, from sums over the elements.


@dataclass(frozen=True)
class UnwrittenSums:
    """Sums over all elements of gradients that were not written out.

    Attributes:
        sums: of N samples.
        better: moments, each of one sample, of those samples whose sums have lost digits.
    """

    sums: FloatArray
    better: Mapping[int, Moments]


def sums_to_wait(gradient: PerSample, wanted: Wanted) -> UnwrittenSums | None:
    """Sums over the elements of gradients on the CPU, whose moments can wait for others': see `of_all_unwritten`.

    Args:
        gradient: of N samples, of one element at least.
        wanted: what is going to be computed.

    Returns:
        The sums; None where `measure` has a better way.
    """
    if gradient.device.type != "cpu" or _is_small(gradient) or _is_for_scalar_products(gradient, wanted):
        return None
    return _sum_unwritten(gradient, wanted)


@np.errstate(all="ignore")
def of_all_unwritten(several: Sequence[UnwrittenSums], elements: Sequence[int], wanted: Wanted) -> Moments:
    """Moments of G gradients at once: of so few numbers, each operation costs what its call does.

    Args:
        several: of N samples each.
        elements: of a sample, for each gradient.
        wanted: what the sums were asked for.

    Returns:
        Moments whose attributes are (G, N).
    """
    sums = np.stack([each.sums for each in several])
    found = _of_sums(sums, np.array(elements, dtype=np.float64)[:, None], wanted)
    for place, each in enumerate(several):
        for row, better in each.better.items():
            _improve(found, (place, row), better)
    return found


def _on_cpu(gradient: PerSample, wanted: Wanted) -> Moments:
    """Moments of what has no closed form and is not small."""
    if _is_for_scalar_products(gradient, wanted):
        return _norms_by_scalar_products(gradient, wanted)
    return _from_sums(gradient, wanted)


def _from_sums(gradient: PerSample, wanted: Wanted) -> Moments:
    sums = _sum_unwritten(gradient, wanted)
    if sums is None:
        return _of_written_blocks(gradient, wanted)
    return of_all_unwritten([sums], [prod(gradient.shape)], wanted).of(0)


def _sum_unwritten(gradient: PerSample, wanted: Wanted) -> UnwrittenSums | None:
    """Sums over all elements of every sample, by a loop that does not write them out; None where there is none."""
    if not wanted.is_plain or not isinstance(gradient, Factored | Convolved):
        return None
    parts = gradient.row_sums()
    if parts is None:
        return None
    sums = kernels.join_sums(parts.reshape(len(gradient), -1, 5), 1)
    doubtful = _has_lost_digits(sums, prod(gradient.shape), wanted, torch.float32)
    if not doubtful.any():  # as nearly always
        return UnwrittenSums(sums, {})
    doubtful &= sums[:, MAGNITUDES] != 0  # zeros, as of a blank image, have no digits to lose
    return UnwrittenSums(sums, _measured_again(gradient, wanted, doubtful))


def _of_written_blocks(gradient: PerSample, wanted: Wanted) -> Moments:
    """Moments of gradients that are written out, a block at a time."""
    found: dict[object, dict[int, list[Tensor]]] = {}
    dtype = torch.float64
    for rows, block in gradient.blocks(CACHE_ELEMENTS):
        values = block.reshape(-1, block.shape[-1])
        if not values.shape[1]:
            continue
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        if values.dtype == torch.float32:
            dtype = torch.float32
        parts: dict[object, Tensor] = {None: torch.from_numpy(_row_sums(values, wanted))}
        parts |= {order: scaled_norm(values.abs().double(), order)[:, None] for order in wanted.orders if order != 1}
        for key, each in parts.items():
            lines = each.view(-1, rows.stop - rows.start, each.shape[1])
            found.setdefault(key, {}).setdefault(rows.start, []).append(lines)
    # By what was added up: (parts, N, columns).
    together = {key: torch.cat([torch.cat(each) for each in by_rows.values()], 1) for key, by_rows in found.items()}
    sums = kernels.join_sums(together[None].numpy(), 0)
    elements, zeros = prod(gradient.shape), gradient.implicit_zeros
    moments = _of_sums(sums, elements, wanted)
    for order in wanted.orders:
        if order != 1:
            moments.norms[order] = scaled_norm(together[order].squeeze(2).t(), order).numpy()
    if zeros and wanted.extrema:
        moments.maximum, moments.minimum = np.maximum(moments.maximum, 0), np.minimum(moments.minimum, 0)
    doubtful = _has_lost_digits(sums, elements, wanted, dtype)
    for row, better in _measured_again(gradient, wanted, doubtful).items():
        _improve(moments, row, better)
    return moments


def _row_sums(values: Tensor, wanted: Wanted) -> FloatArray:
    """Sums over rows (n, p), by one pass where several are wanted and there is a loop; zeros for what is not wanted."""
    if 2 * wanted.extrema + wanted.mean + wanted.deviation + 2 * (1.0 in wanted.orders) > 1:
        fast = kernels.row_sums(values)
        if fast is not None:
            return fast
    found = np.zeros((len(values), 5))
    if wanted.extrema:
        found[:, LARGEST], found[:, SMALLEST] = values.amax(1).numpy(), values.amin(1).numpy()
    if wanted.mean:
        found[:, TOTAL] = values.sum(1).numpy()
    if wanted.deviation:
        found[:, SQUARES] = squared_norms(values).numpy()
    if 1.0 in wanted.orders:
        found[:, MAGNITUDES] = values.abs().sum(1).numpy()
    return found


@np.errstate(all="ignore")
def _of_sums(sums: FloatArray, elements: Array, wanted: Wanted) -> Moments:
    """Moments (N,) or (G, N) from sums over elements; `elements` of every sample, (G, 1) for gradients of G sizes."""
    zero = np.zeros(sums.shape[:-1])
    norms = {1.0: sums[..., MAGNITUDES]} if 1.0 in wanted.orders else {}
    found = Moments(wanted, zero + elements, sums[..., LARGEST], sums[..., SMALLEST], zero, zero, norms)
    if wanted.mean:
        found.mean = sums[..., TOTAL] / elements
    if wanted.deviation:
        found._deviation = np.sqrt(np.maximum(sums[..., SQUARES] - elements * found.mean**2, 0))
    return found


@np.errstate(all="ignore")
def _has_lost_digits(sums: FloatArray, elements: int, wanted: Wanted, dtype: torch.dtype) -> BoolArray:
    """For which samples (N,) moments from sums, whose parts were added up in this type, are not good enough."""
    total, squares = sums[..., TOTAL], sums[..., SQUARES]
    if not wanted.deviation:
        return ~(np.isfinite(total) & np.isfinite(sums[..., MAGNITUDES]))
    least, most = SQUARABLE[dtype]
    about = squares - total * total / elements if wanted.mean else squares
    kept: BoolArray = (about >= squares / 2) & (squares > least**2) & (squares < most**2)
    return ~kept


def _measured_again(gradient: PerSample, wanted: Wanted, doubtful: BoolArray) -> dict[int, Moments]:
    """The moments in float64 of samples that are in doubt, by their places."""
    return {
        row: measure_exactly(as_rows(gradient.dense(slice(row, row + 1))), wanted)
        for row in doubtful.nonzero()[0].tolist()
    }


def _improve(found: Moments, place: int | tuple[int, int], better: Moments) -> None:
    """Puts the moments of one sample, (1,) each, in the place of what sums over its elements gave."""
    if found.wanted.mean:
        found.mean[place] = better.mean[0]
    if found.wanted.deviation:
        found._deviation[place] = better._deviation[0]
    for order, norm in better.norms.items():
        found.norms[order][place] = norm[0]


# Euclidean norms of sums of outer products from the scalar products of their factors, without the products.


def _is_for_scalar_products(gradient: PerSample, wanted: Wanted) -> TypeGuard[Factored]:
    """Whether the Euclidean norm is all that is wanted, and scalar products of factors give it in less time.

    Of S positions all pairs are wanted once, S (S + 1) / 2 of them: in tiles, of which those on the diagonal are
    computed as a whole, (S + min(S, `TILE`)) (O + I) has to be below 2 O I.
    """
    if wanted != Wanted(deviation=True) or not isinstance(gradient, Factored):
        return False
    (height, positions), width = gradient.left.shape[2:], gradient.right.shape[2]
    return (positions + min(positions, TILE)) * (height + width) < 2 * height * width


def _norms_by_scalar_products(gradient: Factored, wanted: Wanted) -> Moments:
    """The Euclidean norm of every sample, |sum over s of l_s r_s'|^2 = sum over s and t of (l_s'l_t) (r_s'r_t).

    From the products themselves where digits are lost: the outer products cancel, or squares leave the range.

    Source: Goodfellow 2015, "Efficient per-example gradient computations", for one position; Li, Tramer, Liang,
        Hashimoto 2022, "Large language models can be strong differentially private learners", section 4, for several.
    """
    samples, groups, _, positions = gradient.left.shape
    left, right = (each.transpose(2, 3).flatten(0, 1) for each in (gradient.left, gradient.right))
    squares, alone, largest = (left.new_zeros(len(left), dtype=torch.float64) for _ in range(3))
    cuts = [slice(start, min(start + TILE, positions)) for start in range(0, positions, TILE)]
    tiles = [(top, bottom) for top in cuts for bottom in cuts if bottom.start <= top.start]  # the others are symmetric
    for rows in sample_slices(len(left), TILE * positions, GRAM_ELEMENTS):
        for tops, bottoms in tiles:
            one, other = (torch.bmm(each[rows, tops], each[rows, bottoms].transpose(1, 2)) for each in (left, right))
            if tops == bottoms:
                diagonals = [each.diagonal(dim1=1, dim2=2).double() for each in (one, other)]
                alone[rows] += (diagonals[0] * diagonals[1]).sum(1)
                largest[rows] = torch.maximum(largest[rows], torch.stack(diagonals).amax((0, 2)))
            weight = 1 if tops == bottoms else 2
            squares[rows] += weight * (one.double() * other.double()).flatten(1).sum(1)
    squares, alone = squares.view(samples, groups).sum(1), alone.view(samples, groups).sum(1)
    # Scalar products below the range are lost: harmless beside a square as large as the largest of them times the
    # smallest number that keeps its digits.
    floor = SQUARABLE[left.dtype][0] ** 2 * largest.view(samples, groups).amax(1)
    doubtful = ~(squares.isfinite() & (squares > floor) & (squares >= TRUSTED * alone))
    found = Moments.of_zeros(samples, prod(gradient.shape), wanted, gradient.device)
    found._deviation = squares.clamp(min=0).sqrt().numpy()
    if doubtful.any():
        again = Factored(gradient.left[doubtful], gradient.right[doubtful], gradient.shape)
        found._deviation[doubtful.numpy()] = _from_sums(again, wanted)._deviation
    return found
