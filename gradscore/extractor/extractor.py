"""From batches to logits and features, by a model where it is and as it is.

`ForwardPass` is what takes no gradients: logits and penultimate features, of samples and of augmentations of them. What
a model must be like for that (in evaluation mode, with logits of two or more classes) is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..columns import LOGIT, augmentation_column
from ..config import AUTO, Config, FeaturesConfig
from ..data import Augmentation, Batch, augmentation_name, open_augmentations
from ..errors import EngineError, GradscoreError, ModelError, reason
from ..gradients import NOT_LINEAR, Engine, is_looked_at, prepare, refuse_company, refuse_coupled, refuse_memory
from ..losses import LOSSES, first_without_labels, with_labels
from ..models import (
    Head,
    LastLayer,
    check_logits,
    coarsest_dtype,
    find_last_layer,
    first_parameter,
    group_parameters,
    refuse_foreign,
    refuse_probabilities,
    weights_sha256,
)
from ..statistics import find_statistic, reduce_gradients
from ..store import RunInputs, describe_inputs
from ..system import FloatArray, Inputs, described, each_input, finite_rows, full_precision, rows_of, sample_count, some

WARM_UP = 3
"""Samples shown to the engine before a run: as many as tell sample layouts apart."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision of the network by its name in the settings; gradients and statistics keep float32 and float64."""

LATER = 4
"""One in so many samples of a later batch is looked at in other company, which takes that share of a forward pass."""

ROUNDING = 1e-5
"""Largest change of an augmentation with the batch, relative to its largest value: a hundred roundings of float32."""


