"""Samples and the gradients of their losses: a forward and a backward pass, whose gradients are handed on as they come.

Losses are of a classifier's logits and labels, or call the model themselves and take batches as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..data import Batch, Samples, check_classes, whole_batches
from ..errors import ConfigError, ModelError
from ..extractor import WARM_UP, BatchLosses, ForwardPass, LossOfBatch, check_mode, count_classes
from ..gradients import Engine, GradientWarning, prepare
from ..gradients import Sink as GradientSink
from ..models import Interface, group_parameters
from ..pipeline import Counter, Progress, Sink, given_samples, run
from ..system import Inputs, each_input, full_precision, is_whole, rows_of
from .given_loss import LossFunction, check_alone, check_halves, check_loss, gradient_at, named

LOSS = "pseudo_label"
BATCH_SIZE = 64

Found = TypeVar("Found")


@dataclass(frozen=True)
class PassResult:
    """What was found for N samples beside their gradients.

    Attributes:
        scale: (N,) float64, powers of two that the gradients are to be multiplied by.
        predictions: (N,) int64, the class with the largest logit; -1 where there are no logits.
    """

    scale: Tensor
    predictions: Tensor


class Backward(Protocol):
    """Runs batches through a model and hands on the gradients of their losses.

    Attributes:
        engine: knows the parameters.
        device: where they are.
        dtype: what is made of their gradients: float64 if they are, else float32.
    """

    engine: Engine
    device: torch.device
    dtype: torch.dtype

    def run(self, batch: Batch, sink: GradientSink) -> PassResult:
        """Computes the gradients of N samples.

        Args:
            batch: the samples.
            sink: takes the gradients over `PassResult.scale`; see `Engine.stream`.

        Raises:
            ModelError: the model cannot take the samples.
            EngineError: gradients that cannot be computed; samples are coupled, for one.
        """


@dataclass(frozen=True, kw_only=True)
class GradientStream:
    """A model, samples, and what computes the gradients of their losses.

    Attributes:
        model: in evaluation mode.
        samples: all of them.
        loss_name: what the loss is called.
        backward: computes gradients; of losses of logits it has seen the first few samples.
        batch_size: samples that go through the model at a time; None for batches as they are.
        num_classes: K, that labels are checked by; None without logits.
    """

    model: nn.Module
    samples: Samples
    loss_name: str
    backward: Backward
    batch_size: int | None = None
    num_classes: int | None = None

    def run(
        self,
        compute: Callable[[Batch], Found],
        sink: Sink[Found],
        *,
        shard_size: int,
        progress: Progress | None = None,
    ) -> None:
        """Runs all samples through `compute`, which uses `backward`, and hands on what was found.

        Args:
            compute: of a batch.
            sink: takes what was found.
            shard_size: samples in a shard.
            progress: told after every batch.

        Raises:
            GradscoreError: samples or labels that cannot be used, or gradients that cannot be computed.
        """
        name = self.samples.name
        counter = Counter(self.samples.count or 0, progress)
        run(
            self._checked(),
            lambda cut: compute(cut.batch),
            sink,
            batch_size=self.batch_size,
            shard_size=shard_size,
            told=lambda _, samples: counter.add(name, samples),
        )

    def _checked(self) -> Iterator[Batch]:
        for batch in self.samples:
            if self.num_classes is not None:
                check_classes(batch, self.num_classes, name=self.samples.name)
            yield batch


@contextmanager
def gradients_of(
    model: nn.Module,
    data: Any,
    parameters: str | Sequence[str],
    *,
    loss: str | LossFunction | None = None,
    losses: LossOfBatch | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    output: str | int | None = None,
    one_logit: bool = False,
) -> Iterator[GradientStream]:
    """Gradients of the samples of a program; the arguments are those of `project`.

    Raises:
        ConfigError: no such loss, or settings that do not go together, or a pattern that matches no parameter.
        DataError: samples that cannot be used, or none.
        ModelError: the model is in training mode, or cannot take the samples.
        EngineError: the loss cannot take the samples.
    """
    if losses is None:
        loss = LOSS if loss is None else loss
        check_loss(loss)
        samples = given_samples(model, data, preprocessing=preprocessing)
        size = BATCH_SIZE if batch_size is None else batch_size
        if not is_whole(size) or size < 1:
            raise ConfigError(f"batch_size: wanted 1 sample or more, got {batch_size!r}")
        with logit_gradients(
            model, samples, parameters, loss=loss, batch_size=size, output=output, one_logit=one_logit
        ) as stream:
            yield stream
        return
    if not callable(losses):
        raise ConfigError(
            f"losses: wanted a function from the model and a batch to one loss for each sample, got "
            f"{type(losses).__name__}; losses by name, and functions of logits and labels, are given as loss"
        )
    others = {"loss": loss, "preprocessing": preprocessing, "batch_size": batch_size, "output": output}
    foreign = [name for name, value in others.items() if value is not None] + ["one_logit"] * one_logit
    if foreign:
        raise ConfigError(
            f"{foreign[0]}: does not go with losses ({named(losses)}), a function that calls the model itself; prepare "
            "batches and choose outputs there"
        )
    check_mode(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the notices say it
        backward = BatchBackward(model, parameters=_chosen(model, parameters), losses=losses)
        yield GradientStream(model=model, samples=whole_batches(data), loss_name=named(losses), backward=backward)


@contextmanager
def logit_gradients(
    model: nn.Module,
    samples: Samples,
    parameters: str | Sequence[str],
    *,
    loss: str | LossFunction,
    batch_size: int,
    output: str | int | None = None,
    one_logit: bool = False,
) -> Iterator[GradientStream]:
    """Gradients of losses of a classifier's logits; it returns logits for a while, and has seen the first samples.

    Args:
        model: in evaluation mode.
        samples: to show it.
        parameters: shell patterns on names of parameters, or one.
        loss: of a sample.
        batch_size: samples that go through the model at a time.
        output: name or position of the logits among what the model returns.
        one_logit: the model returns one logit for two classes.

    Raises:
        ConfigError: a pattern matches no parameter.
        DataError: samples that cannot be used, or none.
        ModelError: the model cannot take the samples, or nothing finite comes out.
        EngineError: the loss cannot take them.
    """
    with (
        Interface(num_classes=0, output=output, one_logit=one_logit, in_python=True).attached(model),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", GradientWarning)  # the notices say it
        first = samples.first
        classes = count_classes(model, first)
        backward = LogitBackward(model, parameters=_chosen(model, parameters), num_classes=classes, loss=loss)
        check_classes(first, classes, name=samples.name)
        few = slice(WARM_UP)
        backward.prepare(rows_of(first.inputs, few), first.labels[few])
        yield GradientStream(
            model=model,
            samples=samples,
            loss_name=named(loss),
            backward=backward,
            batch_size=batch_size,
            num_classes=classes,
        )


class LogitBackward:
    """Gradients of losses of a classifier's logits and labels; see `Backward`.

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

    def run(self, batch: Batch, sink: GradientSink) -> PassResult:
        """See `Backward`."""
        with full_precision():
            outputs = self._pass.outputs(batch.inputs)
            logits = outputs.detach()
            gradient = gradient_at(self._loss, logits, batch.labels)
            check_halves(self._loss, logits, batch.labels, gradient.value)
            self.engine.stream(outputs, gradient.direction.to(outputs.dtype), sink)
        return PassResult(gradient.scale, logits.double().argmax(1))


