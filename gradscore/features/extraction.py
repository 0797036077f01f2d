"""From a configuration to feature tables: one row per sample, one column per loss, parameter group and statistic."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..columns import COSINE
from ..config import Config, FeaturesConfig
from ..data import (
    BANK,
    FIT,
    PlannedBatch,
    SampleDataset,
    check_views,
    collate,
    count_shards,
    load_batches,
    naming_lost_workers,
    plan_batches,
)
from ..errors import ConfigError, DataError
from ..gradients import GradientWarning
from ..losses import LOSSES, with_labels
from ..models import build_model
from ..statistics import find_statistic
from ..store import (
    RunFolder,
    RunWriter,
    ShardRows,
    check_target,
    is_complete,
    label_warnings,
    write_head,
)
from ..system import resolve_device
from .class_gradients_pass import check_samples, mean_gradients
from .datasets import open_datasets
from .extractor import Extractor
from .live_model import WARM_UP, LiveModel
from .progress import Counter, Progress
from .split_rows import SplitRows, check_labelled


@dataclass(frozen=True)
class SplitSummary:
    """What is in a split and what it took.

    Attributes:
        name: the split.
        samples: rows in its table.
        labelled: those with a label.
        accuracy: of the classifier; None without labels.
        computed: samples looked at this time; the others were there already.
        seconds: spent on them.
        non_finite: rows with a logit or feature that is not finite; such values are kept as they are.
        skipped: samples that could not be used, as `id: reason`.
        rate: samples a second after the first batch, which also compiles loops; None where there were no others.
    """

    name: str
    samples: int
    labelled: int
    accuracy: float | None
    computed: int
    seconds: float
    non_finite: int
    skipped: list[str]
    rate: float | None = None


@dataclass(frozen=True)
class ExtractSummary:
    """What an extraction did.

    Attributes:
        run: the run folder.
        device: the kind of device that computed.
        splits: one summary each, in order.
        feature_count: columns of features.
        notices: what fell back to a slower way and why, and what else the reader of the figures should know.
        was_complete: everything was there already, nothing was computed.
        warnings: what the reader should know first, since all figures may mean nothing.
        changes: which splits were computed anew or removed since the run was begun, and why; the others were kept.
    """

    run: Path
    device: str
    splits: list[SplitSummary]
    feature_count: int
    notices: list[str]
    was_complete: bool
    warnings: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the classifier over all labelled samples but those of the bank; None without any."""
        splits = [split for split in self.splits if split.name != BANK]
        shares = [(split.accuracy, split.labelled) for split in splits if split.accuracy is not None]
        labelled = sum(count for _, count in shares)
        return sum(share * count for share, count in shares) / labelled if labelled else None


def extract(
    config: Config, *, out: Path | None = None, trust_code: bool = False, progress: Progress | None = None
) -> ExtractSummary:
    """Computes the feature tables of a run, or what is missing of them.

    In the folder of a run whose inputs changed, splits that the changes do not concern are kept.

    The values depend neither on the number of workers nor on interruptions: a shard of a table always starts a new
    batch.

    Args:
        config: the settings; `config.extract` says how to compute.
        out: the run folder, instead of `config.run`.
        trust_code: allow a `python:` model and views, whose code is run.
        progress: told after every batch.

    Returns:
        A summary of the run.

    Raises:
        ConfigError: an unknown loss, statistic, view or parameter pattern, or a device that is not there.
        ModelError: a model that cannot be built, or whose outputs do not fit.
        DataError: data that cannot be used, or without the labels that a loss looks at, or a worker that was killed.
        StoreError: a run folder made from other inputs, or with a damaged shard.
        EngineError: gradients that cannot be computed.
    """
    config = config if out is None else config.model_copy(update={"run": out.absolute()})
    plan = _planned(config, trust_code=trust_code)
    target = check_target(config.run, config, plan.inputs)
    was_complete = is_complete(config.run, target.manifest)
    extractor = plan.live.extractor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the notices of the summary say it
        if not was_complete:
            _warm_up(plan.live, plan.datasets[FIT], config=config)
        with naming_lost_workers(), RunWriter.opened(config.run, config=config, inputs=plan.inputs) as writer:
            names = plan.datasets[FIT].class_names
            writer.note(class_names=None if names is None else list(names))
            counter = Counter(sum(map(len, plan.datasets.values())), progress)
            task = _Task(config, extractor, writer, counter)
            if not was_complete:
                _begin(task, plan)
            splits = [_completed(task, name, dataset) for name, dataset in plan.datasets.items()]
            if not was_complete:
                notices = [*plan.notices, *_notices(config, extractor)]
                writer.finish(feature_count=len(extractor.feature_names), notices=notices)
    return ExtractSummary(
        run=config.run,
        device=extractor.device.type,
        splits=splits,
        feature_count=writer.manifest["feature_count"],
        notices=writer.manifest["notices"],
        was_complete=was_complete,
        changes=target.changes.sentences,
        warnings=label_warnings(RunFolder(config.run)),
    )


