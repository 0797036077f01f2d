"""The data of a configuration."""

from __future__ import annotations

from collections.abc import Collection

from ..config import Config
from ..data import SampleDataset, open_splits


def open_datasets(config: Config, *, only: Collection[str] | None = None) -> dict[str, SampleDataset]:
    """Opens the data of the splits of a configuration, by name and in order.

    Args:
        config: the settings.
        only: names of the splits that are wanted; all of them if None.

    Raises:
        DataError: data that cannot be used.
    """
    return open_splits(
        config.data,
        preprocessing=config.preprocessing,
        num_classes=config.model.num_classes,
        seed=config.extract.seed,
        only=only,
    )
