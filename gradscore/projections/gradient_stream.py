"""Samples and the gradients of their losses: a forward and a backward pass, whose gradients are handed on as they come.

Losses are of a classifier's logits and labels, or call the model themselves and take batches as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Batch, Samples, check_classes, whole_batches
from ..errors import ConfigError, ModelError
from ..extractor import WARM_UP, BatchLosses, ForwardPass, LossOfBatch, check_mode, count_classes
from ..gradients import Engine, Sink, prepare
from ..losses import LOSSES, Loss
from ..models import Interface, group_parameters
from ..pipeline import given_samples
from ..system import each_input, full_precision, is_whole, rows_of


def find_loss(name: object) -> Loss:
    """The loss of this name, with one gradient.

    Raises:
        ConfigError: there is none.
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"loss: wanted a name ({', '.join(LOSSES)}), got {type(name).__name__}; a function of the model and a "
            "batch is given as losses"
        )
    head = LOSSES.find(name, where="loss")
    if head.several:
        single = ", ".join(name for name in LOSSES if not LOSSES[name].several)
        raise ConfigError(f"loss: '{name}' has several gradients; choose one of {single}, or give losses, a function")
    return head


LOSS = "pseudo_label"
BATCH_SIZE = 64

Backward = Callable[[Batch, Sink], tuple[Tensor, Tensor]]
"""Computes the gradients of N samples and hands them on, over powers of two; returns these powers (N,) float64, and the
predictions (N,) int64, -1 where there are no logits."""


@dataclass(frozen=True, kw_only=True)
class GradientStream:
    """A model, samples, and what computes the gradients of their losses.

    Attributes:
        model: in evaluation mode.
        samples: all of them.
        loss_name: what the loss is called.
        engine: knows the parameters.
        backward: computes gradients; of losses of logits it has seen the first few samples.
        batch_size: samples that go through the model at a time; None for batches as they are.
        num_classes: K, that labels are checked by; None without logits.
    """

    model: nn.Module
    samples: Samples
    loss_name: str
    engine: Engine
    backward: Backward
    batch_size: int | None = None
    num_classes: int | None = None

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(iter(self.engine.parameters.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of what is made of gradients: float64 if the first parameter is, else float32."""
        return torch.promote_types(next(iter(self.engine.parameters.values())).dtype, torch.float32)

    def batches(self) -> Iterator[Batch]:
        """All samples; `DataError` for a label that is no class."""
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
    loss: str | None,
    losses: LossOfBatch | None,
    preprocessing: Mapping[str, Any] | None,
    batch_size: int | None,
    output: str | int | None,
    one_logit: bool,
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
            f"{type(losses).__name__}; losses by name are given as loss"
        )
    others = {"loss": loss, "preprocessing": preprocessing, "batch_size": batch_size, "output": output}
    foreign = [name for name, value in others.items() if value is not None] + ["one_logit"] * one_logit
    name = getattr(losses, "__qualname__", type(losses).__qualname__)
    if foreign:
        raise ConfigError(
            f"{foreign[0]}: does not go with losses ({name}), a function that calls the model itself; prepare batches "
            "and choose outputs there"
        )
    check_mode(model)
    of_batch = BatchLosses(model, losses, _chosen(model, parameters))
    of_batch.engine.warns = False  # the notices say it

    def backward(batch: Batch, sink: Sink) -> tuple[Tensor, Tensor]:
        with full_precision():
            found = of_batch.of(batch.inputs)
            of_batch.engine.stream(found, torch.ones_like(found), sink)
        return torch.ones(len(found), dtype=torch.float64, device="cpu"), torch.full((len(found),), -1, device="cpu")

    yield GradientStream(
        model=model,
        samples=whole_batches(data),
        loss_name=name,
        engine=of_batch.engine,
        backward=backward,
    )


@contextmanager
def logit_gradients(
    model: nn.Module,
    samples: Samples,
    parameters: str | Sequence[str],
    *,
    loss: str,
    batch_size: int,
    output: str | int | None = None,
    one_logit: bool = False,
) -> Iterator[GradientStream]:
    """Gradients of losses of a classifier's logits; it returns logits for a while, and has seen the first samples.

    Args:
        model: in evaluation mode.
        samples: to show it.
        parameters: shell patterns on names of parameters, or one.
        loss: a name in `gradscore.losses.LOSSES`.
        batch_size: samples that go through the model at a time.
        output: name or position of the logits among what the model returns.
        one_logit: the model returns one logit for two classes.

    Raises:
        ConfigError: no such loss, or a pattern matches no parameter.
        DataError: samples that cannot be used, or none.
        ModelError: the model cannot take the samples, or nothing finite comes out.
        CoupledSamplesError: the output of a sample depends on the others of its batch.
    """
    head = find_loss(loss)
    with Interface(output=output, one_logit=one_logit).attached(model):
        first = samples.first
        classes = count_classes(model, first)
        engine = Engine(_chosen(model, parameters), warns=False)
        device = next(iter(engine.parameters.values())).device
        forward = ForwardPass(model, device=device, num_classes=classes)
        check_classes(first, classes, name=samples.name)
        few = rows_of(first.inputs, slice(WARM_UP))
        labels = first.labels[:WARM_UP]
        with full_precision():
            forward.try_out(few)
            few = each_input(few, lambda each: each.to(device))
            prepare(engine, model, few, lambda logits: head(logits, labels).direction)

        def backward(batch: Batch, sink: Sink) -> tuple[Tensor, Tensor]:
            with full_precision():
                outputs = forward.outputs(batch.inputs)
                logits = outputs.detach()
                gradient = head(logits, batch.labels)
                engine.stream(outputs, gradient.direction.to(outputs.dtype), sink)
            return gradient.scale, logits.double().argmax(1)

        yield GradientStream(
            model=model,
            samples=samples,
            loss_name=loss,
            engine=engine,
            backward=backward,
            batch_size=batch_size,
            num_classes=classes,
        )


def _chosen(model: nn.Module, patterns: str | Sequence[str]) -> dict[str, Tensor]:
    """Parameters whose names match one of some shell patterns, by name."""
    given: object = [patterns] if isinstance(patterns, str) else patterns
    chosen = list(given) if isinstance(given, Iterable) else []
    if not chosen or not all(isinstance(each, str) for each in chosen):
        raise ConfigError(f"parameters: wanted one or more shell patterns on names of parameters, got {patterns!r}")
    (names,) = group_parameters(model, chosen, granularity="model").values()
    by_name = dict(model.named_parameters())
    found: dict[str, Tensor] = {name: by_name[name] for name in names}
    hard = next((name for name, each in found.items() if each.is_complex()), None)
    if hard is not None:
        raise ModelError(f"parameters: {hard} is complex, and products are those of real gradients; leave it out")
    return found
