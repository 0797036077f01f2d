"""Gradients of single samples: how the engine feeds quantities with them, and in what blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from ...errors import EngineError
from ...gradients import (
    Block,
    Convolved,
    PerSample,
    Sink,
    sample_slices,
    shifted_blocks,
    suits_groups,
    suits_windows,
)
from .quantity import SampleGradientQuantity


class Scaled(PerSample):
    """Per-sample gradients times one number per sample, in float64.

    Args:
        base: the gradients.
        scale: (N,) float64.
    """

    def __init__(self, base: PerSample, scale: Tensor) -> None:
        super().__init__(len(base), base.shape, base.device)
        self.base, self.scale = base, scale

    @property
    @override
    def implicit_zeros(self) -> int:
        return self.base.implicit_zeros

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        for rows, block in self.base.blocks(budget):
            yield rows, block.double() * self.scale[rows].unsqueeze(1)

    @override
    def dense(self, rows: slice) -> Tensor:
        values = self.base.dense(rows)
        return values.double() * self.scale[rows].view(-1, *[1] * (values.dim() - 1))

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Scaled:
        return Scaled(self.base.reshaped(shape), self.scale)


@contextmanager
def feeding(
    quantities: Sequence[SampleGradientQuantity],
    parameters: Mapping[str, Tensor],
    samples: int,
    *,
    scale: Tensor | None = None,
) -> Iterator[Sink]:
    """What takes the gradients of a batch to quantities, for `Engine.stream` or `Engine.backward`.

    A parameter that the losses do not depend on, or that is frozen, is not looked at.

    Args:
        quantities: what is fed; they are told where the batch begins and ends.
        parameters: those of the engine.
        samples: N, the size of the batch.
        scale: (N,) float64, by which the gradients are multiplied, in float64.

    Raises:
        EngineError: a parameter is complex.
    """

    def sink(name: str, rows: slice, gradient: PerSample) -> None:
        scaled = gradient if scale is None else Scaled(gradient, scale[rows].to(gradient.device))
        for quantity in quantities:
            quantity.observe(name, parameters[name], scaled)

    hard = [name for name, parameter in parameters.items() if parameter.is_complex()]
    if hard:
        raise EngineError(
            f"{hard[0]} is complex, and gradients of single samples are those of real parameters; leave it out by "
            "name (`parameters`), or leave out histograms and the signal-to-noise ratio"
        )
    for quantity in quantities:
        quantity.start(samples)
    yield sink
    for quantity in quantities:
        quantity.finish()


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
        entries = _entries(gradient).permute(0, 3, 4, 2, 1).flatten()  # in the order of gradients.window_blocks
        for _, block in gradient.blocks(budget):
            yield Aligned(block, entries)
    elif isinstance(gradient, Convolved) and suits_groups(gradient):
        for _, block in gradient.blocks(budget):
            yield Aligned(block)
    elif isinstance(gradient, Convolved) and len(gradient.kernel) <= 2 and gradient.left.shape[1] == 1:
        # A block is of one vertical tap, and has horizontal taps before channels.
        every_tap = _entries(gradient).flatten(0, 1)
        taps = [every_tap[:, :, tap].transpose(1, 2).flatten() for tap in range(every_tap.shape[2])]
        turn = 0
        for _, block in shifted_blocks(gradient, budget):
            for part in block if block.dim() == 3 else (block,):
                yield Aligned(part, taps[turn % len(taps)], turn % len(taps))
                turn += 1
    else:
        for rows in sample_slices(len(gradient), prod(gradient.shape), budget):
            yield Aligned(gradient.dense(rows).reshape(rows.stop - rows.start, -1))


def _entries(gradient: Convolved) -> Tensor:
    """The places of a parameter, by groups, output and input channels, and taps."""
    groups, out = gradient.left.shape[2:4]
    sizes = groups, out, gradient.image.shape[2] // groups, *(1,) * (2 - len(gradient.kernel)), *gradient.kernel
    return torch.arange(prod(gradient.shape), device=gradient.device).view(sizes)