class BatchBackward:
    """Gradients of losses that a program makes of whole batches; see `Backward`.

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

    def run(self, batch: Batch, sink: GradientSink) -> PassResult:
        """See `Backward`; `batch.inputs` is what the losses are called with."""
        with full_precision():
            losses = self._losses.of(batch.inputs)
            self.engine.stream(losses, torch.ones_like(losses), sink)
        nothing = torch.full((len(losses),), -1)
        return PassResult(torch.ones(len(losses), dtype=torch.float64), nothing)


def _place_of(parameters: Mapping[str, Tensor]) -> tuple[torch.device, torch.dtype]:
    """The device of parameters, and the dtype of what is made of their gradients."""
    hard = [name for name, parameter in parameters.items() if parameter.is_complex()]
    if hard:
        raise ModelError(f"parameters: {hard[0]} is complex, and products are those of real gradients; leave it out")
    first = next(iter(parameters.values()))
    return first.device, torch.promote_types(first.dtype, torch.float32)


def _chosen(model: nn.Module, patterns: str | Sequence[str]) -> dict[str, Tensor]:
    """Parameters whose names match one of some shell patterns, by name."""
    given: object = [patterns] if isinstance(patterns, str) else patterns
    chosen = list(given) if isinstance(given, Iterable) else []
    if not chosen or not all(isinstance(each, str) for each in chosen):
        raise ConfigError(f"parameters: wanted one or more shell patterns on names of parameters, got {patterns!r}")
    (names,) = group_parameters(model, chosen, granularity="model").values()
    by_name = dict(model.named_parameters())
    return {name: by_name[name] for name in names}