class Extractor:
    """Turns batches into logits and features.

    Args:
        model: the classifier, in evaluation mode, on the device that computes.
        features: what features there are.
        num_classes: K, the number of its outputs.

    Attributes:
        engine: knows the parameters; it learns from the first samples it sees.
        groups: parameter names by group of features.
        losses_with_labels: those that look at given labels.

    Raises:
        ConfigError: an unknown parameter pattern or augmentation, or no such last layer.
        ModelError: the model has no parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        features: FeaturesConfig,
        num_classes: int,
    ) -> None:
        """Sets up the engine for the chosen parameters."""
        groups = group_parameters(model, features.parameters, granularity=features.granularity)
        # What was left to the model and the samples (`pipeline.resolved`) and is not settled stores none.
        last_layer = None if features.penultimate == AUTO else find_last_layer(model, features.penultimate)
        augmentations = open_augmentations(features.augmentations)
        parameters = dict(model.named_parameters())
        wanted = {name for names in groups.values() for name in names}
        self.model = model
        self.device = next(iter(parameters.values())).device
        self.engine = Engine({name: parameter for name, parameter in parameters.items() if name in wanted}, warns=False)
        self._pass = ForwardPass(
            model,
            device=self.device,
            num_classes=num_classes,
            autocast=features.autocast,
            last_layer=last_layer,
            augmentations=augmentations,
        )
        self.num_classes = num_classes
        self._features = features
        self.losses_with_labels = with_labels(features.losses)
        # Where samples lie is the same for every loss, and is looked at without labels.
        self._trial_loss = LOSSES[first_without_labels(features.losses)]
        self.groups = groups
        degrees = [find_statistic(name).degree for name in features.statistics] * len(groups)
        self._degrees = torch.tensor(degrees, dtype=torch.float64, device=self.device)
        averaged = {augmentation_name(name) for name in features.average_gradients}
        self._averaged = [augmentation for augmentation in augmentations if augmentation.name in averaged]
        magnitudes = [find_statistic(name).logarithmic for name in features.statistics] * len(groups)
        self._magnitudes = torch.tensor(magnitudes, dtype=torch.bool, device=self.device)
        self._fitting: int | None = None
        self._gradient_seconds = 0.0
        self._last_layer = last_layer

    @property
    def head(self) -> Head | None:
        """The last layer, where what enters it is stored."""
        return None if self._last_layer is None else self._last_layer.head

    def describe(self, config: Config, fingerprints: Mapping[str, str]) -> RunInputs:
        """Everything that influences a value of a run's tables, as the manifest has it.

        Args:
            config: the settings of the run.
            fingerprints: of the samples of each split, by the name of the split.
        """
        return describe_inputs(
            config,
            weights_sha256=weights_sha256(self.model),
            dtype=coarsest_dtype(self.model),
            device=self.device.type,
            groups=self.groups,
            fingerprints=fingerprints,
            penultimate=None if self._last_layer is None else self._last_layer.name,
        )

    def warm_up(self, inputs: Inputs) -> None:
        """Shows the engine the first few samples, so that what it learns there is the same after an interruption.

        A model or first samples that cannot be used are found here, before there is a run folder.

        Raises:
            ModelError: nothing finite comes out.
            CoupledSamplesError: the output for a sample depends on the others of its batch.
        """
        first = rows_of(inputs, slice(WARM_UP))
        self.try_out(first)
        self.prepare(first)

    @property
    def feature_names(self) -> list[str]:
        """The names of the features."""
        return [
            f"{loss}/{group}/{statistic}"
            for loss in self._features.losses
            for group in self.groups
            for statistic in self._features.statistics
        ]

    @property
    def names(self) -> list[str]:
        """The names of all values: logits and penultimate features, those of the augmentations, features."""
        return self._pass.names + self._pass.augmentation_names + self.feature_names

    @property
    def forward_names(self) -> list[str]:
        """The names of what `forward_values` gives: logits and penultimate features."""
        return self._pass.names

    @property
    def notices(self) -> list[str]:
        """Notices for the reader of the values."""
        return self.engine.notices

    def take_gradient_seconds(self) -> float:
        """Seconds that gradients took since this was asked for the last time."""
        found, self._gradient_seconds = self._gradient_seconds, 0.0
        return found

    def prepare(self, inputs: Inputs) -> None:
        """Shows the engine a few inputs (n, ...), so that it learns the sample layout and checks itself.

        Raises:
            ModelError: as `values`.
            CoupledSamplesError: the output for an image depends on the others of its batch.
        """
        loss = self._trial_loss
        with full_precision():
            self._pass.caught(inputs)
            self._pass.augmentation_values(inputs)
            if not self._features.losses:
                return
            here = each_input(inputs, lambda each: each.to(self.device))
            prepare(self.engine, self.model, here, lambda logits: loss(logits).direction)

    def look_anew(self) -> None:
        """Has the next batch looked at as the first one is: the model changed, or other samples come."""
        self._pass.look_anew()

    def try_out(self, inputs: Inputs) -> None:
        """Makes sure that the model and its augmentations do what they must for a few inputs (n, ...).

        Raises:
            ModelError: nothing finite comes out, or an augmentation couples samples or uses random numbers.
            DataError: there is no such augmentation of these inputs.
        """
        with full_precision():
            self._pass.try_out(inputs)

    def values(
        self,
        inputs: Inputs,
        *,
        labels: Tensor | None = None,
        nudged: bool = False,
    ) -> FloatArray:
        """The logits and features of a batch.

        Args:
            inputs: (N, ...), preprocessed; (N, C, H, W) of images.
            labels: (N,) int64, the given classes, for losses that look at them.
            nudged: change every element of the gradients at the logits by a unit of rounding, up or down, before they
                are propagated: what is rounding comes out as another number, what is not as the same.

        Returns:
            (N, len(names)) float64.

        Raises:
            ModelError: the model cannot take the inputs, its outputs are not (N, K) or do not come from the last layer,
                or memory runs out.
            EngineError: gradients that cannot be computed, or a loss that needs labels without them.
        """

        def compute(part: slice) -> FloatArray:
            given = None if labels is None else labels[part]
            return self._values_at_once(rows_of(inputs, part), labels=given, nudged=nudged)

        parts = self._in_parts(inputs, compute)
        return np.concatenate(parts) if parts else np.empty((0, len(self.names)))

    def values_of_one(self, image: Inputs) -> FloatArray:
        """The logits and features of one sample (1, ...): (1, len(names)); raises the same as `values`.

        A sample alone takes another way through the engine, whose rounding differs from that in a batch. So it comes
        several times, once for each loss, and one backward pass has the gradients of all of them.
        """
        losses = [LOSSES[name] for name in self._features.losses]
        copies = each_input(image, lambda each: torch.cat([each] * max(2, len(losses))))
        if not losses or self._averaged or any(loss.several for loss in losses):
            return self.values(copies)[:1]
        try:
            with full_precision():
                outputs, penultimate = self._pass.caught(copies)
                logits = outputs.detach().double()
                found = [loss(logits) for loss in losses]
                rows = [found[min(row, len(found) - 1)] for row in range(len(logits))]
                direction = torch.stack([each.direction[row] for row, each in enumerate(rows)])
                scale = torch.stack([each.scale[row] for row, each in enumerate(rows)])
                block = self._scaled_statistics(outputs, direction.to(outputs.dtype), scale)
                parts = [logits, *penultimate, *self._pass.augmentation_values(copies)]
                values = torch.cat([*(each[:1] for each in parts), block[: len(found)].reshape(1, -1)], dim=1)
                return values.cpu().numpy()
        except torch.OutOfMemoryError:
            return self.values(rows_of(copies, slice(2)))[:1]  # fewer at a time, and says so

    def forward_values(self, inputs: Inputs) -> FloatArray:
        """The logits and penultimate features of a batch, without gradients and without augmentations.

        Args:
            inputs: (N, ...), preprocessed; (N, C, H, W) of images.

        Returns:
            (N, len(forward_names)) float64.

        Raises:
            ModelError: as `values`.
        """
        parts = self._in_parts(inputs, lambda part: self._pass.values(rows_of(inputs, part)).cpu().numpy())
        return np.concatenate(parts) if parts else np.empty((0, len(self.forward_names)))

    def _in_parts(self, inputs: Inputs, compute: Callable[[slice], FloatArray]) -> list[FloatArray]:
        """Values computed of all inputs, by their places in order: of as many at a time as memory allows."""
        found: list[FloatArray] = []
        start, count = 0, sample_count(inputs)
        with full_precision():
            while start < count:
                part = slice(start, min(start + (self._fitting or count), count))
                samples = part.stop - part.start
                try:
                    found.append(compute(part))
                    start = part.stop
                    continue
                except torch.OutOfMemoryError as error:
                    if samples == 1:
                        raise ModelError(f"the device has too little memory for a single sample: {error}") from None
                torch.cuda.empty_cache()  # now that the error holds nothing any more
                self._fitting = samples // 2
                self.engine.notices.append(
                    f"memory ran out with {samples} samples at a time; went on with {self._fitting} "
                    f"(--batch-size {self._fitting} does so from the start)"
                )
        return found

    def _values_at_once(self, inputs: Inputs, *, labels: Tensor | None, nudged: bool) -> FloatArray:
        if not self._features.losses:
            return torch.cat([self._pass.values(inputs), *self._pass.augmentation_values(inputs)], dim=1).cpu().numpy()
        outputs, penultimate = self._pass.caught(inputs)
        logits = outputs.detach().double()
        augmentations = self._pass.augmentation_values(inputs)
        if self.device.type != "cpu":
            logits.sum().item()  # an accelerator is done with what it was given
        began = perf_counter()
        blocks = [self._block(loss, outputs, labels, nudged) for loss in self._features.losses]
        if self._averaged:
            looks = [
                blocks,
                *(self._of_augmentation(augmentation, inputs, labels, nudged) for augmentation in self._averaged),
            ]
            blocks = [mean_over_augmentations(torch.stack(each), self._magnitudes) for each in zip(*looks, strict=True)]
        values = torch.cat([logits, *penultimate, *augmentations, *blocks], dim=1)
        found = values.cpu().numpy()  # one copy from an accelerator
        self._gradient_seconds += perf_counter() - began
        return found

    def _of_augmentation(
        self, augmentation: Augmentation, inputs: Inputs, labels: Tensor | None, nudged: bool
    ) -> list[Tensor]:
        """The statistics of each loss for an augmentation of the inputs."""
        outputs = self._pass.outputs(self._pass.seen(augmentation, inputs))
        return [self._block(loss, outputs, labels, nudged) for loss in self._features.losses]

    def _block(self, loss: str, outputs: Tensor, labels: Tensor | None, nudged: bool) -> Tensor:
        logits = outputs.detach().double()
        found = logits.new_zeros(len(logits), len(self.groups) * len(self._features.statistics))
        gradients = list(LOSSES[loss].terms(logits, labels))
        for gradient in gradients:
            direction = gradient.direction.to(outputs.dtype)
            found += self._scaled_statistics(
                outputs,
                nudge(direction) if nudged else direction,
                gradient.scale,
                retain_graph=loss != self._features.losses[-1] or gradient is not gradients[-1],
            )
        if self.engine.is_linear is False:  # what is computed here is scaled afterwards
            raise EngineError(NOT_LINEAR)
        return found

    def _scaled_statistics(self, outputs: Tensor, direction: Tensor, scale: Tensor, **options: Any) -> Tensor:
        """(N, groups and statistics) of gradients (N, K) at the outputs, given as directions and scales (N,)."""
        columns = reduce_gradients(
            self.engine, outputs, direction, statistics=self._features.statistics, groups=self.groups, **options
        )
        return torch.stack(list(columns.values()), dim=1) * scale.unsqueeze(1) ** self._degrees


def nudge(values: Tensor) -> Tensor:
    """Values with every element larger or smaller by a unit of rounding, at random but always the same.

    Source: Parker, Pierce and Eggert 2000, Monte Carlo arithmetic.
    """
    signs = torch.randint(0, 2, values.shape, generator=torch.Generator().manual_seed(0), device="cpu") * 2 - 1
    return values * (1 + signs.to(values) * torch.finfo(values.dtype).eps)


def mean_over_augmentations(values: Tensor, magnitudes: Tensor) -> Tensor:
    """The mean of statistics over a sample and its augmentations.

    Args:
        values: (V, N, F) float64.
        magnitudes: (F,) bool, statistics that lie decades apart: their mean is geometric, with their sign, which is
            the mean of the logarithms that meta models look at. Where signs differ it is arithmetic after all.

    Returns:
        (N, F) float64.
    """
    signs = values.sign()
    geometric = signs[0] * values.abs().log().mean(0).exp()
    return torch.where(magnitudes & (signs == signs[0]).all(0), geometric, values.mean(0))


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
        autocast: str | None = None,
        last_layer: LastLayer | None = None,
        augmentations: Sequence[Augmentation] = (),
    ) -> None:
        self._model, self._device, self._num_classes = model, device, num_classes
        self._autocast = AUTOCAST.get(autocast or "")
        self._last_layer = last_layer
        self._augmentations = augmentations
        self.look_anew()

    def look_anew(self) -> None:
        """Has the next batch looked at as the first one is."""
        self._batches = 0
        self._first: tuple[Inputs, Tensor] | None = None

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

    def outputs(self, inputs: Inputs) -> Tensor:
        """The logits (N, K) of inputs (N, ...).

        Raises:
            ModelError: the model cannot take the inputs, or returns something else than logits.
        """
        try:
            with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
                # A copy, since a network may work in place on what it is given.
                outputs = self._model(each_input(self._here(inputs), Tensor.clone))
        except (GradscoreError, torch.OutOfMemoryError):
            raise
        except SystemExit as error:
            raise ModelError(
                f"the code of the model ends the program in forward (SystemExit: {error}); take that out of it"
            ) from error
        except FAILURES as error:
            raise ModelError(refusal(error, inputs)) from None
        wanted = (sample_count(inputs), self._num_classes)
        if not isinstance(outputs, Tensor) or outputs.shape != wanted:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ModelError(
                f"model outputs: wanted logits of shape {wanted} (samples, model.num_classes), got {got}; correct "
                "model.num_classes or the arguments of the model"
            )
        refuse_probabilities(outputs)
        return outputs

    @torch.no_grad()
    def try_out(self, inputs: Inputs) -> None:
        """Makes sure that a few inputs (n, ...) get something finite, and that augmentations take each by itself.

        Raises:
            ModelError: no image has finite outputs because of weights or an augmentation that are not finite, or an
                augmentation couples samples or uses random numbers.
            DataError: there is no such augmentation of these inputs.
        """
        usable = self._here(rows_of(inputs, finite_rows(inputs)))
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

    def caught(self, inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
        """Outputs as of `outputs`, and the penultimate features (N, D) float64 if they are wanted.

        The logits of the first batch that is more than a few samples are compared with those in other company, and
        those of some samples of the second, the fourth, the eighth and so on: a network may couple some batches only.

        Raises:
            CoupledSamplesError: the output for an image depends on the others of its batch.
            ModelError: as `outputs`, or they are not for another reason.
        """
        if self._last_layer is None:
            outputs, features = self.outputs(inputs), None
        else:
            outputs, features = self._last_layer.catch(lambda: self.outputs(inputs))
        if len(outputs) > WARM_UP:
            self._batches += 1
            if is_looked_at(self._batches, sparser=2):
                self._refuse_company(inputs, outputs.detach())
        if self._last_layer is None:
            return outputs, []
        if features is None:
            refuse_coupled(self.outputs, inputs, outputs.detach())
            raise ModelError(
                f"features.penultimate: the logits are not what layer '{self._last_layer.name}' makes of one vector of "
                "features per sample; name the linear layer that makes them, or set it to false, without a bank (an "
                "audit of labels needs one)"
            )
        return outputs, [features.double()]

    @torch.no_grad()
    def _refuse_company(self, inputs: Inputs, logits: Tensor) -> None:
        if self._first is None:
            refuse_company(self.outputs, inputs, logits)
            few = each_input(rows_of(inputs, slice(WARM_UP)), Tensor.clone)
            self._first = few, self.outputs(few)
            return
        try:
            refuse_company(self.outputs, inputs, logits, every=LATER)
            refuse_memory(self.outputs, *self._first)
        except EngineError as error:
            raise type(error)(f"batch {self._batches}, after others that did not show it: {error}") from error

    @torch.no_grad()
    def values(self, inputs: Inputs) -> Tensor:
        """(N, len(names)) float64; raises the same as `outputs`."""
        outputs, penultimate = self.caught(inputs)
        return torch.cat([outputs.double(), *penultimate], dim=1)

    @torch.no_grad()
    def augmentation_values(self, inputs: Inputs) -> list[Tensor]:
        """For every augmentation (N, len(names)) float64.

        Raises:
            DataError: there is no such augmentation of these inputs.
            ModelError: as `outputs`.
        """
        return [self.values(self.seen(augmentation, inputs)) for augmentation in self._augmentations]

    def seen(self, augmentation: Augmentation, inputs: Inputs) -> Tensor:
        """An augmentation of a batch; `DataError` if there is none of these inputs."""
        return augmentation(_one_tensor(self._here(inputs)))

    def _here(self, inputs: Inputs) -> Inputs:
        return each_input(inputs, lambda each: each.to(self._device, non_blocking=True))


FAILURES = (Exception,)
"""Errors of models that cannot take their inputs: they are anyone's code, and may raise anything."""


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
    if "argument" in said:
        return (
            "forward has to take what is given and to need nothing else: save arrays again under the names of its "
            "parameters (np.savez(FILE, NAME=array, ...)), or choose some by arguments: {inputs: [NAME, ...]}; in "
            "Python give mappings with these names, and labels under 'labels', or pairs of inputs and labels"
        )
    if isinstance(error, NameError | ImportError | SyntaxError):
        return "this is an error of the code of the model; correct its forward"
    if "index out of range" in said and not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
        return "a whole number is beyond the rows of an embedding: check the tokenizer, or how categories are numbered"
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        more = ""
        if isinstance(inputs, Tensor) and inputs.dim() == 2:
            more = "; columns of a table are chosen by arguments: {inputs: [COLUMN, ...]}"
        elif isinstance(inputs, Tensor) and inputs.dim() == 3:
            more = "; in Python give one sample as x[None], and several as torch.stack(list)"
        return f"check that samples have as many numbers, in the same form, as those it was trained on{more}"
    if inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3):
        return "their channels lie last: give images.permute(0, 3, 1, 2)"
    return "check preprocessing (resize, crop, channels)"


