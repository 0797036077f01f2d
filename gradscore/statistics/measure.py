"""From per-sample gradients of one parameter to their moments, without ever holding those of more than a few samples.

On the CPU a block is reduced in its own precision with the fastest kernels there are, and only where that loses digits
(a mean far larger than the spread, squares that leave the range of float32) its samples are reduced once more in
float64. On an accelerator, where looking for such samples would mean to wait for it, all are reduced in float64: inside
a kernel that does not write the gradients out, where there is one, or else in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..gradients import Convolved, Factored, PerSample, Tied
from ..system import SQUARABLE, BoolArray
from . import gram
from .moments import Array, Moments, Wanted, measure_exactly, measure_together, native, own_sums, scaled_norm

CACHE_ELEMENTS = 1 << 20
"""Elements of a block: small enough to stay in the cache between the reductions.

8 gradients of 256 x 1152 took 4.0 ms with blocks of this size, 6.1 ms with a sixteenth and 4.7 ms with four times it.
"""

TIED_ELEMENTS = 1 << 24
"""Elements of the factors of tied embeddings that are copied at a time, 64 MiB of float32."""

ACCELERATOR_ELEMENTS = 1 << 25
"""Elements of a block on an accelerator, where few large reductions are better than many small ones."""

SMALL_ELEMENTS = 1 << 16
"""Blocks up to this size are reduced in float64 at once.

