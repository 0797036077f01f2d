"""A model that is there, and what computes its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..config import Config, FeaturesConfig
from ..data import Batch, open_augmentations
from ..errors import GradscoreError, ModelError
from ..models import (
    CodeTrust,
    LastLayer,
    coarsest_dtype,
    find_last_layer,
    group_parameters,
    refuse_foreign,
    weights_sha256,
)
from ..store import describe_inputs
from ..system import Inputs, each_input, rows_of, sample_count
from .class_gradients import MeanGradients
from .extractor import Extractor
from .forward import FAILURES, refusal

WARM_UP = 3
"""Samples shown to the engine before a run: as many as tell sample layouts apart."""


@dataclass(frozen=True)
class LiveModel:
    """A model on the device that computes, and what computes its features.

    Attributes:
        extractor: turns batches into values; it learns from the first samples it sees.
        groups: parameter names by group of features.
        layer: the layer whose inputs are stored, if any.
    """

    extractor: Extractor
    groups: dict[str, list[str]]
    layer: LastLayer | None

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.extractor.model

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        features: FeaturesConfig,
        num_classes: int,
        means: MeanGradients | None = None,
        trust_code: bool | CodeTrust = False,
    ) -> Self:
        """Sets up the extractor of a model where it is and as it is.

        Args:
            model: the classifier, in evaluation mode.
            features: what features there are.
            num_classes: K, the number of its outputs.
            means: mean gradients, for the column `gradient_cosine`, where they are known.
            trust_code: allow `python:` augmentations, whose code is run; a `CodeTrust` says which.

        Raises:
            ConfigError: an unknown parameter pattern or augmentation, or no such last layer.
            ModelError: the model has no parameters.
        """
        groups = group_parameters(model, features.parameters, granularity=features.granularity)
        layer = find_last_layer(model, features.penultimate)
        extractor = Extractor(
            model,
            num_classes=num_classes,
            features=features,
            groups=groups,
            last_layer=layer,
            means=means,
            augmentations=open_augmentations(features.augmentations, trust_code=trust_code),
        )
        return cls(extractor, groups, layer)

    def inputs(self, config: Config, fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """Everything that influences a value of a run's tables, as the manifest has it.

        Args:
            config: the settings of the run.
            fingerprints: of the samples of each split, by the name of the split.
        """
        return describe_inputs(
            config,
            weights_sha256=weights_sha256(self.model),
            dtype=coarsest_dtype(self.model),
            device=self.extractor.device.type,
            groups=self.groups,
            fingerprints=fingerprints,
            penultimate=None if self.layer is None else self.layer.name,
        )

    def warm_up(self, images: Inputs) -> None:
        """Shows the engine the first few samples, so that what it learns there is the same after an interruption.

        A model or first samples that cannot be used are found here, before there is a run folder.

        Raises:
            ModelError: nothing finite comes out.
            CoupledSamplesError: the output for a sample depends on the others of its batch.
        """
        first = rows_of(images, slice(WARM_UP))
        self.extractor.try_out(first)
        self.extractor.prepare(first)


def check_mode(model: nn.Module) -> None:
    """Makes sure that a model can be scored as it stands; nothing about it is changed.

    Raises:
        ModelError: it is no module, compiled, in training mode, or all its parameters are frozen.
    """
    refuse_foreign(model, source="the model")
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise ModelError(
            f"the model is in training mode ({training[0]}, {len(training)} modules in all): dropout and batch norm "
            "would change its outputs; call model.eval() first"
        )
    parameters = list(model.parameters())
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
    images = each_input(rows_of(batch.images, slice(WARM_UP)), lambda tensor: tensor.to(parameter.device))
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
        own_loss = (
            "; for a loss of your own, per sequence or token, give losses= to gradscore.features or gradscore.project "
            "(docs/language-models.md)"
            if isinstance(outputs, Tensor) and outputs.dim() == 3 else ""
        )  # fmt: skip
        raise ModelError(
            f"model outputs: wanted logits of shape ({count}, classes), got {got}; wrap the model, name what it "
            f"returns by output=..., or say one_logit=True of one logit for two classes{own_loss}"
        )
    return int(outputs.shape[1])


def input_dtype(model: nn.Module) -> torch.dtype:
    """What floating inputs of a model are converted to: the type of its first parameter of floating numbers."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())
