"""A model that a program has, and samples to show it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from ..data import Peeked, SampleStream, check_classes
from ..errors import ConfigError
from ..features import WARM_UP, Counter, Cut, Cutter, Progress, count_classes
from ..gradients import GradientWarning
from ..models import Interface, group_parameters
from ..system import rows_of
from .given_loss import LossFunction
from .gradient_stream import GradientStream


@dataclass(frozen=True, kw_only=True)
class LookedAt:
    """A model and samples.

    Attributes:
        model: in evaluation mode; it takes batches and returns logits.
        samples: all of them.
        num_classes: K.
    """

    model: nn.Module
    samples: Peeked
    num_classes: int

    @property
    def name(self) -> str:
        """What the samples are called."""
        return self.samples.name

    def gradients(self, parameters: str | Sequence[str], *, loss: str | LossFunction) -> GradientStream:
        """What computes the gradients of some parameters; it has seen the first few samples.

        Args:
            parameters: shell patterns on their names, or one.
            loss: of a sample.

        Raises:
            ConfigError: a pattern matches no parameter.
            ModelError: nothing finite comes out for the first samples.
            EngineError: the loss cannot take them.
        """
        patterns = [parameters] if isinstance(parameters, str) else parameters
        (names,) = group_parameters(self.model, patterns, granularity="model").values()
        by_name = dict(self.model.named_parameters())
        wanted = {name: by_name[name] for name in names}
        found = GradientStream(self.model, parameters=wanted, num_classes=self.num_classes, loss=loss)
        check_classes(self.samples.first, self.num_classes, name=self.name)
        few = slice(WARM_UP)
        first = self.samples.first
        found.prepare(rows_of(first.images, few), first.labels[few])
        return found

    def cuts(self, *, batch_size: int, shard_size: int, progress: Progress | None) -> Iterator[Cut]:
        """All samples in batches, each of one shard.

        Args:
            batch_size: samples in a batch.
            shard_size: samples in a shard.
            progress: told after every batch.

        Raises:
            ConfigError: a batch of no samples.
            DataError: samples or labels that cannot be used.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size: wanted 1 sample or more, got {batch_size!r}")
        counter = Counter(self.samples.samples or 0, progress)
        for cut in Cutter(batch_size=batch_size, shard_size=shard_size).cuts(self.samples.batches):
            check_classes(cut.batch, self.num_classes, name=self.name)
            yield cut
            counter.add(self.name, len(cut.batch.sample_ids))


@contextmanager
def looking_at(
    model: nn.Module,
    samples: SampleStream,
    *,
    output: str | int | None = None,
    one_logit: bool = False,
) -> Iterator[LookedAt]:
    """Has a model return logits for a while, and looks at the first of the samples.

    Args:
        model: in evaluation mode.
        samples: to show it.
        output: name or position of the logits among what the model returns.
        one_logit: the model returns one logit for two classes.

    Raises:
        DataError: samples that cannot be used, or none.
        ModelError: the model cannot take the samples.
    """
    with (
        Interface(num_classes=0, output=output, one_logit=one_logit).attached(model),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", GradientWarning)  # the notices say it
        peeked = Peeked.of(samples)
        yield LookedAt(model=model, samples=peeked, num_classes=count_classes(model, peeked.first))
