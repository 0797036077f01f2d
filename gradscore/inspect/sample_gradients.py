"""Gradients of single samples: how the engine feeds quantities with them, in what blocks, and how far samples agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, nan, prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from ..errors import ConfigError, EngineError
from ..gradients import (
    Block,
    Convolved,
    Factored,
    PerSample,
    Sink,
    sample_slices,
)
from ..kernels import add_deviations
from .quantity import MODEL, Quantity, Row, SampleGradientQuantity


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
    """Sink that takes the gradients of a batch to quantities, for `Engine.stream` or `Engine.backward`.

    A parameter that is frozen is not looked at.

    Args:
        quantities: what is fed; they are told where the batch begins and ends.
        parameters: those of the engine.
        samples: N, the size of the batch.
        scale: (N,) float64, by which the gradients are multiplied, in float64.

    Raises:
        EngineError: a parameter is complex.
    """
    reached: set[str] = set()

    def sink(name: str, rows: slice, gradient: PerSample) -> None:
        reached.add(name)
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
        for name, parameter in parameters.items():
            if name not in reached and parameter.requires_grad:
                quantity.observe_unreached(name, parameter, samples)
        quantity.finish()


BUDGET = 1 << 20
"""Elements of gradients that are looked at together: few enough to stay in the cache, enough for convolutions to be
fast. From a quarter of it to sixteen times as many a step of a small CNN took the same time within 15 %."""


class Aligned(NamedTuple):
    """Columns of the gradients of some samples.

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
    entries = gradient.block_entries() if isinstance(gradient, Convolved) else None
    if entries is None:
        for rows in sample_slices(len(gradient), prod(gradient.shape), budget):
            yield Aligned(gradient.dense(rows).reshape(rows.stop - rows.start, -1))
        return
    turn = 0
    for _, block in gradient.blocks(budget):
        for part in block if block.dim() == 3 else (block,):
            yield Aligned(part, entries[turn % len(entries)], turn % len(entries))
            turn += 1


Key = TypeVar("Key")

TINY = torch.finfo(torch.float64).tiny


@dataclass
class EntryMoments:
    """Mean and sum of squared deviations over samples, of every entry of a gradient, in float64.

    Attributes:
        count: samples.
        mean: of the shape of the parameter, flattened.
        squares: sums of squared deviations from the mean, never negative.
        is_reached: whether the loss of any sample depends on the parameter.
    """

    count: int
    mean: Tensor
    squares: Tensor
    is_reached: bool = True

    @classmethod
    def of(cls, values: Tensor) -> EntryMoments:
        """The moments of some samples, (n, p).

        Deviations from the first sample are taken in the precision the gradients have: where all samples nearly agree,
        they are exact, and nothing cancels.
        """
        first = values[0].clone()
        sums, squares = (torch.zeros_like(first, dtype=torch.float64) for _ in range(2))
        if not add_deviations(values, first, sums, squares):
            deviations = (values - first).double()
            sums, squares = deviations.sum(0), deviations.square_().sum(0)
        share = sums / len(values)
        return cls(len(values), first.double() + share, (squares - sums * share).clamp_(min=0))

    @classmethod
    def of_products(cls, gradient: Factored) -> EntryMoments:
        """The moments of plain outer products, in float64 and without writing one of them out."""
        left, right = gradient.left[:, 0, :, 0].double(), gradient.right[:, 0, :, 0].double()
        count = len(gradient)
        mean = (left.T @ right).div_(count)
        squares = (left.square().T @ right.square()).addcmul_(mean, mean, value=-count)
        return cls(count, mean.flatten(), squares.clamp_(min=0).flatten())

    def merge(self, other: EntryMoments) -> None:
        """Takes in the moments of other samples; see `Running` for the source."""
        total = self.count + other.count
        difference = other.mean - self.mean
        self.squares.add_(other.squares)
        self.squares.addcmul_(difference, difference, value=self.count * other.count / total)
        self.mean.add_(difference, alpha=other.count / total)
        self.count, self.is_reached = total, self.is_reached or other.is_reached


