"""Blocks of per-sample gradients together with the parameter entries that their columns belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...gradients import Convolved, PerSample, sample_slices, shifted_blocks, suits_groups, suits_windows


@dataclass(frozen=True)
class Aligned:
    """Some columns of the gradients of some samples.

    Attributes:
        values: (n, p).
        entries: (p,) int64, the places of the columns in the flattened parameter; None if they are all of them, in
            order.
        part: number of this set of columns; blocks of equal number have equal columns.
    """

    values: Tensor
    entries: Tensor | None = None
    part: int = 0


def aligned_blocks(gradient: PerSample, budget: int) -> Iterator[Aligned]:
    """All elements of all samples, in blocks of about `budget` elements; cheaper for convolutions than `dense`.

    Every entry of every sample comes exactly once.

    Args:
        gradient: of one parameter.
        budget: elements of a block.

    Yields:
        Blocks, good until the next one is asked for.
    """
    if isinstance(gradient, Convolved) and suits_windows(gradient):
        entries = _window_entries(gradient)
        for _, block in gradient.blocks(budget):
            yield Aligned(block, entries)
    elif isinstance(gradient, Convolved) and suits_groups(gradient):
        for _, block in gradient.blocks(budget):
            yield Aligned(block)
    elif isinstance(gradient, Convolved) and len(gradient.kernel) <= 2 and gradient.left.shape[1] == 1:
        taps = _tap_entries(gradient)
        turn = 0
        for _, block in shifted_blocks(gradient, budget):
            for part in block if block.dim() == 3 else (block,):
                yield Aligned(part, taps[turn % len(taps)], turn % len(taps))
                turn += 1
    else:
        for rows in sample_slices(len(gradient), prod(gradient.shape), budget):
            yield Aligned(gradient.dense(rows).reshape(rows.stop - rows.start, -1))


def _window_entries(gradient: Convolved) -> Tensor:
    """The entries of blocks that are ordered as `gradients.window_blocks` says."""
    return _entries(gradient).permute(0, 3, 4, 2, 1).flatten()


def _tap_entries(gradient: Convolved) -> list[Tensor]:
    """For each vertical tap of a kernel the entries of its blocks, which put horizontal taps before channels."""
    entries = _entries(gradient).flatten(0, 1)
    return [entries[:, :, tap].transpose(1, 2).flatten() for tap in range(entries.shape[2])]


def _entries(gradient: Convolved) -> Tensor:
    """The places of a parameter, by groups, output and input channels, and taps."""
    groups, out = gradient.left.shape[2:4]
    sizes = groups, out, gradient.image.shape[2] // groups, *(1,) * (2 - len(gradient.kernel)), *gradient.kernel
    return torch.arange(prod(gradient.shape), device=gradient.device).view(sizes)
