"""From batches to gradients of losses: a forward and a backward pass, whose gradients are handed on as they come.

`OfLogits` has losses of logits, `OfBatches` losses that call the model themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ..data import Batch
from ..errors import ModelError
from ..features import BatchLosses, ForwardPass, LossOfBatch
from ..gradients import Engine, Sink, prepare
from ..system import Inputs, each_input, full_precision
from .given_loss import LossFunction, check_alone, check_halves, gradient_at


@dataclass(frozen=True)
class Seen:
    """What was found for N samples beside their gradients.

    Attributes:
        scale: (N,) float64, powers of two that the gradients are to be multiplied by.
        predictions: (N,) int64, the class with the largest logit; -1 where there are no logits.
    """

    scale: Tensor
    predictions: Tensor


class GradientStream(Protocol):
    """Runs batches through a model and hands on the gradients of their losses.

    Attributes:
        engine: knows the parameters.
        device: where they are.
        dtype: what is made of their gradients: float64 if they are, else float32.
    """

    engine: Engine
    device: torch.device
    dtype: torch.dtype

    def run(self, batch: Batch, sink: Sink) -> Seen:
        """Computes the gradients of N samples.

        Args:
            batch: the samples.
            sink: takes the gradients over `Seen.scale`; see `Engine.stream`.

        Raises:
            ModelError: the model cannot take the samples.
            EngineError: gradients that cannot be computed; samples are coupled, for one.
        """


class OfLogits:
    """A `GradientStream` of losses of a classifier's logits and labels.

    Args:
        model: the classifier, in evaluation mode, on the device that computes.
        parameters: those whose gradients are wanted, by name.
        num_classes: K, the number of its outputs.
        loss: of a sample.

    Raises:
        ModelError: a parameter is complex.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        parameters: Mapping[str, Tensor],
        num_classes: int,
        loss: str | LossFunction,
    ) -> None:
        self.device, self.dtype = _place_of(parameters)
        self._model, self._loss = model, loss
        self.engine = Engine(parameters)
        self._pass = ForwardPass(
            model, device=self.device, num_classes=num_classes, autocast=None, last_layer=None, augmentations=()
        )

    def prepare(self, images: Inputs, labels: Tensor) -> None:
        """Shows the engine and the loss a few samples.

        Raises:
            ModelError: nothing finite comes out.
            CoupledSamplesError: the output or the loss of a sample depends on the others of its batch.
            EngineError: the loss cannot take the outputs.
        """
        with full_precision():
            self._pass.try_out(images)
            here = each_input(images, lambda each: each.to(self.device))
            check_alone(self._loss, self._pass.outputs(images).detach(), labels)
            prepare(self.engine, self._model, here, lambda logits: gradient_at(self._loss, logits, labels).direction)

    def run(self, batch: Batch, sink: Sink) -> Seen:
        """As `GradientStream.run`."""
        with full_precision():
            outputs = self._pass.outputs(batch.images)
            logits = outputs.detach()
            gradient = gradient_at(self._loss, logits, batch.labels)
            check_halves(self._loss, logits, batch.labels, gradient.value)
            self.engine.stream(outputs, gradient.direction.to(outputs.dtype), sink)
        return Seen(gradient.scale, logits.double().argmax(1))


class OfBatches:
    """A `GradientStream` of losses that a program makes of whole batches.

    Args:
        model: in evaluation mode, on the device that computes.
        parameters: those whose gradients are wanted, by name.
        losses: from the model and a batch to (N,), or (N, T), of which each sample's sum counts.

    Raises:
        ModelError: a parameter is complex.
    """

    def __init__(self, model: nn.Module, *, parameters: Mapping[str, Tensor], losses: LossOfBatch) -> None:
        self.device, self.dtype = _place_of(parameters)
        self._losses = BatchLosses(model, losses, parameters)
        self.engine = self._losses.engine

    def run(self, batch: Batch, sink: Sink) -> Seen:
        """As `GradientStream.run`; `batch.images` is what the losses are called with."""
        with full_precision():
            losses = self._losses.of(batch.images)
            self.engine.stream(losses, torch.ones_like(losses), sink)
        nothing = torch.full((len(losses),), -1)
        return Seen(torch.ones(len(losses), dtype=torch.float64), nothing)


def _place_of(parameters: Mapping[str, Tensor]) -> tuple[torch.device, torch.dtype]:
    """The device of parameters, and the dtype of what is made of their gradients."""
    hard = [name for name, parameter in parameters.items() if parameter.is_complex()]
    if hard:
        raise ModelError(f"parameters: {hard[0]} is complex, and products are those of real gradients; leave it out")
    first = next(iter(parameters.values()))
    return first.device, torch.promote_types(first.dtype, torch.float32)