def check_names(features: FeaturesConfig) -> None:
    """Makes sure that the losses, statistics and views exist.

    Raises:
        ConfigError: one does not.
    """
    for place, loss in enumerate(features.losses):
        LOSSES.find(loss, where=f"features.losses.{place}")
    check_views(features.views)
    several = [loss for loss in features.losses if LOSSES[loss].several]
    for place, name in enumerate(features.statistics):
        statistic = find_statistic(name, where=f"features.statistics.{place}")
        if several and statistic.degree != 1:
            raise ConfigError(
                f"features.statistics.{place}: '{name}' does not grow with the gradient, so it does not add up over "
                f"the gradients of loss '{several[0]}'; leave out one of the two"
            )


@dataclass(frozen=True)
class _Task:
    config: Config
    extractor: Extractor
    writer: RunWriter
    counter: Counter


@dataclass(frozen=True)
class _Plan:
    """What a run is made of; `inputs` are as the manifest has them."""

    datasets: dict[str, SampleDataset]
    live: LiveModel
    inputs: dict[str, Any]
    notices: list[str]


def _planned(config: Config, *, trust_code: bool) -> _Plan:
    """Builds the model and opens the data; nothing is computed or written."""
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
    for name, dataset in datasets.items():
        if name != BANK:
            check_labelled(with_labels(config.features.losses), dataset.labels, dataset.ids, where=name)
    inputs = live.inputs(config, {name: dataset.fingerprint() for name, dataset in datasets.items()})
    return _Plan(datasets, live, inputs, notices)


def _begin(task: _Task, plan: _Plan) -> None:
    """What comes before all samples: the weights of the last layer, and mean gradients to compare with."""
    if plan.live.layer is not None:
        write_head(task.config.run, plan.live.layer.head)
    if COSINE in task.config.features.columns:
        fit = plan.datasets[FIT]
        task.counter.total += len(fit)
        means = mean_gradients(
            task.extractor, fit, task.writer, config=task.config, progress=lambda done: task.counter.add(FIT, done)
        )
        task.extractor.compare_with(means)


def _warm_up(live: LiveModel, dataset: SampleDataset, *, config: Config) -> None:
    batch = collate([dataset[place] for place in range(min(len(dataset), WARM_UP))])
    check_samples(batch, split=FIT, on_error=config.extract.on_error)
    if len(batch.images):
        live.warm_up(batch.images)


def _completed(task: _Task, split: str, dataset: SampleDataset) -> SplitSummary:
    """Computes the shards of a split that are missing."""
    began = time.perf_counter()
    options = task.config.extract
    shards = count_shards(len(dataset), shard_size=options.part_size)
    notes = task.writer.existing(split, shards)
    planned = plan_batches(
        len(dataset),
        shards=[number for number in range(shards) if number not in notes],
        shard_size=options.part_size,
        batch_size=options.batch_size,
    )
    computed = sum(batch.stop - batch.start for batch in planned)
    task.counter.add(split, len(dataset) - computed)
    rows = SplitRows(task.extractor, split=split, num_classes=task.config.model.num_classes)
    for number, shard in _shards(task, rows, split, dataset, planned):
        notes[number] = task.writer.write(split, number, shard)
    if not any(note.rows for note in notes.values()):
        first = notes[0].skipped[0]
        raise DataError(f"split {split}: all {len(dataset)} samples were skipped; {first.sample_id}: {first.error}")
    seconds = time.perf_counter() - began
    ordered = [notes[number] for number in range(shards)]
    entry = task.writer.finish_split(split, ordered, samples=computed, seconds=seconds)
    return summary_of(split, entry, computed=computed, seconds=seconds, rate=rows.rate)


def summary_of(
    split: str, entry: Mapping[str, Any], *, computed: int, seconds: float, rate: float | None = None
) -> SplitSummary:
    """The summary of a finished split, from its entry in the manifest."""
    return SplitSummary(
        name=split,
        samples=entry["rows"],
        labelled=entry["labelled"],
        accuracy=entry["accuracy"],
        computed=computed,
        seconds=seconds,
        non_finite=entry["non_finite"],
        skipped=[f"{skipped['sample_id']}: {skipped['error']}" for skipped in entry["skipped"]],
        rate=rate,
    )


def _shards(
    task: _Task, rows: SplitRows, split: str, dataset: SampleDataset, planned: list[PlannedBatch]
) -> Iterator[tuple[int, ShardRows]]:
    """Computes batches and joins them to shards, each with its number."""
    options, extractor = task.config.extract, task.extractor
    batches = load_batches(dataset, planned, workers=options.workers, pin=extractor.device.type == "cuda")
    for plan, batch in zip(planned, batches, strict=True):
        check_samples(batch, split=split, on_error=options.on_error)
        rows.compute(batch)
        task.counter.add(split, plan.stop - plan.start)
        if plan.last:
            yield plan.shard, rows.taken()


def _notices(config: Config, extractor: Extractor) -> list[str]:
    notices = list(extractor.notices)
    if config.features.autocast is not None:
        notices.append(f"features.autocast: the network ran in {config.features.autocast}, which all features show")
    return notices
