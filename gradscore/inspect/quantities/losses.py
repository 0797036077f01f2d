"""Losses and other figures that a training loop has."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from ...errors import ConfigError
from .quantity import MODEL, OutputQuantity, Quantity

TRAINING_LOSS, VALIDATION_LOSS = "training loss", "validation loss"


class ExplicitCall(Quantity):
    """Figures by name that a training loop hands in itself: `push("accuracy", 0.9)`."""

    name = "explicit"

    def push(self, name: str, value: Tensor | float) -> None:
        """Adds a figure.

        Args:
            name: what it is called.
            value: one number.

        Raises:
            ConfigError: it is something else.
        """
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ConfigError(f"{name!r}: wanted one number, got {got}") from None
        self.record(name, MODEL, number)


class LossModule(OutputQuantity):
    """Losses of training and of other passes, from the outputs of a loss module.

    Attach an inspector to the loss module with this quantity, or to a model that contains one.

    Args:
        options: see `OutputQuantity` and `Quantity`.
    """

    name = "loss"

    def __init__(self, **options: Any) -> None:
        super().__init__(record_eval=True, **options)

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
        self.record(TRAINING_LOSS if self.is_training(module) else VALIDATION_LOSS, MODEL, output)
