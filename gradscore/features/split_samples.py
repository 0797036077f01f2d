"""The samples of a split of a configuration, for what reads those of a program as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..config import Config, ExtractConfig
from ..data import Batch, SampleDataset, load_batches, plan_batches, planned_splits
from ..errors import ConfigError, DataError
from ..models import CodeTrust, build_model
from ..system import closest, each_input, resolve_device
from .datasets import open_datasets
from .live_model import input_dtype
from .split_rows import check_labelled, check_samples


@dataclass(frozen=True, kw_only=True)
class SplitSamples:
    """The samples of a split that can be used.

    Attributes:
        dataset: all samples.
        name: of the split.
        dtype: floating inputs are converted to it: that of the parameters of the model.
        options: batch size, workers, and what becomes of samples that cannot be used.
        skipped: names of those, as they come.
    """

    dataset: SampleDataset
    name: str
    dtype: torch.dtype
    options: ExtractConfig
    skipped: list[str] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How many there are, those among them that cannot be used."""
        return len(self.dataset)

    def batches(self) -> Iterator[Batch]:
        """Batches, in the order of the data.

        Raises:
            DataError: a sample cannot be used and is not to be skipped, or none can.
        """
        planned = plan_batches(self.samples, shards=[0], shard_size=self.samples, batch_size=self.options.batch_size)
        is_empty = True
        for batch in load_batches(self.dataset, planned, workers=self.options.workers):
            check_samples(batch, split=self.name, on_error=self.options.on_error)
            self.skipped.extend(bad.sample_id for bad in batch.bad)
            if batch.sample_ids:
                is_empty = False
                images = each_input(
                    batch.images, lambda each: each.to(self.dtype) if each.is_floating_point() else each
                )
                yield replace(batch, images=images, bad=[])
        if is_empty:
            raise DataError(f"split {self.name}: no sample of it can be used")


@dataclass(frozen=True, kw_only=True)
class OpenSplit:
    """A model and the samples of a split.

    Attributes:
        model: on its device.
        samples: those of the split.
        said: notices on how the model was built.
    """

    model: nn.Module
    samples: SplitSamples
    said: list[str]

    @property
    def notices(self) -> list[str]:
        """What was said of the model, and which samples were skipped so far."""
        return [*self.said, *(f"{skipped} was skipped" for skipped in self.samples.skipped)]


def model_on(device: torch.device, config: Config, *, trust_code: bool | CodeTrust, notices: list[str]) -> nn.Module:
    """The model of a configuration on a device.

    Args:
        device: where it goes.
        config: the settings.
        trust_code: as for `open_split`.
        notices: gets what is to be said of how it was built.

    Raises:
        ModelError: it cannot be built.
    """
    built = build_model(config.model, seed=config.extract.seed, trust_code=trust_code, notices=notices)
    return built.to(device)


def open_split(
    config: Config,
    split: str,
    *,
    loss: str,
    command: str,
    trust_code: bool | CodeTrust,
) -> OpenSplit:
    """Opens the samples of a split and the model of a configuration.

    Args:
        config: the settings.
        split: which samples.
        loss: where it looks at labels, all samples need one.
        command: begins the message if there is no such split.
        trust_code: allow a `python:` model or data, whose code is run; a `CodeTrust` says which.

    Raises:
        ConfigError: no such split or device.
        ModelError: a model that cannot be built.
        DataError: samples that cannot be used, or have no label where the loss looks at it.
    """
    planned = planned_splits(config.data)
    if split not in planned:
        raise ConfigError(f"{command}: no split '{split}'; {closest(split, planned)}")
    device = resolve_device(config.extract.device)
    dataset = open_datasets(config, only=[split], trust_code=trust_code)[split]
    check_labelled([loss], dataset.labels, dataset.ids, where=split)
    said: list[str] = []
    model = model_on(device, config, trust_code=trust_code, notices=said)
    samples = SplitSamples(dataset=dataset, name=split, dtype=input_dtype(model), options=config.extract)
    return OpenSplit(model=model, samples=samples, said=said)