That took 0.06 ms here where sums in blocks took 0.09 ms; at four times the size 0.15 and 0.11 ms.
"""

NORM_ALONE = Wanted(spread=True)
"""What the Euclidean norm wants, and nothing else."""


def measure(gradient: PerSample, wanted: Wanted) -> Moments:
    """Reduces per-sample gradients of one parameter.

    Args:
        gradient: the gradients.
        wanted: what to compute.

    Returns:
        Moments of all elements of every sample.
    """
    elements = prod(gradient.shape)
    if not elements:
        return Moments.empty(len(gradient), wanted, gradient.device)
    if has_closed_form(gradient, wanted):
        return of_outer_products([gradient], wanted).of(0)
    if isinstance(gradient, Tied):
        return _of_parts(gradient, wanted)
    if _is_small(gradient):
        return measure_exactly(gradient.dense(slice(None)).flatten(1), wanted)
    if gradient.device.type != "cpu":
        return _moments_on_device(gradient, wanted) or _in_exact_blocks(gradient, wanted)
    return _in_fast_blocks(gradient, wanted)


def _is_small(gradient: PerSample) -> bool:
    """Whether it is faster to write a gradient out; not where windows of images are many times its size.

    A MobileNet with six such layers took 0.56 s for a batch, and takes 0.43 s.
    """
    if len(gradient) * prod(gradient.shape) > SMALL_ELEMENTS:
        return False
    return not (isinstance(gradient, Convolved) and gradient.has_loops())


def _is_for_gram(gradient: PerSample, wanted: Wanted) -> TypeGuard[Factored]:
    """Whether the Euclidean norm is all that is wanted, and scalar products of factors give it in less time."""
    return wanted == NORM_ALONE and isinstance(gradient, Factored) and gram.is_cheaper(gradient)


def has_closed_form(gradient: PerSample, wanted: Wanted) -> TypeGuard[Factored]:
    """Whether moments of the gradients follow from those of two vectors of each sample."""
    return isinstance(gradient, Factored) and gradient.is_outer_product and not wanted.sums


@np.errstate(all="ignore")
def of_outer_products(gradients: Sequence[Factored], wanted: Wanted) -> Moments:
    """Moments of outer products in closed form, from the moments of the two vectors.

    Args:
        gradients: of N samples each, for which `has_closed_form` holds.
        wanted: what to compute.

    Returns:
        Moments of the G gradients beside each other: attributes are (G, N).
    """
    factors = [each.left.flatten(1) for each in gradients] + [each.right.flatten(1) for each in gradients]
    both = measure_together(factors, wanted)
    left, right = both.of(slice(len(gradients))), both.of(slice(len(gradients), None))
    xp = both.xp
    found = replace(left, count=left.count * right.count, norms={})
    if wanted.extrema:
        corners = [a * b for a in (left.maximum, left.minimum) for b in (right.maximum, right.minimum)]
        found.maximum = xp.maximum(xp.maximum(*corners[:2]), xp.maximum(*corners[2:]))
        found.minimum = xp.minimum(xp.minimum(*corners[:2]), xp.minimum(*corners[2:]))
    if wanted.mean:
        found.mean = left.mean * right.mean
    if wanted.spread:
        found.spread = left.spread * right.spread
        if wanted.mean:
            # Sum of squares of a b about its mean: every term is positive, so nothing cancels.
            found.spread = xp.hypot(found.spread, left.spread * right.mean * xp.sqrt(right.count))
            found.spread = xp.hypot(found.spread, right.spread * left.mean * xp.sqrt(left.count))
    for order in wanted.orders:
        found.norms[order] = left.norms[order] * right.norms[order]
    return found


@dataclass(frozen=True)
class Unwritten:
    """Sums over all elements of gradients that were not written out.

    Attributes:
        sums: (N, 5) as `kernels.row_sums`.
        better: moments, each of one sample, of those samples whose sums have lost digits.
    """

    sums: kernels.Doubles
    better: Mapping[int, Moments]


def unwritten_sums(gradient: PerSample, wanted: Wanted) -> Unwritten | None:
    """Sums over all elements of every sample, by a loop that does not write them out; `of_sums` makes moments of them.

    Args:
        gradient: of N samples, of one element at least.
        wanted: what is going to be computed.

    Returns:
        The sums; None where there is no such loop: `measure` is for those.
    """
    if gradient.device.type != "cpu" or wanted.sums or not set(wanted.orders) <= {1.0}:
        return None
    if not isinstance(gradient, Factored | Convolved) or _is_small(gradient) or _is_for_gram(gradient, wanted):
        return None
    parts = gradient.row_sums()
    if parts is None:
        return None
    sums = _over_parts(parts.reshape(len(gradient), -1, 5), 1)
    doubtful = _has_lost_digits(sums, prod(gradient.shape), wanted, torch.float32)
    doubtful &= sums[:, 4] != 0  # zeros, as of a blank image, have no digits to lose
    return Unwritten(sums, dict(_measured_again(gradient, wanted, doubtful)))


@np.errstate(all="ignore")
def _has_lost_digits(sums: kernels.Doubles, elements: int, wanted: Wanted, dtype: torch.dtype) -> BoolArray:
    """For which samples (N,) moments from sums (N, 5), whose parts were added up in this type, are not good enough."""
    if not wanted.spread:
        return np.asarray(~np.isfinite(sums[:, [2, 4]]).all(1))
    total, squares = sums[:, 2], sums[:, 3]
    least, most = SQUARABLE[dtype]
    about = squares - total * total / elements if wanted.mean else squares
    kept: BoolArray = (about >= squares / 2) & (squares > least**2) & (squares < most**2)
    return ~kept


def improve(found: Moments, place: int | tuple[int, int], better: Moments) -> None:
    """Puts the moments of one sample, (1,) each, in the place of what sums over its elements gave."""
    if found.wanted.mean:
        found.mean[place] = better.mean[0]
    if found.wanted.spread:
        found.spread[place] = better.spread[0]
    for order, norm in better.norms.items():
        found.norms[order][place] = norm[0]


@np.errstate(all="ignore")
def of_sums(sums: kernels.Doubles, elements: Array, wanted: Wanted) -> Moments:
    """Moments from sums over all elements.

    Args:
        sums: (N, 5) or (G, N, 5), as `kernels.row_sums`.
        elements: of every sample; (G, 1) for gradients of several sizes beside each other.
        wanted: what to compute; of p-norms that of order 1 alone.

    Returns:
        Moments whose attributes are (N,) or (G, N).
    """
    largest, smallest, total, squares, magnitudes = np.moveaxis(sums, -1, 0)
    zero = np.zeros_like(total)
    found = Moments(wanted, zero + elements, zero, zero, zero, zero, dict.fromkeys(wanted.orders, magnitudes), {})
    if wanted.extrema:
        found.maximum, found.minimum = largest, smallest
    if wanted.mean:
        found.mean = total / elements
    if wanted.spread:
        found.spread = np.sqrt(np.maximum(squares - elements * found.mean**2, 0))
    return found


@np.errstate(all="ignore")
def _over_parts(sums: kernels.Doubles, axis: int) -> kernels.Doubles:
    """Sums over parts of the elements, which lie on an axis, as sums over all of them."""
    joined: kernels.Doubles = sums.sum(axis)
    if sums.shape[axis] == 1:
        return joined
    joined[..., 0], joined[..., 1] = sums[..., 0].max(axis), sums[..., 1].min(axis)
    return joined


def _of_parts(gradient: Tied, wanted: Wanted) -> Moments:
    found = Moments.empty(len(gradient), wanted, gradient.device)
    for rows, part in gradient.parts(TIED_ELEMENTS):
        found.merge(rows, measure(part, wanted))
    return found


def _of_scalar_products(gradient: Factored, wanted: Wanted) -> Moments:
    """The Euclidean norm alone; from the products where their factors' scalar products do not give all its digits."""
    found = Moments.blank(len(gradient), prod(gradient.shape), wanted, gradient.device)
    found.spread, doubtful = gram.norms(gradient)
    if doubtful.any():
        rows = torch.from_numpy(doubtful)
        again = Factored(gradient.left[rows], gradient.right[rows], gradient.shape)
        found.spread[doubtful] = _of_block_sums(again, wanted).spread
    return found


