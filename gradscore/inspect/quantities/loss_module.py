"""The loss, as a loss module returns it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from ...errors import ConfigError
from .quantity import MODEL, OutputQuantity


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
