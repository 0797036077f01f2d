"""What settings mean that say `auto`, resolved against a model and its samples: the same for commands and programs."""

from __future__ import annotations

import torch
from torch import nn

from ..config import AUTO, Config, FeaturesConfig
from ..data import Raw, Sample, SampleDataset, collate, with_made
from ..extractor import FAILURES
from ..models import find_last_layer
from ..system import Inputs, each_input

NO_BANK = (
    "the bank was left out: samples are compared with it by what enters the linear layer that makes the logits, and in "
    "this network none does (features.penultimate is auto)"
)
"""What is said where a bank is of no use."""

LOOKED_AT = 16
"""Samples among which one that can be read is looked for."""


def resolved(
    config: Config,
    model: nn.Module,
    *,
    sample: Raw | None,
    inputs: Inputs | None,
    samples: int | None,
    has_classes: bool = True,
) -> Config:
    """The settings of a run without `auto`: what is stored of each sample, and which auxiliary sets are made.

    Without penultimate features there is no bank, see `NO_BANK`.

    Args:
        config: the settings.
        model: returns logits, where it computes.
        sample: one of `in_dist.fit` before preprocessing; None where none can be read.
        inputs: a few of them as the model takes them; None likewise.
        samples: how many there are; None where that is not known.
        has_classes: whether their labels tell two classes apart.
    """
    bank = config.data.in_dist.bank
    features = resolved_features(config.features, model, inputs, needed=bank is not None)
    data = with_made(config.data, sample, samples=samples, has_classes=has_classes)
    if bank is not None and features.penultimate is False:
        data = data.model_copy(update={"in_dist": data.in_dist.model_copy(update={"bank": None})})
    return config.model_copy(update={"features": features, "data": data})


def resolved_features(
    features: FeaturesConfig, model: nn.Module, inputs: Inputs | None, *, needed: bool = False
) -> FeaturesConfig:
    """The settings of features without `auto`.

    Args:
        features: the settings.
        model: returns logits, where it computes.
        inputs: a few samples as it takes them.
        needed: penultimate features are stored where no sample says whether a linear layer makes the logits.
    """
    if features.penultimate != AUTO:
        return features
    found = needed if inputs is None else _ends_in_linear_layer(model, inputs)
    return features.model_copy(update={"penultimate": found})


def resolved_for(config: Config, model: nn.Module, fit: SampleDataset) -> Config:
    """As `resolved`, with the samples to fit on as a configuration opens them."""
    if config.features.penultimate != AUTO and config.data.auxiliary == []:
        return config
    places = range(min(len(fit), LOOKED_AT))
    place, first = next(((place, each) for place in places if isinstance(each := fit[place], Sample)), (0, None))
    labels = fit.labels
    return resolved(
        config,
        model,
        sample=None if first is None else fit.images.sample(place),
        inputs=None if first is None else collate([first]).inputs,
        samples=len(fit),
        has_classes=labels is not None and len(set(labels[labels >= 0].tolist())) > 1,
    )


def _ends_in_linear_layer(model: nn.Module, inputs: Inputs) -> bool:
    """Whether a linear layer makes the logits, as the first sample shows."""
    try:
        layer = find_last_layer(model, True)
        if layer is None:
            return False
        device = layer.module.weight.device
        # Twice, since some networks take no single one.
        first = each_input(inputs, lambda each: torch.cat([each[:1].to(device)] * 2))
        with torch.no_grad():
            return layer.catch(lambda: model(first))[1] is not None
    except (*FAILURES, SystemExit):  # where the model itself fails, it is refused by what computes
        return False