def _moments_on_device(gradient: PerSample, wanted: Wanted) -> Moments | None:
    """Moments of a gradient on an accelerator without writing it out; None where that is not possible."""
    if wanted.sums or not set(wanted.orders) <= {1.0} or not isinstance(gradient, Factored | Convolved):
        return None
    rows = gradient.row_moments(about_mean=wanted.mean)
    if rows is None:
        return None
    found = Moments.blank(len(gradient), prod(gradient.shape), wanted, gradient.device)
    found.maximum, found.minimum, found.mean, found.spread, magnitudes = rows.unbind(1)
    found.norms = dict.fromkeys(wanted.orders, magnitudes)
    return found


def _in_exact_blocks(gradient: PerSample, wanted: Wanted) -> Moments:
    """Every block in float64, merged; nothing is copied to the host."""
    found = Moments.empty(len(gradient), wanted, gradient.device)
    for rows, block in gradient.blocks(ACCELERATOR_ELEMENTS):
        for part in block if block.dim() == 3 else (block,):
            if part.shape[-1]:
                found.merge(rows, measure_exactly(part, wanted))
    if gradient.implicit_zeros:
        zeros = Moments.blank(len(gradient), gradient.implicit_zeros, wanted, gradient.device)
        found.merge(slice(0, len(gradient)), zeros)
    return found


def _in_fast_blocks(gradient: PerSample, wanted: Wanted) -> Moments:
    if _is_for_gram(gradient, wanted):
        return _of_scalar_products(gradient, wanted)
    return _of_block_sums(gradient, wanted)


def _measured_again(gradient: PerSample, wanted: Wanted, doubtful: BoolArray) -> Iterator[tuple[int, Moments]]:
    """Samples that are in doubt, and their moments in float64, one after the other."""
    for row in doubtful.nonzero()[0].tolist():
        yield row, measure_exactly(gradient.dense(slice(row, row + 1)).flatten(1), wanted)


def _of_block_sums(gradient: PerSample, wanted: Wanted) -> Moments:
    sums = _BlockSums(wanted)
    if not sums.add_unwritten(gradient):
        for rows, block in gradient.blocks(CACHE_ELEMENTS):
            if block.shape[-1]:
                sums.add(rows, block)
    found, doubtful = sums.moments(prod(gradient.shape), gradient.implicit_zeros)
    for row, better in _measured_again(gradient, wanted, doubtful):
        improve(found, row, better)
    return found


