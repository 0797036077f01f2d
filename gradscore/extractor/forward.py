"""What one pass forward gives: logits and penultimate features, of samples and of augmentations of them.

And what a model must be like for that: in evaluation mode, with logits of two or more classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from ..columns import LOGIT, augmentation_column
from ..data import Augmentation, Batch
from ..errors import GradscoreError, ModelError, reason
from ..gradients import refuse_coupled
from ..models import LastLayer, refuse_foreign, refuse_probabilities
from ..system import Inputs, described, each_input, finite_rows, rows_of, sample_count

WARM_UP = 3
"""Samples shown to the engine before a run: as many as tell sample layouts apart."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision of the network by its name in the settings; gradients and statistics keep float32 and float64."""

ROUNDING = 1e-5
"""Largest change of an augmentation with the batch, relative to its largest value: a hundred roundings of float32."""


class ForwardPass:
    """Runs a classifier.

    Args:
        model: in evaluation mode.
        device: where it is.
        num_classes: K, the number of its outputs.
        autocast: a name in `AUTOCAST`, or None.
        last_layer: the layer whose inputs are wanted, if any.
        augmentations: ways to look at the samples beside the plain one.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        num_classes: int,
        autocast: str | None,
        last_layer: LastLayer | None,
        augmentations: Sequence[Augmentation],
    ) -> None:
        self._model, self._device, self._num_classes = model, device, num_classes
        self._autocast = AUTOCAST.get(autocast or "")
        self._last_layer = last_layer
        self._augmentations = augmentations

    @property
    def names(self) -> list[str]:
        """The names of logits and penultimate features."""
        penultimate = [] if self._last_layer is None else self._last_layer.columns
        return [f"{LOGIT}{place}" for place in range(self._num_classes)] + penultimate

    @property
    def augmentation_names(self) -> list[str]:
        """The names of the same of all augmentations."""
        return [
            augmentation_column(augmentation.name, name) for augmentation in self._augmentations for name in self.names
        ]

    def outputs(self, images: Inputs) -> Tensor:
        """The logits (N, K) of images (N, C, H, W), or of other inputs.

        Raises:
            ModelError: the model cannot take the images, or returns something else than logits.
        """
        try:
            with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
                # A copy, since a network may work in place on what it is given.
                outputs = self._model(each_input(self._here(images), Tensor.clone))
        except (GradscoreError, torch.OutOfMemoryError):
            raise
        except SystemExit as error:
            raise ModelError(
                f"the code of the model ends the program in forward (SystemExit: {error}); take that out of it"
            ) from error
        except FAILURES as error:
            raise ModelError(refusal(error, images)) from None
        wanted = (sample_count(images), self._num_classes)
        if not isinstance(outputs, Tensor) or outputs.shape != wanted:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ModelError(
                f"model outputs: wanted logits of shape {wanted} (samples, model.num_classes), got {got}; correct "
                "model.num_classes or the arguments of the model"
            )
        refuse_probabilities(outputs)
        return outputs

    @torch.no_grad()
    def try_out(self, images: Inputs) -> None:
        """Makes sure that a few inputs (n, ...) get something finite, and that augmentations take each by itself.

        Raises:
            ModelError: no image has finite outputs because of weights or an augmentation that are not finite, or an
                augmentation couples samples or uses random numbers.
            DataError: there is no such augmentation of these images.
        """
        usable = self._here(rows_of(images, finite_rows(images)))
        count = sample_count(usable)
        if not count:
            return
        plain = bool(finite_rows(self.outputs(usable)).any())
        named = chain(self._model.named_parameters(), self._model.named_buffers())
        bad = [] if plain else [name for name, values in named if not values.isfinite().all()]
        if bad:
            raise ModelError(
                f"the model gives no finite logits for any of the first {count} samples: {bad[0]} is not finite; "
                "check model.checkpoint"
            )
        for augmentation in self._augmentations:
            usable = _one_tensor(usable)
            _check_alone(augmentation, usable)
            if plain and not finite_rows(self.outputs(augmentation(usable))).any():
                raise ModelError(
                    f"features.augmentations: '{augmentation.name}' gives no finite logits for any of the first "
                    f"{count} samples, which have finite ones without it; correct or remove it"
                )

    def caught(self, images: Inputs) -> tuple[Tensor, list[Tensor]]:
        """As `outputs`, and the penultimate features (N, D) float64 if they are wanted.

        Raises:
            CoupledSamplesError: the logits are not what the last layer makes, as they depend on the batch.
            ModelError: as `outputs`, or they are not for another reason.
        """
        if self._last_layer is None:
            return self.outputs(images), []
        outputs, features = self._last_layer.catch(lambda: self.outputs(images))
        if features is None:
            refuse_coupled(self.outputs, images, outputs.detach())
            raise ModelError(
                f"features.penultimate: the logits are not what layer '{self._last_layer.name}' makes of one vector of "
                "features per sample; name the linear layer that makes them, or set it to false, without a bank (an "
                "audit of labels needs one)"
            )
        return outputs, [features.double()]

    @torch.no_grad()
    def values(self, images: Inputs) -> Tensor:
        """(N, len(names)) float64; raises the same as `outputs`."""
        outputs, penultimate = self.caught(images)
        return torch.cat([outputs.double(), *penultimate], dim=1)

    @torch.no_grad()
    def augmentation_values(self, images: Inputs) -> list[Tensor]:
        """For every augmentation (N, len(names)) float64.

        Raises:
            DataError: there is no such augmentation of these images.
            ModelError: as `outputs`.
        """
        return [self.values(self.seen(augmentation, images)) for augmentation in self._augmentations]

    def seen(self, augmentation: Augmentation, images: Inputs) -> Tensor:
        """An augmentation of a batch; `DataError` if there is none of these images."""
        return augmentation(_one_tensor(self._here(images)))

    def _here(self, images: Inputs) -> Inputs:
        return each_input(images, lambda each: each.to(self._device, non_blocking=True))


FAILURES = (Exception,)
"""What models raise that cannot take their inputs: they are anyone's code, and may raise anything."""


