"""From a configuration to feature tables: one row per sample, one column per loss, parameter group and statistic."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..columns import COSINE
from ..config import Config, placed
from ..data import BANK, FIT, naming_lost_workers
from ..errors import DataError, StoreError
from ..gradients import GradientWarning
from ..models import weight_files_sha256
from ..store import (
    MEAN_GRADIENTS,
    RunFolder,
    RunWriter,
    check_target,
    is_complete,
    label_warnings,
    write_head,
)
from .class_gradients import MeanGradients, read_means, write_means
from .kept_rows import check_kept_rows
from .makers import Here, Maker
from .progress import Counter, Pace, Progress
from .run_plan import RunPlan


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
    config: Config,
    *,
    out: Path | None = None,
    trust_code: bool = False,
    check_kept: bool = False,
    progress: Progress | None = None,
) -> ExtractSummary:
    """Computes the feature tables of a run, or what is missing of them.

    In the folder of a run whose inputs changed, splits that the changes do not concern are kept.

    The values depend neither on the number of workers nor on interruptions: a shard of a table always starts a new
    batch.

    Args:
        config: the settings; `config.extract` says how to compute.
        out: the run folder, instead of `config.run`.
        trust_code: allow a `python:` model and augmentations, whose code is run.
        check_kept: read the samples of all rows again that the folder has already, and compare contents, labels and a
            few logits; otherwise hashes of weights and code, and what sources tell a change by, decide alone.
        progress: told after every batch.

    Returns:
        A summary of the run.

    Raises:
        ConfigError: an unknown loss, statistic, augmentation or parameter pattern, or a device that is not there.
        ModelError: a model that cannot be built, or whose outputs do not fit.
        DataError: data that cannot be used, or without the labels that a loss looks at, or a worker that was killed.
        StoreError: a run folder made from other inputs, or with a damaged shard.
        EngineError: gradients that cannot be computed.
    """
    config = placed(config, out)
    plan = RunPlan.of(config, trust_code=trust_code)
    summary = complete_run(plan, Here(), progress=progress)
    if check_kept:
        kept = [split.name for split in summary.splits if split.computed < split.samples]
        check_kept_rows(plan, RunFolder(summary.run), kept)
    return summary


def complete_run(plan: RunPlan, maker: Maker, *, progress: Progress | None = None) -> ExtractSummary:
    """Has the shards of a run made that are not there yet, and finishes it.

    Args:
        plan: of the run.
        maker: computes what is missing.
        progress: told after every batch.

    Returns:
        A summary of the run.

    Raises:
        GradscoreError: as `extract`, and what `maker` raises.
    """
    config = plan.config
    weight_files = weight_files_sha256(config.model)
    target = check_target(config.run, config, plan.inputs)
    was_complete = is_complete(config.run, target.manifest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the notices of the summary say it
        if not was_complete:
            plan.warm_up()
        with naming_lost_workers(), RunWriter.opened(config.run, config=config, inputs=plan.inputs) as writer:
            writer.note(
                class_names=plan.class_names,
                input_columns=plan.input_columns,
                weight_files_sha256=weight_files,
            )
            counter = Counter(sum(map(len, plan.datasets.values())), progress)
            task = _Task(plan, maker, writer, counter)
            was_complete = was_complete or is_complete(config.run, writer.manifest)  # by another process meanwhile
            if not was_complete:
                _begin(task)
            splits = [_completed(task, name) for name in plan.datasets]
            if not was_complete:
                notices = list(dict.fromkeys([*plan.notices, *maker.notices]))
                writer.finish(feature_count=len(plan.extractor.feature_names), notices=notices)
    return ExtractSummary(
        run=config.run,
        device=plan.extractor.device.type,
        splits=splits,
        feature_count=writer.manifest["feature_count"],
        notices=writer.manifest["notices"],
        was_complete=was_complete,
        changes=target.changes.sentences,
        warnings=label_warnings(RunFolder(config.run)),
    )


@dataclass(frozen=True)
class _Task:
    plan: RunPlan
    maker: Maker
    writer: RunWriter
    counter: Counter


def _begin(task: _Task) -> None:
    """What comes before all samples: the weights of the last layer, and mean gradients to compare with."""
    plan = task.plan
    if plan.live.layer is not None:
        write_head(plan.config.run, plan.live.layer.head)
    if COSINE in plan.config.features.columns:
        task.counter.total += len(plan.datasets[FIT])
        plan.extractor.compare_with(_known_means(task) or _new_means(task))


def _known_means(task: _Task) -> MeanGradients | None:
    """The mean gradients in the folder of the run; None where there are none yet."""
    known = task.writer.manifest.get("mean_gradients_sha256")
    if known is None or not (task.writer.path / MEAN_GRADIENTS).exists():
        return None
    task.counter.add(FIT, len(task.plan.datasets[FIT]))
    return read_means(task.writer.path, sha256=known)


def _new_means(task: _Task) -> MeanGradients:
    writer = task.writer
    means = task.maker.mean_gradients(task.plan, told=task.counter.add)
    sha256 = write_means(writer.path, means)
    if writer.manifest.get("mean_gradients_sha256") not in (None, sha256):
        raise StoreError(
            f"{writer.path / MEAN_GRADIENTS}: it was missing, and what was computed anew is not what the feature "
            "tables were made with; restore it from a copy, or extract into another folder"
        )
    writer.note(mean_gradients_sha256=sha256)
    return means


def _completed(task: _Task, split: str) -> SplitSummary:
    """Has the shards of a split made that are missing."""
    began = time.perf_counter()
    plan, writer = task.plan, task.writer
    shards, samples = plan.count_shards(split), len(plan.datasets[split])
    notes = writer.existing(split, shards)
    missing = [number for number in range(shards) if number not in notes]
    computed = plan.samples_of(split, missing)
    task.counter.add(split, samples - computed)
    pace = Pace()

    def told(split: str, samples: int) -> None:
        task.counter.add(split, samples)
        pace.add(samples)

    if missing:
        notes |= dict(task.maker.shards(plan, writer, split, missing, told=told))
    if not any(note.rows for note in notes.values()):
        first = notes[0].skipped[0]
        raise DataError(f"split {split}: all {samples} samples were skipped; {first.sample_id}: {first.error}")
    seconds = time.perf_counter() - began
    ordered = [notes[number] for number in range(shards)]
    entry = writer.finish_split(split, ordered, samples=computed, seconds=seconds)
    return summary_of(split, entry, computed=computed, seconds=seconds, rate=pace.rate)


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
