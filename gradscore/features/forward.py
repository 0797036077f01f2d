"""What one look forward gives: logits and penultimate features, of samples and of views of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..columns import LOGIT, view_column
from ..data import View
from ..errors import ModelError
from ..models import LastLayer

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision of the network by its name in the settings; gradients and statistics keep float32 and float64."""


class ForwardPass:
    """Runs a classifier.

    Args:
        model: in evaluation mode.
        device: where it is.
        num_classes: K, the number of its outputs.
        autocast: a name in `AUTOCAST`, or None.
        last_layer: the layer whose inputs are wanted, if any.
        views: ways to look at the samples beside the plain one.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        num_classes: int,
        autocast: str | None,
        last_layer: LastLayer | None,
        views: Sequence[View],
    ) -> None:
        self._model, self._device, self._num_classes = model, device, num_classes
        self._autocast = AUTOCAST.get(autocast or "")
        self._last_layer = last_layer
        self._views = views

    @property
    def names(self) -> list[str]:
        """The names of logits and penultimate features."""
        penultimate = [] if self._last_layer is None else self._last_layer.columns
        return [f"{LOGIT}{place}" for place in range(self._num_classes)] + penultimate

    @property
    def view_names(self) -> list[str]:
        """The names of the same of all views."""
        return [view_column(view.name, name) for view in self._views for name in self.names]

    def outputs(self, images: Tensor) -> Tensor:
        """The logits (N, K) of images (N, C, H, W).

        Raises:
            ModelError: the model cannot take the images, or returns something else.
        """
        try:
            with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
                outputs = self._model(images.to(self._device, non_blocking=True))
        except torch.OutOfMemoryError:
            raise
        except SystemExit as error:
            raise ModelError(
                f"the code of the model ends the program in forward (SystemExit: {error}); take that out of it"
            ) from error
        except (RuntimeError, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(
                f"the model cannot take images of shape {tuple(images.shape[1:])}: {reason}; "
                "check preprocessing (resize, crop, channels)"
            ) from None
        wanted = (len(images), self._num_classes)
        if not isinstance(outputs, Tensor) or outputs.shape != wanted:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ModelError(
                f"model outputs: wanted logits of shape {wanted} (samples, model.num_classes), got {got}; "
                "correct model.num_classes or the arguments of the model"
            )
        return outputs

    def caught(self, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
        """What `forward` returns, and the penultimate features (N, D) float64 if they are wanted."""
        if self._last_layer is None:
            return forward(), []
        outputs, features = self._last_layer.catch(forward)
        return outputs, [features.double()]

    @torch.no_grad()
    def values(self, images: Tensor) -> Tensor:
        """(N, len(names)) float64; raises the same as `outputs`."""
        outputs, penultimate = self.caught(lambda: self.outputs(images))
        return torch.cat([outputs.double(), *penultimate], dim=1)

    @torch.no_grad()
    def view_values(self, images: Tensor) -> list[Tensor]:
        """For every view (N, len(names)) float64.

        Raises:
            DataError: there is no such view of these images.
            ModelError: as `outputs`.
        """
        if not self._views:
            return []
        images = images.to(self._device)
        return [self.values(view(images)) for view in self._views]