class MeanGSNR(SampleGradientQuantity):
    """Squared mean over population variance of each entry's gradient over samples, averaged over entries.

    Both the ratio within each batch (measure "batch") and that over all samples since the last reset (measure "data
    set") are kept, for every parameter and for the model, in which every entry weighs the same. A batch whose losses do
    not depend on a parameter has no ratio of it, and its samples have a gradient of zero in that over all samples.

    The ratio is biased for few samples: n samples whose gradients are nothing but normal noise give 1 / (n - 3)
    on average, so compare groups of equal size, or each with that.

    Below two samples a variance says nothing: the ratio is undefined, NaN. An entry whose
    gradient is zero for every sample has ratio 0. Entries with a gradient that is not finite are left out.

    Args:
        epsilon: keeps the denominator from zero.
        relative: scale `epsilon` by the squared mean, so that the ratio does not depend on the size of gradients (and
            never exceeds 1 / epsilon); otherwise it is added as it is, as cockpit does, and swamps small gradients.
        options: see `Quantity`.

    Attributes:
        moments: by parameter, over all samples since the last reset.

    Raises:
        ConfigError: an epsilon that is not positive.

    Source: Liu et al. 2020, "Understanding why neural networks generalize well through GSNR of parameters", equation 1.
    """

    name = "gradient signal-to-noise ratio"
    _mergeable = (*Quantity._mergeable, "moments")

    def __init__(self, *, epsilon: float = 1e-5, relative: bool = True, **options: Any) -> None:
        super().__init__(**options)
        if not epsilon > 0:
            raise ConfigError(f"epsilon must be above 0, got {epsilon}")
        self.epsilon, self.relative = epsilon, relative
        self.moments: dict[str, EntryMoments] = {}
        self._batch: dict[str, EntryMoments] = {}

    @override
    def start(self, samples: int) -> None:
        self._batch = {}

    @override
    def observe(self, name: str, parameter: Tensor, gradient: PerSample) -> None:
        if isinstance(gradient, Factored) and gradient.is_outer_product:
            _merge(self._batch, name, EntryMoments.of_products(gradient))
            return
        parts: dict[int, EntryMoments] = {}
        entries: dict[int, Tensor | None] = {}
        for block in aligned_blocks(gradient, BUDGET):
            _merge(parts, block.part, EntryMoments.of(block.values))
            entries[block.part] = block.entries
        if not parts:
            return
        whole = parts[0]
        if entries[0] is not None:  # each part has some of the entries
            mean, squares = whole.mean.new_zeros(2, parameter.numel())
            whole = EntryMoments(whole.count, mean, squares)
            for part, moments in parts.items():
                whole.mean[entries[part]], whole.squares[entries[part]] = moments.mean, moments.squares
        _merge(self._batch, name, whole)

    @override
    def observe_unreached(self, name: str, parameter: Tensor, samples: int) -> None:
        mean, squares = torch.zeros(2, parameter.numel(), dtype=torch.float64, device=parameter.device)
        _merge(self.moments, name, EntryMoments(samples, mean, squares, is_reached=False))

    @override
    def finish(self) -> None:
        for name, ratio in self._means(self._batch).items():
            self.record("batch", name, ratio)
        for name, moments in self._batch.items():
            _merge(self.moments, name, moments)
        self._batch = {}

    def ratios(self, name: str) -> Tensor:
        """The ratio of every entry of a parameter over all samples, flattened, float64; NaN where it is undefined."""
        return self._ratios(self.moments[name])

    def over_data_set(self) -> dict[str, float]:
        """Mean ratio over all samples since the last reset, by parameter and of the model; NaN where undefined."""
        return self._means(self.moments)

    def summary(self) -> Iterator[Row]:
        """Ratios within batches and over the data set."""
        yield from super().summary()
        for name, ratio in self.over_data_set().items():
            yield Row("data set", name, "mean", ratio)

    @override
    def reset(self) -> None:
        super().reset()
        self.moments = {}

    def _ratios(self, moments: EntryMoments) -> Tensor:
        if moments.count < 2:
            return torch.full_like(moments.mean, nan)
        signal = moments.mean.square()
        noise = moments.squares / moments.count
        noise = noise.add_(signal, alpha=self.epsilon) if self.relative else noise.add_(self.epsilon)
        return signal.div_(noise.clamp_(min=TINY))  # 0 where all gradients are; NaN where one is not finite

    def _means(self, moments: dict[str, EntryMoments]) -> dict[str, float]:
        sums = {name: _sum(self._ratios(each)) for name, each in moments.items() if each.is_reached}
        means = {name: total / defined if defined else nan for name, (total, defined) in sums.items()}
        if sums:
            total, defined = (sum(parts) for parts in zip(*sums.values(), strict=True))
            means[MODEL] = total / defined if defined else nan
        return means


def _sum(ratios: Tensor) -> tuple[float, int]:
    """The sum of what is defined, and how many entries are."""
    total = float(ratios.sum())
    if isfinite(total):
        return total, ratios.numel()
    return float(ratios.nansum()), int((~ratios.isnan()).sum())


def _merge(moments: dict[Key, EntryMoments], name: Key, more: EntryMoments) -> None:
    if name in moments:
        moments[name].merge(more)
    else:
        moments[name] = more
