"""Checks the model of a configuration with its own data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..config import Config
from ..data import TEST, collate
from ..features import check_names, open_datasets
from ..models import build_model, group_parameters
from ..system import resolve_device
from .findings import Diagnosis, Finding, some, warning
from .model import check_model


def check_config(config: Config, *, samples: int = 256, trust_code: bool = False) -> Diagnosis:
    """Builds the classifier of a configuration and checks it with inputs of the split `in_dist.test`.

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
    renamed: list[str] = []
    model = build_model(config.model, seed=config.extract.seed, trust_code=trust_code, notices=renamed)
    group_parameters(model, config.features.parameters, granularity=config.features.granularity)
    dataset = open_datasets(config, only=[TEST], trust_code=trust_code)[TEST]
    chosen = np.random.default_rng(config.extract.seed).permutation(len(dataset))[:samples]
    batch = collate([dataset[int(place)] for place in chosen])
    found = check_model(
        model.to(device),
        batch.tensor.to(device),
        labels=batch.labels.to(device),
        declared_accuracy=config.model.declared_accuracy,
        loss=config.features.losses[0],
        label_map=_of_numbers(config.data.in_dist.test.label_map),
    )
    more: list[Finding] = [warning("checkpoint", line) for line in renamed]
    if config.model.checkpoint is None:
        more.append(warning("random weights", "model.checkpoint is null; name the file of the trained weights"))
    if batch.bad:
        more.append(
            warning(
                "samples",
                f"{len(batch.bad)} of {len(chosen)} cannot be used: "
                f"{some([f'{bad.sample_id} ({bad.error})' for bad in batch.bad])}; repair or remove them, or set "
                "extract.on_error=skip",
            )
        )
    return Diagnosis.of([*found.findings, *more], found.coverage)


def _of_numbers(label_map: Mapping[int | str, int | str] | None) -> dict[int, int] | None:
    """A label map without names; None where there are some, so that advice is about classes of the model."""
    pairs = {key: value for key, value in (label_map or {}).items() if isinstance(key, int) and isinstance(value, int)}
    return pairs if label_map is not None and len(pairs) == len(label_map) else None
