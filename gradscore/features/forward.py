"""What one look forward gives: logits and penultimate features, of samples and of views of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from ..columns import LOGIT, view_column
from ..data import ModelInputs, NamedInputs, View
from ..errors import DataError, ModelError
from ..models import LastLayer

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision of the network by its name in the settings; gradients and statistics keep float32 and float64."""

ROUNDING = 1e-5
"""Largest change of a view with the batch, relative to its largest value: a hundred roundings of float32."""


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

    def run(self, images: ModelInputs) -> Tensor:
        """What the model returns for a batch on its device: one tensor, or keyword inputs."""
        found: Tensor = self._model(**images) if isinstance(images, NamedInputs) else self._model(images)
        return found

    def outputs(self, images: ModelInputs) -> Tensor:
        """The logits (N, K) of images (N, C, H, W).

        Raises:
            ModelError: the model cannot take the images, or returns something else.
        """
        try:
            with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
                outputs = self.run(images.to(self._device, non_blocking=True))
        except torch.OutOfMemoryError:
            raise
        except SystemExit as error:
            raise ModelError(
                f"the code of the model ends the program in forward (SystemExit: {error}); take that out of it"
            ) from error
        except (RuntimeError, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(f"the model cannot take {_described(images)}: {reason}; {_advice(images)}") from None
        wanted = (len(images), self._num_classes)
        if not isinstance(outputs, Tensor) or outputs.shape != wanted:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ModelError(
                f"model outputs: wanted logits of shape {wanted} (samples, model.num_classes), got {got}; "
                "correct model.num_classes or the arguments of the model"
            )
        return outputs

    @torch.no_grad()
    def try_out(self, images: ModelInputs) -> None:
        """Makes sure that a few images (n, C, H, W) get something finite, and that views take each by itself.

        Raises:
            ModelError: no image has finite outputs because of weights or a view that are not finite, or a view couples
                samples or uses random numbers.
            DataError: there is no such view of these images.
        """
        usable = _rows(images, _are_finite(images)).to(self._device)
        if not len(usable):
            return
        plain = bool(_are_finite(self.outputs(usable)).any())
        named = chain(self._model.named_parameters(), self._model.named_buffers())
        bad = [] if plain else [name for name, values in named if not values.isfinite().all()]
        if bad:
            raise ModelError(
                f"the model gives no finite logits for any of the first {len(usable)} samples: {bad[0]} is not finite; "
                "check model.checkpoint"
            )
        for view in self._views:
            _check_alone(view, _one_tensor(usable))
            if plain and not _are_finite(self.outputs(view(_one_tensor(usable)))).any():
                raise ModelError(
                    f"features.views: '{view.name}' leads to no finite logits for any of the first {len(usable)} "
                    "samples, which have finite ones without it; correct or remove it"
                )

    def caught(self, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
        """What `forward` returns, and the penultimate features (N, D) float64 if they are wanted."""
        if self._last_layer is None:
            return forward(), []
        outputs, features = self._last_layer.catch(forward)
        return outputs, [features.double()]

    @torch.no_grad()
    def values(self, images: ModelInputs) -> Tensor:
        """(N, len(names)) float64; raises the same as `outputs`."""
        outputs, penultimate = self.caught(lambda: self.outputs(images))
        return torch.cat([outputs.double(), *penultimate], dim=1)

    @torch.no_grad()
    def view_values(self, images: ModelInputs) -> list[Tensor]:
        """For every view (N, len(names)) float64.

        Raises:
            DataError: there is no such view of these images.
            ModelError: as `outputs`.
        """
        if not self._views:
            return []
        moved = _one_tensor(images).to(self._device)
        return [self.values(view(moved)) for view in self._views]


def _are_finite(values: ModelInputs) -> Tensor:
    """Which rows (N,) of values (N, ...) hold finite numbers alone."""
    return values.isfinite().flatten(1).all(1)


def _rows(images: ModelInputs, which: Tensor) -> ModelInputs:
    return images[which] if isinstance(images, Tensor) else images.rows(which)


def _one_tensor(images: ModelInputs) -> Tensor:
    if isinstance(images, NamedInputs):
        raise DataError(
            f"features.views: there are none of keyword inputs ({', '.join(images)}); remove features.views"
        )
    return images


def _described(images: ModelInputs) -> str:
    """What a sample is, for messages."""
    if isinstance(images, NamedInputs):
        return f"keyword inputs {', '.join(map(str, images.shape[1:]))}"
    what = "images" if images.dim() == 4 else f"samples ({str(images.dtype).removeprefix('torch.')})"
    return f"{what} of shape {tuple(images.shape[1:])}"


def _advice(images: ModelInputs) -> str:
    if isinstance(images, Tensor) and images.dim() == 4:
        return "check preprocessing (resize, crop, channels)"
    return "check which arrays or columns of the data the model takes (arguments: inputs of the source)"


def _check_alone(view: View, images: Tensor) -> None:
    """Makes sure that a view of a batch is the view of each sample, and the same each time."""
    whole = view(images)
    middle = max(1, len(images) // 2)
    trials = {
        "gives other values each time; it must not use random numbers": view(images),
        "gives a sample other values in another batch; it must treat each sample by itself": torch.cat(
            [view(part) for part in (images[:middle], images[middle:]) if len(part)]
        ),
    }
    allowed = ROUNDING * float(whole.nan_to_num(0.0, 0.0, 0.0).abs().max())
    for fault, found in trials.items():
        if not torch.allclose(found, whole, rtol=0.0, atol=allowed, equal_nan=True):
            raise ModelError(f"features.views: '{view.name}' {fault}")
