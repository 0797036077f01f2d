"""What a program asks of samples: losses of logits by name or as a function, or a loss that calls the model itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..features import LossOfBatch, given_samples
from .given_loss import LossFunction, check_loss, named
from .looked_at import LookedAt, looking_at, looking_at_batches

LOSS = "pseudo_label"
BATCH_SIZE = 64


@dataclass(frozen=True)
class Asked:
    """The arguments of `project` that say which gradients are wanted of what samples; None where nothing is said."""

    loss: str | LossFunction | None = None
    losses: LossOfBatch | None = None
    preprocessing: Mapping[str, Any] | None = None
    batch_size: int | None = None
    output: str | int | None = None
    one_logit: bool = False

    @contextmanager
    def looking_at(self, model: nn.Module, data: Any) -> Iterator[LookedAt]:
        """A model and samples of a program.

        Raises:
            ConfigError: no such loss, or settings that do not go together.
            DataError: samples that cannot be used, or none.
            ModelError: the model is in training mode, or cannot take the samples.
        """
        if self.losses is not None:
            self._check_batches()
            with looking_at_batches(model, data, self.losses) as batches:
                yield batches
            return
        loss = LOSS if self.loss is None else self.loss
        check_loss(loss)
        given = given_samples(model, data, preprocessing=self.preprocessing)
        size = BATCH_SIZE if self.batch_size is None else self.batch_size
        with looking_at(
            model, given, loss=loss, batch_size=size, output=self.output, one_logit=self.one_logit
        ) as samples:
            yield samples

    def _check_batches(self) -> None:
        if not callable(self.losses):
            raise ConfigError(
                f"losses: wanted a function from the model and a batch to one loss for each sample, got "
                f"{type(self.losses).__name__}; losses by name, and functions of logits and labels, are given as loss"
            )
        given = {name: value for name, value in vars(self).items() if name != "losses"}
        foreign = [name for name, value in given.items() if value is not None and value is not False]
        if foreign:
            raise ConfigError(
                f"{foreign[0]}: does not go with losses ({named(self.losses)}), a function that calls the model "
                "itself; prepare batches and choose outputs there"
            )
