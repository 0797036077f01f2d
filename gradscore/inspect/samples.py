"""Feeding quantities with the gradients of single samples, straight from the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from ..errors import EngineError
from ..gradients import Block, Engine, PerSample, Sink
from .quantities.quantity import SampleGradientQuantity


@dataclass(frozen=True)
class Scaled(PerSample):
    """Per-sample gradients times one number per sample, in float64.

    Attributes:
        base: the gradients.
        scale: (N,) float64.
    """

    base: PerSample
    scale: Tensor

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    @override
    def device(self) -> torch.device:
        return self.base.device

    @property
    @override
    def implicit_zeros(self) -> int:
        return self.base.implicit_zeros

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.base)

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


def observe_samples(
    engine: Engine,
    outputs: Tensor,
    grad_outputs: Tensor,
    quantities: Sequence[SampleGradientQuantity],
    *,
    scale: Tensor | None = None,
    retain_graph: bool = False,
) -> None:
    """Runs one more backward pass and feeds quantities with the per-sample gradients of a batch.

    A parameter that the outputs do not depend on, or that is frozen, is not looked at.

    Args:
        engine: knows the parameters.
        outputs: (N, ...) with a graph; sample n must depend on nothing but input n and the parameters.
        grad_outputs: gradient of the losses at the outputs, of their shape.
        quantities: what is fed.
        scale: (N,) float64, by which the gradients are multiplied afterwards, in float64.
        retain_graph: keep the graph for another pass.

    Raises:
        CoupledSamplesError: the losses of the samples depend on one another.
        EngineError: gradients that cannot be computed.
    """
    with _fed(engine.parameters, quantities, len(outputs), scale) as sink:
        engine.stream(outputs, grad_outputs, sink, retain_graph=retain_graph)


def observe_training(
    engine: Engine,
    losses: Tensor,
    quantities: Sequence[SampleGradientQuantity],
    *,
    weight: float,
    around: AbstractContextManager[object],
) -> None:
    """Runs the backward pass of training and feeds quantities with the per-sample gradients on its way.

    Args:
        engine: knows the parameters.
        losses: (N,) with a graph; loss n must depend on nothing but sample n and the parameters.
        quantities: what is fed.
        weight: see `Engine.backward`.
        around: see `Engine.backward`.

    Raises:
        CoupledSamplesError: the losses depend on one another.
        EngineError: gradients that cannot be computed, or a weight of zero.
    """
    with _fed(engine.parameters, quantities, len(losses)) as sink:
        engine.backward(losses, torch.ones_like(losses), sink, weight=weight, around=around)


@contextmanager
def _fed(
    parameters: Mapping[str, Tensor],
    quantities: Sequence[SampleGradientQuantity],
    samples: int,
    scale: Tensor | None = None,
) -> Iterator[Sink]:
    """What takes the gradients of a batch to the quantities."""

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
