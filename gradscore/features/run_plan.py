"""What a run is made of: its model, its samples, and the shards into which its tables are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from ..config import Config, FeaturesConfig
from ..data import (
    BANK,
    FIT,
    Batch,
    PlannedBatch,
    SampleDataset,
    check_augmentations,
    collate,
    count_shards,
    load_batches,
    plan_batches,
)
from ..errors import ConfigError
from ..losses import LOSSES, with_labels
from ..models import build_model
from ..statistics import find_statistic
from ..store import ShardRows
from ..system import resolve_device
from .class_gradients import ClassSums
from .datasets import open_datasets
from .extractor import Extractor
from .live_model import WARM_UP, LiveModel
from .split_rows import SplitRows, check_labelled, check_samples

Told = Callable[[str, int], None]
"""Is told, after every batch, its split and how many samples it had."""

KEPT = "; the same run folder keeps what is there"
"""What a user is told of a sample that ends an extraction."""


@dataclass(frozen=True)
class RunPlan:
    """What a run is made of.

    Attributes:
        config: the settings.
        datasets: the samples of each split, in order.
        live: the model and what computes its features.
        inputs: as the manifest has them.
        model_notices: what the reader should know of the model.
    """

    config: Config
    datasets: dict[str, SampleDataset]
    live: LiveModel
    inputs: dict[str, Any]
    model_notices: list[str]

    @classmethod
    def of(cls, config: Config, *, trust_code: bool) -> Self:
        """Builds the model and opens the data; nothing is computed or written.

        Raises:
            ConfigError: an unknown loss, statistic, augmentation or parameter pattern, or a device that is not there.
            ModelError: a model that cannot be built.
            DataError: data that cannot be used, or without the labels that a loss looks at.
        """
        device = resolve_device(config.extract.device)
        check_names(config.features)
        notices: list[str] = []
        model = build_model(config.model, seed=config.extract.seed, trust_code=trust_code, notices=notices)
        live = LiveModel.of(
            model.to(device),
            features=config.features,
            num_classes=config.model.num_classes,
            trust_code=trust_code,
        )
        datasets = open_datasets(config, trust_code=trust_code)
        if losses := with_labels(config.features.losses):
            for name in (each for each in datasets if each != BANK):
                check_labelled(losses, datasets[name].labels, datasets[name].ids, where=name)
        inputs = live.inputs(config, {name: dataset.fingerprint() for name, dataset in datasets.items()})
        return cls(config, datasets, live, inputs, notices)

    @property
    def extractor(self) -> Extractor:
        """What computes values."""
        return self.live.extractor

    @property
    def class_names(self) -> list[str] | None:
        """Of the model, in the order of its outputs; None where they are not known."""
        names = self.datasets[FIT].class_names
        return None if names is None else list(names)

    @property
    def input_columns(self) -> list[str] | None:
        """Names of the numbers that the model takes of a row of a table, in their order; None where they have none."""
        names = self.datasets[FIT].input_columns
        return None if names is None else list(names)

    @property
    def notices(self) -> list[str]:
        """What the reader of the values should know, as far as they are computed."""
        autocast = self.config.features.autocast
        said = f"features.autocast: the network ran in {autocast}, which all features show"
        return [*self.model_notices, *self.extractor.notices, *([] if autocast is None else [said])]

    def warm_up(self) -> None:
        """Shows the engine the first samples of the run; raises as `LiveModel.warm_up`, and `DataError`."""
        dataset = self.datasets[FIT]
        batch = collate([dataset[place] for place in range(min(len(dataset), WARM_UP))])
        check_samples(batch, split=FIT, on_error=self.config.extract.on_error, advice=KEPT)
        if len(batch.images):
            self.live.warm_up(batch.images)

    def count_shards(self, split: str) -> int:
        """The number of shards of a split."""
        return count_shards(len(self.datasets[split]), shard_size=self.config.extract.part_size)

    def samples_of(self, split: str, numbers: Iterable[int]) -> int:
        """The number of samples of some shards of a split."""
        return sum(batch.stop - batch.start for batch in self._planned(split, numbers))

    def rows(self, split: str, numbers: Iterable[int], *, told: Told) -> Iterator[tuple[int, ShardRows]]:
        """Computes the rows of some shards of a split, each with its number.

        Raises:
            DataError: a sample that cannot be used, or a worker that was killed.
            ModelError: as `Extractor.values`, as all others.
        """
        rows = SplitRows(self.extractor, split=split, num_classes=self.config.model.num_classes)
        for planned, batch in self._batches(split, numbers):
            rows.compute(batch)
            told(split, planned.stop - planned.start)
            if planned.last:
                yield planned.shard, rows.taken()

    def class_sums(self, numbers: Iterable[int], *, told: Told) -> ClassSums:
        """Adds up the gradients of some shards of `in_dist.fit`, in order; raises as `rows`.

        The batches are those of the feature table, so that a sample is taken out of its mean to the last bit.
        """
        sums = self.extractor.class_sums()
        for planned, batch in self._batches(FIT, numbers):
            self.extractor.add_to(sums, batch.images)
            sums.note_contents(batch.content_hashes)
            if planned.last:
                sums.end_shard()
            told(FIT, planned.stop - planned.start)
        return sums

    def all_batches(self, split: str) -> Iterator[Batch]:
        """All samples of a split, in order; raises as `rows`."""
        return (batch for _, batch in self._batches(split, range(self.count_shards(split))))

    def _planned(self, split: str, numbers: Iterable[int]) -> list[PlannedBatch]:
        options = self.config.extract
        return plan_batches(
            len(self.datasets[split]),
            shards=numbers,
            shard_size=options.part_size,
            batch_size=options.batch_size,
        )

    def _batches(self, split: str, numbers: Iterable[int]) -> Iterator[tuple[PlannedBatch, Batch]]:
        planned = self._planned(split, numbers)
        pin = self.extractor.device.type == "cuda"
        batches = load_batches(self.datasets[split], planned, workers=self.config.extract.workers, pin=pin)
        for plan, batch in zip(planned, batches, strict=True):
            check_samples(batch, split=split, on_error=self.config.extract.on_error, advice=KEPT)
            yield plan, batch


def check_names(features: FeaturesConfig) -> None:
    """Makes sure that the losses, statistics and augmentations exist.

    Raises:
        ConfigError: one does not.
    """
    for place, loss in enumerate(features.losses):
        LOSSES.find(loss, where=f"features.losses.{place}")
    check_augmentations(features.augmentations)
    several = [loss for loss in features.losses if LOSSES[loss].several]
    for place, name in enumerate(features.statistics):
        statistic = find_statistic(name, where=f"features.statistics.{place}")
        if several and statistic.degree != 1:
            raise ConfigError(
                f"features.statistics.{place}: '{name}' does not grow with the gradient, so it does not add up over "
                f"the gradients of loss '{several[0]}'; leave out one of the two"
            )
