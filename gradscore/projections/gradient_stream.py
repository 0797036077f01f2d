"""From batches to gradients of losses: a forward and a backward pass, whose gradients are handed on as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..features import ForwardPass
from ..gradients import Engine, Sink, prepare
from ..system import Inputs, each_input, full_precision
from .given_loss import LossFunction, check_alone, check_halves, gradient_at


@dataclass(frozen=True)
class Seen:
    """What was found for N samples beside their gradients.

    Attributes:
        scale: (N,) float64, powers of two that the gradients are to be multiplied by.
        predictions: (N,) int64, the class with the largest logit.
    """

    scale: Tensor
    predictions: Tensor


class GradientStream:
    """Runs batches through a classifier and hands on the gradients of their losses.

    Args:
        model: the classifier, in evaluation mode, on the device that computes.
        parameters: those whose gradients are wanted, by name.
        num_classes: K, the number of its outputs.
        loss: of a sample.

    Attributes:
        engine: knows the parameters.
        device: where they are.
        dtype: what is made of their gradients: float64 if they are, else float32.

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
        hard = [name for name, parameter in parameters.items() if parameter.is_complex()]
        if hard:
            raise ModelError(
                f"parameters: {hard[0]} is complex, and products are those of real gradients; leave it out"
            )
        self._model, self._loss = model, loss
        self.device = next(iter(parameters.values())).device
        self.dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
        self.engine = Engine(parameters)
        self._pass = ForwardPass(
            model, device=self.device, num_classes=num_classes, autocast=None, last_layer=None, views=()
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
            labels = labels.to(self.device)
            check_alone(self._loss, self._pass.outputs(images).detach(), labels)
            prepare(self.engine, self._model, here, lambda logits: gradient_at(self._loss, logits, labels).direction)

    def run(self, images: Inputs, labels: Tensor, sink: Sink) -> Seen:
        """Computes the gradients of N samples.

        Args:
            images: (N, C, H, W), or other inputs, preprocessed.
            labels: (N,) int64, -1 for none.
            sink: takes the gradients over `Seen.scale`; see `Engine.stream`.

        Raises:
            ModelError: the model cannot take the samples.
            EngineError: gradients that cannot be computed; samples are coupled, for one.
        """
        with full_precision():
            outputs = self._pass.outputs(images)
            logits = outputs.detach()
            labels = labels.to(self.device)
            gradient = gradient_at(self._loss, logits, labels)
            check_halves(self._loss, logits, labels, gradient.value)
            self.engine.stream(outputs, gradient.direction.to(outputs.dtype), sink)
        return Seen(gradient.scale, logits.double().argmax(1))
