"""A model and samples to show it: those of a classifier, or batches for a loss that calls the model itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..data import Batch, Peeked, SampleStream, check_classes
from ..errors import ConfigError
from ..features import (
    WARM_UP,
    Counter,
    Cut,
    Cutter,
    LossOfBatch,
    Progress,
    check_mode,
    content_hashes,
    count_classes,
    count_samples,
    each_batch,
)
from ..gradients import GradientWarning
from ..models import Interface, group_parameters
from ..system import is_whole, rows_of
from .given_loss import LossFunction, named
from .gradient_stream import GradientStream, OfBatches, OfLogits


class LookedAt(Protocol):
    """A model, in evaluation mode, and samples whose gradients are wanted."""

    @property
    def model(self) -> nn.Module:
        """The model, in evaluation mode, on the device that computes."""

    @property
    def name(self) -> str:
        """What the samples are called."""

    @property
    def loss_name(self) -> str:
        """What the loss is called."""

    def gradients(self, parameters: str | Sequence[str]) -> GradientStream:
        """What computes the gradients of some parameters.

        Args:
            parameters: shell patterns on their names, or one.

        Raises:
            ConfigError: a pattern matches no parameter.
            ModelError: the model cannot take the samples.
            EngineError: the loss cannot take them.
        """

    def cuts(self, *, shard_size: int, progress: Progress | None) -> Iterator[Cut]:
        """All samples in batches, each of one shard.

        Args:
            shard_size: samples in a shard.
            progress: told after every batch.

        Raises:
            DataError: samples or labels that cannot be used.
        """


@dataclass(frozen=True, kw_only=True)
class Classified:
    """A classifier and samples; see `LookedAt`.

    Attributes:
        model: in evaluation mode; it takes batches and returns logits.
        samples: all of them.
        num_classes: K.
        loss: of a sample.
        batch_size: samples that go through the model at a time.
    """

    model: nn.Module
    samples: Peeked
    num_classes: int
    loss: str | LossFunction
    batch_size: int

    @property
    def name(self) -> str:
        """What the samples are called."""
        return self.samples.name

    @property
    def loss_name(self) -> str:
        """What the loss is called."""
        return named(self.loss)

    def gradients(self, parameters: str | Sequence[str]) -> GradientStream:
        """What computes the gradients of some parameters; it has seen the first few samples.

        Args:
            parameters: shell patterns on their names, or one.

        Raises:
            ConfigError: a pattern matches no parameter.
            ModelError: nothing finite comes out for the first samples.
            EngineError: the loss cannot take them.
        """
        wanted = _parameters(self.model, parameters)
        found = OfLogits(self.model, parameters=wanted, num_classes=self.num_classes, loss=self.loss)
        check_classes(self.samples.first, self.num_classes, name=self.name)
        few = slice(WARM_UP)
        first = self.samples.first
        found.prepare(rows_of(first.images, few), first.labels[few])
        return found

    def cuts(self, *, shard_size: int, progress: Progress | None) -> Iterator[Cut]:
        """As `LookedAt.cuts`."""
        counter = Counter(self.samples.samples or 0, progress)
        for cut in Cutter(batch_size=self.batch_size, shard_size=shard_size).cuts(self.samples.batches):
            check_classes(cut.batch, self.num_classes, name=self.name)
            yield cut
            counter.add(self.name, len(cut.batch.sample_ids))


@dataclass(frozen=True, kw_only=True)
class GivenBatches:
    """A model and batches for a loss that calls it; see `LookedAt`.

    Attributes:
        model: in evaluation mode.
        batches: each a tensor, or a container that holds some, with the samples along the first axis of the first.
        losses: from the model and a batch to (N,) or (N, T).
        name: what the samples are called.
    """

    model: nn.Module
    batches: Iterable[Any]
    losses: LossOfBatch
    name: str = "data"

    @property
    def loss_name(self) -> str:
        """What the loss is called."""
        return named(self.losses)

    def gradients(self, parameters: str | Sequence[str]) -> GradientStream:
        """As `LookedAt.gradients`; it has seen nothing yet."""
        return OfBatches(self.model, parameters=_parameters(self.model, parameters), losses=self.losses)

    def cuts(self, *, shard_size: int, progress: Progress | None) -> Iterator[Cut]:
        """All batches as they are; a shard is full with the batch that fills it.

        Their labels are -1, and their names their numbers.
        """
        counter = Counter(0, progress)
        done = shard = begun = 0
        for given in each_batch(self.batches):
            samples = count_samples(given)
            batch = Batch(
                sample_ids=[str(place) for place in range(done, done + samples)],
                images=given,
                labels=torch.full((samples,), -1),
                content_hashes=content_hashes(given),
                bad=[],
            )
            done += samples
            is_full = done - begun >= shard_size
            yield Cut(batch, shard, last=is_full)
            shard, begun = (shard + 1, done) if is_full else (shard, begun)
            counter.add(self.name, samples)


@contextmanager
def looking_at(
    model: nn.Module,
    samples: SampleStream,
    *,
    loss: str | LossFunction,
    batch_size: int,
    output: str | int | None = None,
    one_logit: bool = False,
) -> Iterator[Classified]:
    """Has a model return logits for a while, and looks at the first of the samples.

    Args:
        model: in evaluation mode.
        samples: to show it.
        loss: of a sample.
        batch_size: samples that go through the model at a time.
        output: name or position of the logits among what the model returns.
        one_logit: the model returns one logit for two classes.

    Raises:
        ConfigError: a batch of no samples.
        DataError: samples that cannot be used, or none.
        ModelError: the model cannot take the samples.
    """
    if not is_whole(batch_size) or batch_size < 1:
        raise ConfigError(f"batch_size: wanted 1 sample or more, got {batch_size!r}")
    with (
        Interface(num_classes=0, output=output, one_logit=one_logit, in_python=True).attached(model),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", GradientWarning)  # the notices say it
        peeked = Peeked.of(samples)
        classes = count_classes(model, peeked.first)
        yield Classified(model=model, samples=peeked, num_classes=classes, loss=loss, batch_size=batch_size)


@contextmanager
def looking_at_batches(model: nn.Module, batches: Iterable[Any], losses: LossOfBatch) -> Iterator[GivenBatches]:
    """Has a loss that calls a model look at batches.

    Args:
        model: in evaluation mode.
        batches: to show it.
        losses: of a batch.

    Raises:
        ModelError: the model is in training mode.
    """
    check_mode(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the notices say it
        yield GivenBatches(model=model, batches=batches, losses=losses)


def _parameters(model: nn.Module, patterns: str | Sequence[str]) -> dict[str, Tensor]:
    """Parameters whose names match one of some shell patterns, by name."""
    given: object = [patterns] if isinstance(patterns, str) else patterns
    chosen = list(given) if isinstance(given, Iterable) else []
    if not chosen or not all(isinstance(each, str) for each in chosen):
        raise ConfigError(f"parameters: wanted one or more shell patterns on names of parameters, got {patterns!r}")
    (names,) = group_parameters(model, chosen, granularity="model").values()
    by_name = dict(model.named_parameters())
    return {name: by_name[name] for name in names}
