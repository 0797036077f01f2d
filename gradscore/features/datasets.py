"""The data of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..config import Config
from ..data import SampleDataset, open_splits
from ..models import NamedCode, class_names


def open_datasets(
    config: Config,
    *,
    only: Collection[str] | None = None,
    trust_code: bool = False,
    named: Mapping[str, NamedCode] | None = None,
) -> dict[str, SampleDataset]:
    """Opens the data of the splits of a configuration, by name and in order.

    Args:
        config: the settings.
        only: names of the splits that are wanted; all of them if None.
        trust_code: allow `python:` sources, whose code is run.
        named: what the run folder that names such code says of it, by the names of the splits; None for the user's own
            configuration.

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
        named=named,
    )