def refusal(error: BaseException, inputs: Inputs) -> str:
    """Why a model could not take some inputs, and what may help.

    Args:
        error: one of `FAILURES`.
        inputs: what it was given.
    """
    kind = "images" if isinstance(inputs, Tensor) and inputs.dim() == 4 else "inputs"
    return f"the model cannot take {kind} of shape {described(inputs)}: {reason(error)}; {_help(error, inputs)}"


def _help(error: BaseException, inputs: Inputs) -> str:
    said = reason(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "take fewer samples at a time (--batch-size, extract.batch_size), or a smaller network"
    if "Guard failed" in said or "constraint" in said.lower() or "to be equal to" in said:
        return (
            "a program of torch.export takes the shapes it was exported for: export it with dynamic_shapes whose first "
            "axis, the samples, is free (torch.export.Dim.AUTO), and let preprocessing give the others"
        )
    if "dtype" in said or "scalar type" in said or "not implemented for" in said:
        if isinstance(inputs, Tensor) and not inputs.is_floating_point():
            return f"inputs are {inputs.dtype}: give floats as the network was trained on, for example x.float() / 255"
        return (
            "inputs are brought to the type of the first weights: give all weights of the model one type "
            "(model.float(), model.half()), and let forward make no tensors of another"
        )
    if not isinstance(inputs, Tensor) or "argument" in said:
        return "check that forward has arguments of these names, and needs no others"
    return "check preprocessing (resize, crop, channels)"


def _one_tensor(inputs: Inputs) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    raise ModelError(
        f"features.augmentations: they look at one tensor, and these inputs are {described(inputs)}; remove the setting"
    )


def _check_alone(augmentation: Augmentation, images: Tensor) -> None:
    """Makes sure that an augmentation of a batch is the augmentation of each sample, and the same each time."""
    whole = augmentation(images)
    middle = max(1, len(images) // 2)
    trials = {
        "gives other values each time; it must not use random numbers": augmentation(images),
        "gives a sample other values in another batch; it must treat each sample by itself": torch.cat(
            [augmentation(part) for part in (images[:middle], images[middle:]) if len(part)]
        ),
    }
    allowed = ROUNDING * float(whole.nan_to_num(0.0, 0.0, 0.0).abs().max())
    for fault, found in trials.items():
        if not torch.allclose(found, whole, rtol=0.0, atol=allowed, equal_nan=True):
            raise ModelError(f"features.augmentations: '{augmentation.name}' {fault}")


def check_mode(model: nn.Module) -> None:
    """Makes sure that a model can be scored as it stands; nothing about it is changed.

    Raises:
        ModelError: it is no module, compiled, in training mode, without weights, or all its parameters are frozen.
    """
    refuse_foreign(model, source="the model")
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise ModelError(
            f"the model is in training mode ({training[0]}, {len(training)} modules in all): dropout and batch norm "
            "would change its outputs; call model.eval() first"
        )
    parameters = list(model.parameters())
    empty = next((name for name, each in model.named_parameters() if each.is_meta), None)
    if empty is not None:
        raise ModelError(f"{empty}: on the device 'meta', so it has no values; build the model on a real device")
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        raise ModelError("all parameters of the model are frozen; call model.requires_grad_(True) first")


def count_classes(model: nn.Module, batch: Batch) -> int:
    """The number of classes K of a model, from its outputs (n, K) for a few samples.

    Raises:
        ModelError: it cannot take them, or returns something else than logits of two or more classes.
    """
    check_mode(model)
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ModelError("the model has no parameters, so there are no gradients to make features of")
    images = each_input(rows_of(batch.inputs, slice(WARM_UP)), lambda tensor: tensor.to(parameter.device))
    try:
        with torch.no_grad():
            outputs = model(each_input(images, Tensor.clone))
    except GradscoreError:
        raise
    except FAILURES as error:
        raise ModelError(refusal(error, images)) from None
    count = sample_count(images)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != count or outputs.shape[1] < 2:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            f"model outputs: wanted logits of shape ({count}, classes), got {got}; let forward return those"
        )
    return int(outputs.shape[1])


def input_dtype(model: nn.Module) -> torch.dtype:
    """What floating inputs of a model are converted to: the type of its first parameter of floating numbers."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())
