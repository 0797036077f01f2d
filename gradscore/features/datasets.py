"""The data of a configuration."""

from __future__ import annotations

from collections.abc import Collection

from ..config import Config
from ..data import SampleDataset, open_splits
from ..models import CodeTrust, class_names


def open_datasets(
    config: Config,
    *,
    only: Collection[str] | None = None,
    trust_code: bool | CodeTrust = False,
) -> dict[str, SampleDataset]:
    """Opens the data of the splits of a configuration, by name and in order.

    Args:
        config: the settings.
        only: names of the splits that are wanted; all of them if None.
        trust_code: allow `python:` sources, whose code is run; a `CodeTrust` says which.

    Raises:
        DataError: data that cannot be used.
        ModelError: code that is not trusted, not what it should be, or fails when it is imported.
    """
    return open_splits(
        config.data,
        preprocessing=config.preprocessing,
        num_classes=config.model.num_classes,
        seed=config.extract.seed,
        only=only,
        model_names=class_names(config.model),
        trust_code=trust_code,
    )