class _BlockSums:
    """Sums over the rows of blocks on the CPU, joined in float64."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        passes = 2 * wanted.extrema + wanted.mean + wanted.spread + 2 * (1.0 in wanted.orders)
        self.fused = passes > 1
        self.single = False
        self.scratch: Tensor | None = None
        self.sums: dict[int, list[Tensor]] = {}
        self.norms: dict[float, dict[int, list[Tensor]]] = {order: {} for order in wanted.orders if order != 1}
        self.own: dict[str, dict[int, list[Tensor]]] = {name: {} for name, _ in wanted.sums}

    def add(self, rows: slice, block: Tensor) -> None:
        """Takes in a block, (n, p) or (parts, n, p)."""
        samples = rows.stop - rows.start
        values = block.reshape(-1, block.shape[-1])
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        self.single |= values.dtype == torch.float32
        fast = kernels.row_sums(values) if self.fused else None
        sums = self._row_sums(values) if fast is None else torch.from_numpy(fast)
        self.sums.setdefault(rows.start, []).append(sums.view(-1, samples, 5))
        for order, norms in self.norms.items():
            norm = scaled_norm(values.abs().double(), order)
            norms.setdefault(rows.start, []).append(norm.view(-1, samples, 1))
        for name, array in own_sums(values, self.wanted).items():
            own = torch.from_numpy(array)
            self.own[name].setdefault(rows.start, []).append(own.view(-1, samples, own.shape[1]))

    def add_unwritten(self, gradient: PerSample) -> bool:
        """Takes in all of a gradient without writing it out; False where that is not possible."""
        if self.norms or self.own or not isinstance(gradient, Factored | Convolved):
            return False
        found = gradient.row_sums()
        if found is None:
            return False
        self.single = True
        self.sums[0] = [torch.from_numpy(found).view(len(gradient), -1, 5).transpose(0, 1)]
        return True

    def _row_sums(self, values: Tensor) -> Tensor:
        """As `kernels.row_sums`, with zeros for what is not wanted."""
        found = torch.zeros(len(values), 5, dtype=torch.float64)
        if self.wanted.extrema:
            found[:, 0], found[:, 1] = values.amax(1), values.amin(1)
        if self.wanted.mean:
            found[:, 2] = values.sum(1)
        if self.wanted.spread:
            found[:, 3] = torch.linalg.vector_norm(values, dim=1).double().square()
        if 1.0 in self.wanted.orders:
            if self.scratch is None or self.scratch.numel() < values.numel() or self.scratch.dtype != values.dtype:
                self.scratch = torch.empty_like(values).flatten()
            found[:, 4] = torch.abs(values, out=self.scratch[: values.numel()].view(values.shape)).sum(1)
        return found

    def moments(self, elements: int, implicit_zeros: int) -> tuple[Moments, BoolArray]:
        """Moments of all blocks, and for which samples (N,) mean and spread have lost digits."""
        sums = _over_parts(native(_joined(self.sums)), 0)
        doubtful = _has_lost_digits(sums, elements, self.wanted, torch.float32 if self.single else torch.float64)
        found = of_sums(sums, elements, self.wanted)
        for order, norms in self.norms.items():
            found.norms[order] = native(scaled_norm(_joined(norms).squeeze(2).t(), order))
        for name, add_up in self.wanted.sums:
            zeros = add_up(torch.zeros(1, implicit_zeros)).numpy() if implicit_zeros else 0.0
            found.sums[name] = native(_joined(self.own[name]).sum(0)) + zeros
        if implicit_zeros and self.wanted.extrema:
            found.maximum, found.minimum = np.maximum(found.maximum, 0), np.minimum(found.minimum, 0)
        return found, doubtful


def _joined(parts: dict[int, list[Tensor]]) -> Tensor:
    """The parts (k, n, c) of all slices of samples as (all k, N, c)."""
    return torch.cat([torch.cat(each) if len(each) > 1 else each[0] for each in parts.values()], 1)
