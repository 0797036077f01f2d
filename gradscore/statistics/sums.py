"""Moments from sums over the elements, in one pass; gradients that are products need not be written out for it.

Sums of float32 lose digits where the mean is as large as the spread, and where squares leave the range of the type. The
samples for which they do are reduced once more in float64, in two passes. What statistics ask for beyond the usual
sums (`Wanted.sums`) is added up beside these, of gradients that are written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..gradients import Convolved, Factored, PerSample
from ..system import SQUARABLE, BoolArray, squared_norms
from .moments import Array, Moments, Wanted, measure_exactly, native, own_sums, scaled_norm

CACHE_ELEMENTS = 1 << 20
"""Elements of a block: small enough to stay in the cache between the reductions.

8 gradients of 256 x 1152 took 4.0 ms with blocks of this size, 6.1 ms with a sixteenth and 4.7 ms with four times it.
"""


@dataclass(frozen=True)
class UnwrittenSums:
    """Sums over all elements of gradients that were not written out.

    Attributes:
        sums: of N samples.
        better: moments, each of one sample, of those samples whose sums have lost digits.
    """

    sums: kernels.Sums
    better: Mapping[int, Moments]


def sum_unwritten(gradient: PerSample, wanted: Wanted) -> UnwrittenSums | None:
    """Sums over all elements of every sample, by a loop that does not write them out; see `of_all_unwritten`.

    Args:
        gradient: of N samples, of one element at least, on the CPU.
        wanted: what is going to be computed.

    Returns:
        The sums; None where there is no such loop.
    """
    if not wanted.is_plain or not isinstance(gradient, Factored | Convolved):
        return None
    parts = gradient.row_sums()
    if parts is None:
        return None
    sums = parts.of_parts(len(parts) // len(gradient)).joined(1)
    doubtful = _has_lost_digits(sums, prod(gradient.shape), wanted, torch.float32)
    if not doubtful.any():  # as nearly always
        return UnwrittenSums(sums, {})
    doubtful &= sums.magnitudes != 0  # zeros, as of a blank image, have no digits to lose
    return UnwrittenSums(sums, dict(_measured_again(gradient, wanted, doubtful)))


def of_all_unwritten(several: Sequence[UnwrittenSums], elements: Sequence[int], wanted: Wanted) -> Moments:
    """Moments of G gradients at once: of so few numbers, each operation costs what its call does.

    Args:
        several: of N samples each.
        elements: of a sample, for each gradient.
        wanted: what the sums were asked for.

    Returns:
        Moments whose attributes are (G, N).
    """
    sums = kernels.Sums.stacked([each.sums for each in several])
    found = of_sums(sums, np.array(elements, dtype=np.float64)[:, None], wanted)
    for place, each in enumerate(several):
        for row, better in each.better.items():
            _improve(found, (place, row), better)
    return found


def of_written_blocks(gradient: PerSample, wanted: Wanted) -> Moments:
    """Moments of gradients on the CPU that are written out, a block at a time.

    Args:
        gradient: of one element at least.
        wanted: what to compute.
    """
    sums = _BlockSums(wanted)
    for rows, block in gradient.blocks(CACHE_ELEMENTS):
        if block.shape[-1]:
            sums.add(rows, block)
    found, doubtful = sums.moments(prod(gradient.shape), gradient.implicit_zeros)
    for row, better in _measured_again(gradient, wanted, doubtful):
        _improve(found, row, better)
    return found


@np.errstate(all="ignore")
def of_sums(sums: kernels.Sums, elements: Array, wanted: Wanted) -> Moments:
    """Moments from sums over all elements.

    Args:
        sums: of N samples, or of G gradients of N samples each.
        elements: of every sample; (G, 1) for gradients of several sizes beside each other.
        wanted: what to compute.

    Returns:
        Moments whose attributes are (N,) or (G, N); of p-norms that of order 1 alone.
    """
    zero = np.zeros_like(sums.total)
    norms = {1.0: sums.magnitudes} if 1.0 in wanted.orders else {}
    found = Moments(wanted, zero + elements, zero, zero, zero, zero, norms, {})
    if wanted.extrema:
        found.maximum, found.minimum = sums.largest, sums.smallest
    if wanted.mean:
        found.mean = sums.total / elements
    if wanted.spread:
        found.spread = np.sqrt(np.maximum(sums.squares - elements * found.mean**2, 0))
    return found


def _improve(found: Moments, place: int | tuple[int, int], better: Moments) -> None:
    """Puts the moments of one sample, (1,) each, in the place of what sums over its elements gave."""
    if found.wanted.mean:
        found.mean[place] = better.mean[0]
    if found.wanted.spread:
        found.spread[place] = better.spread[0]
    for order, norm in better.norms.items():
        found.norms[order][place] = norm[0]


def _measured_again(gradient: PerSample, wanted: Wanted, doubtful: BoolArray) -> Iterator[tuple[int, Moments]]:
    """Samples that are in doubt, and their moments in float64, one after the other."""
    for row in doubtful.nonzero()[0].tolist():
        yield row, measure_exactly(gradient.dense(slice(row, row + 1)).flatten(1), wanted)


@np.errstate(all="ignore")
def _has_lost_digits(sums: kernels.Sums, elements: int, wanted: Wanted, dtype: torch.dtype) -> BoolArray:
    """For which samples (N,) moments from sums, whose parts were added up in this type, are not good enough."""
    total, squares = sums.total, sums.squares
    if not wanted.spread:
        return ~(np.isfinite(total) & np.isfinite(sums.magnitudes))
    least, most = SQUARABLE[dtype]
    about = squares - total * total / elements if wanted.mean else squares
    kept: BoolArray = (about >= squares / 2) & (squares > least**2) & (squares < most**2)
    return ~kept


class _BlockSums:
    """Sums over the rows of blocks on the CPU, joined in float64."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        passes = 2 * wanted.extrema + wanted.mean + wanted.spread + 2 * (1.0 in wanted.orders)
        self.fused = passes > 1
        self.single = False
        self.scratch: Tensor | None = None
        self.sums: dict[int, list[kernels.Sums]] = {}
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
        sums = self._row_sums(values) if fast is None else fast
        self.sums.setdefault(rows.start, []).append(sums.of_parts(samples))
        for order, norms in self.norms.items():
            norm = scaled_norm(values.abs().double(), order)
            norms.setdefault(rows.start, []).append(norm.view(-1, samples, 1))
        for name, array in own_sums(values, self.wanted).items():
            own = torch.from_numpy(array)
            self.own[name].setdefault(rows.start, []).append(own.view(-1, samples, own.shape[1]))

    def _row_sums(self, values: Tensor) -> kernels.Sums:
        """As `kernels.row_sums`, with zeros for what is not wanted."""
        found = kernels.Sums.zeros(len(values))
        if self.wanted.extrema:
            found.largest[:], found.smallest[:] = values.amax(1).numpy(), values.amin(1).numpy()
        if self.wanted.mean:
            found.total[:] = values.sum(1).numpy()
        if self.wanted.spread:
            found.squares[:] = squared_norms(values).numpy()
        if 1.0 in self.wanted.orders:
            if self.scratch is None or self.scratch.numel() < values.numel() or self.scratch.dtype != values.dtype:
                self.scratch = torch.empty_like(values).flatten()
            magnitudes = torch.abs(values, out=self.scratch[: values.numel()].view(values.shape))
            found.magnitudes[:] = magnitudes.sum(1).numpy()
        return found

    def moments(self, elements: int, implicit_zeros: int) -> tuple[Moments, BoolArray]:
        """Moments of all blocks, and for which samples (N,) mean and spread have lost digits."""
        sums = kernels.Sums.side_by_side(list(self.sums.values())).joined(0)
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
