"""Losses and other figures that a training loop has."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from typing_extensions import override

from ...errors import ConfigError
from .aggregates import Aggregate, Running, Series
from .quantity import MODEL, OutputQuantity, Quantity


class ExplicitCall(Quantity):
    """Figures by name, kept as running moments or in memory, as each call says.

    Args:
        train_loss: name for losses of training.
        other_loss: name for losses of validation and test.
        options: see `Quantity`.
    """

    name = "explicit"

    def __init__(
        self, *, train_loss: str = "training loss", other_loss: str = "validation loss", **options: Any
    ) -> None:
        super().__init__(**options)
        self.train_loss, self.other_loss = train_loss, other_loss

    def push_running(self, name: str, value: Tensor | float) -> None:
        """Adds a value to running moments; `ConfigError` if values under this name are kept in memory."""
        self._push(name, value, Running)

    def push_memory(self, name: str, value: Tensor | float) -> None:
        """Keeps a value in memory; `ConfigError` if running moments are kept under this name."""
        self._push(name, value, Series)

    def push_loss(self, value: Tensor | float, *, train: bool, running: bool = True) -> None:
        """Adds a loss.

        Args:
            value: the loss.
            train: whether it is one of training.
            running: keep running moments, not the values.
        """
        push = self.push_running if running else self.push_memory
        push(self.train_loss if train else self.other_loss, value)

    @override
    def merge(self, other: Self) -> None:
        for measure, layers in other.value.items():
            mine = self.value.setdefault(measure, {})
            for layer, aggregate in layers.items():
                mine.setdefault(layer, type(aggregate)()).merge(aggregate)
        self.merge_timelines(other)

    def _push(self, name: str, value: Tensor | float, kind: type[Aggregate]) -> None:
        number = _number(name, value)
        aggregate = self._aggregates.setdefault(name, {}).setdefault(MODEL, kind())
        if not isinstance(aggregate, kind):
            raise ConfigError(
                f"{name!r} is kept {'in memory' if kind is Running else 'as running moments'} since it was first "
                "pushed; use the same way for every value of a name"
            )
        self._add(name, MODEL, [number], self.step)


def _number(name: str, value: object) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ConfigError(f"{name!r}: wanted one number, got {got}") from None


class LossModule(OutputQuantity):
    """Losses of training and of other passes, from the outputs of a loss module.

    Attach an inspector to the loss module with this quantity, or to a model that contains one.

    Args:
        train_loss: name of the measure for training passes.
        other_loss: name of the measure for all other passes.
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "loss"

    def __init__(
        self, *, train_loss: str = "training loss", other_loss: str = "validation loss", **options: Any
    ) -> None:
        super().__init__(record_eval=True, **options)
        self.train_loss, self.other_loss = train_loss, other_loss

    def wants(self, module: nn.Module) -> bool:
        """Loss modules of PyTorch and what is derived from them."""
        return isinstance(module, _Loss)

    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        """See `OutputQuantity`.

        Raises:
            ConfigError: the output is not a single number.
        """
        del layer
        if output.numel() != 1:
            raise ConfigError(
                f"{type(module).__name__} returned a tensor of shape {tuple(output.shape)}, wanted a single loss; "
                "use reduction='mean' or 'sum', or record losses per sample with ExplicitCall"
            )
        self.record(self.train_loss if self.is_training(module) else self.other_loss, MODEL, output)