def _one_tensor(inputs: Inputs) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    raise ModelError(
        f"features.augmentations: they look at one tensor, and these inputs are {described(inputs)}; remove the setting"
    )


def _check_alone(augmentation: Augmentation, inputs: Tensor) -> None:
    """Makes sure that an augmentation of a batch is the augmentation of each sample, and the same each time."""
    whole = augmentation(inputs)
    middle = max(1, len(inputs) // 2)
    trials = {
        "gives other values each time; it must not use random numbers": augmentation(inputs),
        "gives a sample other values in another batch; it must treat each sample by itself": torch.cat(
            [augmentation(part) for part in (inputs[:middle], inputs[middle:]) if len(part)]
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
    if training and "eval" in vars(model):  # as torch.export has it
        raise ModelError(
            "the program stays in the mode that it was exported in, and has no eval(); export the network in eval "
            "mode, then say so: for each in model.modules(): each.training = False"
        )
    if training:
        raise ModelError(
            f"the model is in training mode (modules: {some(training)}): dropout and batch norm would change its "
            "outputs; call model.eval() first"
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
    device = first_parameter(model).device
    inputs = each_input(rows_of(batch.inputs, slice(WARM_UP)), lambda tensor: tensor.to(device))
    try:
        with torch.no_grad():
            outputs = model(each_input(inputs, Tensor.clone))
    except GradscoreError:
        raise
    except FAILURES as error:
        raise ModelError(refusal(error, inputs)) from None
    return check_logits(outputs, sample_count(inputs)).shape[1]


def input_dtype(model: nn.Module) -> torch.dtype:
    """Type that floating inputs of a model are converted to: that of its first parameter of floating numbers.

    Where all are complex it is that of their parts.
    """
    dtypes = [parameter.dtype for parameter in model.parameters()]
    floats = [*(each for each in dtypes if each.is_floating_point), *(each for each in dtypes if each.is_complex)]
    return floats[0].to_real() if floats else torch.get_default_dtype()
