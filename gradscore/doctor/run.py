"""Checks the model of a configuration with its own data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from ..config import Config
from ..data import FIT, TEST, BadSample, Batch, Sample, SampleDataset, collate
from ..errors import DataError, ModelError
from ..features import FAILURES, check_names, open_datasets, refusal
from ..losses import first_without_labels
from ..models import BuiltModel, build_classifier, group_parameters, refuse_probabilities, weight_notices
from ..store import raw_labels
from ..system import each_input, resolve_device
from .findings import OF_SAMPLES, Diagnosis, Finding, note, problem, some, warning
from .model import check_model

READ = 2048
"""Samples of a split up to which all of them are read; of larger ones, so many at random."""

TRIED = 16
"""Samples of every other split that go through the model."""


def check_config(config: Config, *, samples: int = 256, trust_code: bool = False) -> Diagnosis:
    """Builds the classifier of a configuration and checks it with inputs of `in_dist.test`, or else `in_dist.fit`.

    Samples of all splits are read, and some of each go through the model.

    Args:
        config: the settings.
        samples: so many inputs are drawn at random, with the seed of the configuration.
        trust_code: allow a `python:` model, whose code is run.

    Returns:
        As `check_model`.

    Raises:
        ConfigError: an unknown loss, statistic or parameter pattern, or a device that is not there.
        ModelError: a model that cannot be built.
        DataError: data that cannot be used.
    """
    device = resolve_device(config.extract.device)
    check_names(config.features)
    built = build_classifier(config.model, seed=config.extract.seed, trust_code=trust_code)
    model = built.model.to(device)
    group_parameters(model, config.features.parameters, granularity=config.features.granularity)
    datasets = open_datasets(config, trust_code=trust_code)
    split, spec = (TEST, config.data.in_dist.test) if config.data.in_dist.test else (FIT, config.data.in_dist.fit)
    chosen = _chosen(datasets[split], samples, config.extract.seed)
    batch = _collated([datasets[split][place] for place in chosen], split=split)
    found = check_model(
        model,
        each_input(batch.images, lambda tensor: tensor.to(device)),
        labels=batch.labels.to(device),
        declared_accuracy=config.model.declared_accuracy,
        loss=first_without_labels(config.features.losses),
        label_map=raw_labels(spec.label_map, datasets[split].class_names),
        num_classes=config.model.num_classes,
    )
    more = [*_weights(built, config)]
    for name, dataset in datasets.items():
        more += _check_split(model, dataset, name=name, config=config)
    return Diagnosis.of([*found.findings, *more], found.coverage)


def _weights(built: BuiltModel, config: Config) -> Iterator[Finding]:
    sentences = weight_notices(built, config.model, seed=config.extract.seed)
    if not built.random:
        make = note if built.is_own else warning
        yield from (make("checkpoint", sentence) for sentence in sentences)
        return
    everything = len(built.random) == len([*built.model.named_parameters()])
    make = problem if everything else warning
    for sentence in sentences:
        yield make("random weights", f"{sentence}; name the file of the trained weights by model.checkpoint")


def _check_split(model: nn.Module, dataset: SampleDataset, *, name: str, config: Config) -> Iterator[Finding]:
    """Reads the samples of a split, and shows some to the model."""
    places = _chosen(dataset, READ, config.extract.seed)
    bad: list[BadSample] = []
    good: list[Sample] = []
    for place in places:
        sample = dataset[place]
        if isinstance(sample, BadSample):
            bad.append(sample)
        elif len(good) < TRIED:
            good.append(sample)
    if bad:
        skips = config.extract.on_error == "skip"
        make = warning if skips else problem
        or_else = "they are left out (extract.on_error is skip)" if skips else "set extract.on_error=skip"
        named = some([f"{each.sample_id} ({each.error})" for each in bad])
        yield make(
            OF_SAMPLES + name,
            f"{len(bad)} of {len(places)} cannot be used: {named}; repair or remove them, or {or_else}",
        )
    if len(places) < len(dataset):
        yield note(OF_SAMPLES + name, f"{len(places)} of {len(dataset)} were read")
    if not good:
        yield problem(OF_SAMPLES + name, "none of those that were read can be used")
    elif name != TEST:
        yield from _tried(model, good, name=name)


@torch.no_grad()
def _tried(model: nn.Module, samples: list[Sample], *, name: str) -> Iterator[Finding]:
    parameter = next(model.parameters(), None)
    if parameter is None:
        return
    batch = _collated([*samples], split=name)
    images = each_input(batch.images, lambda tensor: tensor.to(parameter.device))
    try:
        logits = model(images)
        refuse_probabilities(logits)
    except ModelError:
        return  # in_dist.test tells
    except (*FAILURES, SystemExit) as error:
        yield problem(OF_SAMPLES + name, refusal(error, images))
        return
    if logits.dim() != 2:
        return  # as above
    finite = torch.isfinite(logits).all(1)
    if not bool(finite.any()):
        yield problem(OF_SAMPLES + name, f"none of {len(finite)} has finite logits; look at what is in them")


def _chosen(dataset: SampleDataset, count: int, seed: int) -> list[int]:
    places = np.random.default_rng(seed).permutation(len(dataset))[:count]
    return [int(place) for place in places]


def _collated(samples: list[Sample | BadSample], *, split: str) -> Batch:
    try:
        return collate(samples)
    except DataError as error:
        raise DataError(f"split {split}: {error}") from None
