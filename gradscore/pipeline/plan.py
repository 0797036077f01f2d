"""What a configuration asks for, opened: its model, and the samples of its splits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from torch import nn

from ..config import Config, check_features
from ..data import (
    BANK,
    FIT,
    Batch,
    SampleDataset,
    Samples,
    check_usable,
    collate,
    count_shards,
    load_batches,
    open_splits,
    planned_splits,
    split_samples,
)
from ..errors import ConfigError
from ..extractor import WARM_UP, ClassSums, Extractor
from ..losses import with_labels
from ..models import build_model, class_names
from ..system import closest, resolve_device
from .loop import OnBatch, cut
from .rows import check_labelled

KEPT = "; the same run folder keeps what is there"
"""What a user is told of a sample that ends an extraction."""


@dataclass(frozen=True)
class RunPlan:
    """What a run is made of.

    Attributes:
        config: the settings.
        datasets: the samples of each split, in order.
        extractor: the model and what computes its features.
        inputs: as the manifest has them.
        model_notices: what the reader should know of the model.
    """

    config: Config
    datasets: dict[str, SampleDataset]
    extractor: Extractor
    inputs: dict[str, Any]
    model_notices: list[str]

    @classmethod
    def of(cls, config: Config) -> Self:
        """Builds the model and opens the data; nothing is computed or written.

        Raises:
            ConfigError: an unknown loss, statistic, augmentation or parameter pattern, or a device that is not there.
            ModelError: a model that cannot be built.
            DataError: data that cannot be used, or without the labels that a loss looks at.
        """
        device = resolve_device(config.extract.device)
        check_features(config.features)
        notices: list[str] = []
        model = build_model(config.model, seed=config.extract.seed, notices=notices)
        extractor = Extractor.of(
            model.to(device),
            features=config.features,
            num_classes=config.model.num_classes,
        )
        datasets = open_datasets(config)
        if losses := with_labels(config.features.losses):
            for name in (each for each in datasets if each != BANK):
                check_labelled(losses, datasets[name].labels, datasets[name].ids, where=name)
        inputs = extractor.describe(config, {name: dataset.fingerprint() for name, dataset in datasets.items()})
        return cls(config, datasets, extractor, inputs, notices)

    @property
    def notices(self) -> list[str]:
        """What the reader of the values should know, as far as they are computed."""
        autocast = self.config.features.autocast
        ran = [] if autocast is None else [f"features.autocast: the network ran in {autocast}, which all features show"]
        return [*self.model_notices, *self.extractor.notices, *ran]

    def warm_up(self) -> None:
        """Shows the engine the first samples of the run; raises as `Extractor.warm_up`, and `DataError`."""
        dataset = self.datasets[FIT]
        batch = collate([dataset[place] for place in range(min(len(dataset), WARM_UP))])
        check_usable(batch, split=FIT, on_error=self.config.extract.on_error, advice=KEPT)
        if batch.ids:
            self.extractor.warm_up(batch.inputs)

    def count_shards(self, split: str) -> int:
        """The number of shards of a split."""
        return count_shards(len(self.datasets[split]), shard_size=self.config.extract.part_size)

    def samples_of(self, split: str, shards: Iterable[int]) -> int:
        """The number of samples of some shards of a split."""
        size, samples = self.config.extract.part_size, len(self.datasets[split])
        return sum(min((shard + 1) * size, samples) - shard * size for shard in shards)

    def batches(self, split: str, shards: Iterable[int] | None = None) -> Iterator[Batch]:
        """The samples of some shards of a split, or of all of them.

        Raises:
            DataError: a sample that cannot be used, or a worker that was killed.
        """
        options = self.config.extract
        return load_batches(
            self.datasets[split],
            split=split,
            batch_size=options.batch_size,
            shard_size=options.part_size,
            shards=range(self.count_shards(split)) if shards is None else shards,
            workers=options.workers,
            pin=self.extractor.device.type == "cuda",
            on_error=options.on_error,
            advice=KEPT,
        )

    def class_sums(self, shards: Iterable[int], *, on_batch: OnBatch) -> ClassSums:
        """Adds up the gradients of some shards of `in_dist.fit`, in order; raises as `batches` and `Extractor.values`.

        The batches are those of the feature table, so that a sample is taken out of its mean to the last bit.
        """
        return sums_of(self.batches(FIT, shards), self.extractor, self.config, on_batch=on_batch)


def sums_of(samples: Iterable[Batch], extractor: Extractor, config: Config, *, on_batch: OnBatch) -> ClassSums:
    """Adds up the gradients of samples by predicted class.

    Args:
        samples: of `in_dist.fit`.
        extractor: computes gradients.
        config: says how many samples are in a batch and in a shard.
        on_batch: called after every batch.
    """
    sums = extractor.class_sums()
    for each in cut(samples, batch_size=config.extract.batch_size, shard_size=config.extract.part_size):
        extractor.add_to(sums, each.batch.inputs)
        sums.note_contents(each.batch.content_hashes)
        if each.is_last:
            sums.end_shard()
        on_batch(FIT, each.batch.places)
    sums.end_shard()
    return sums


def open_datasets(
    config: Config,
    *,
    only: Collection[str] | None = None,
) -> dict[str, SampleDataset]:
    """Opens the data of the splits of a configuration, by name and in order.

    Args:
        config: the settings.
        only: names of the splits that are wanted; all of them if None.

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
    )


@dataclass(frozen=True, kw_only=True)
class OpenSplit:
    """A model and the samples of a split.

    Attributes:
        model: on its device.
        dataset: all samples.
        samples: those of them that can be used, batch by batch.
        model_notices: how the model was built.
        skipped: names of samples that cannot be used, as they come.
    """

    model: nn.Module
    dataset: SampleDataset
    samples: Samples
    model_notices: list[str]
    skipped: list[str] = field(default_factory=list)

    @property
    def notices(self) -> list[str]:
        """How the model was built, and which samples were skipped so far."""
        return [*self.model_notices, *(f"{skipped} was skipped" for skipped in self.skipped)]


def open_split(config: Config, split: str, *, loss: str, command: str) -> OpenSplit:
    """Opens the samples of a split and the model of a configuration.

    Args:
        config: the settings.
        split: which samples.
        loss: where it looks at labels, all samples need one.
        command: begins the message if there is no such split.

    Raises:
        ConfigError: no such split or device.
        ModelError: a model that cannot be built.
        DataError: samples that cannot be used, or have no label where the loss looks at it.
    """
    planned = planned_splits(config.data)
    if split not in planned:
        raise ConfigError(f"{command}: no split '{split}'; {closest(split, planned)}")
    device = resolve_device(config.extract.device)
    dataset = open_datasets(config, only=[split])[split]
    check_labelled(with_labels([loss]), dataset.labels, dataset.ids, where=split)
    notices: list[str] = []
    model = build_model(config.model, seed=config.extract.seed, notices=notices).to(device)
    skipped: list[str] = []
    options = config.extract
    samples = split_samples(
        dataset,
        name=split,
        batch_size=options.batch_size,
        workers=options.workers,
        on_error=options.on_error,
        skipped=skipped,
    )
    return OpenSplit(model=model, dataset=dataset, samples=samples, model_notices=notices, skipped=skipped)
