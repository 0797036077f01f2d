"""The sink that is a run folder: feature tables of the samples of a configuration, or of those that a program gives."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..columns import logit_columns
from ..config import Config, placed
from ..data import BANK, FIT, Batch, naming_lost_workers, planned_splits
from ..errors import DataError, StoreError
from ..extractor import Extractor
from ..models import trusting_code, weight_files_sha256
from ..notices import Notice, notes
from ..statistics import find_statistic
from ..store import (
    RunFolder,
    RunWriter,
    ShardNote,
    Skipped,
    SplitEntry,
    check_target,
    is_complete,
    label_warnings,
    refuse_doubtful_labels,
    shard_path,
    split_folder,
    write_head,
    write_shard,
)
from ..system import rows_of
from .loop import Counter, Cut, OnBatch, Pace, Progress, RowExtractor, Sink, Values, run, shard_rows
from .run_plan import RunPlan

PROBED = 8
"""Samples of each split whose logits are computed again where kept rows are checked."""

MOVED = 0.02
"""The largest difference of logits that is rounding, relative to the range of all: half precision moves by less."""


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
        skipped: samples that could not be used, and why.
        rate: samples a second after the first batch, which also compiles loops; None where there were no others.
    """

    name: str
    samples: int
    labelled: int
    accuracy: float | None
    computed: int
    seconds: float
    non_finite: int
    skipped: list[Skipped]
    rate: float | None = None

    @classmethod
    def of(
        cls, name: str, entry: SplitEntry, *, computed: int = 0, seconds: float = 0.0, rate: float | None = None
    ) -> Self:
        """That of a finished split, from its entry in the manifest."""
        return cls(
            name=name,
            samples=entry.rows,
            labelled=entry.labelled,
            accuracy=entry.accuracy,
            computed=computed,
            seconds=seconds,
            non_finite=entry.non_finite,
            skipped=entry.skipped,
            rate=rate,
        )


@dataclass(frozen=True)
class ExtractSummary:
    """What an extraction did.

    Attributes:
        run: the run folder.
        device: the kind of device that computed.
        splits: one summary each, in order.
        feature_count: columns of features.
        notices: what fell back to a slower way and why, and what else the reader of the figures should know; warnings
            first.
        was_complete: everything was there already, nothing was computed.
        changes: which splits were computed anew or removed since the run was begun, and why; the others were kept.
    """

    run: Path
    device: str
    splits: list[SplitSummary]
    feature_count: int
    notices: list[Notice]
    was_complete: bool
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
    check_labels: bool = False,
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
        check_labels: stop after `in_dist.fit` where its labels are probably not those that the network learned.
        progress: called after every batch.

    Returns:
        A summary of the run.

    Raises:
        ConfigError: an unknown loss, statistic, augmentation or parameter pattern, or a device that is not there.
        ModelError: a model that cannot be built, or whose outputs do not fit.
        DataError: data that cannot be used, or without the labels that a loss looks at, or a worker that was killed.
        DoubtfulLabelsError: see `check_labels`.
        StoreError: a run folder made from other inputs, or with a damaged shard.
        EngineError: gradients that cannot be computed.
    """
    config = placed(config, out)
    with trusting_code(trust_code):
        plan = RunPlan.of(config)
    summary = complete_run(plan, check_labels=check_labels, progress=progress)
    if check_kept:
        for split in summary.splits:
            if split.computed < split.samples:
                _check_kept_rows(plan, RunFolder(summary.run), split.name)
    return summary


MakeShards = Callable[[str, Sequence[int], OnBatch], None]
"""Writes shards of a split into the folder of a run, in any order."""


def complete_run(
    plan: RunPlan,
    *,
    make_shards: MakeShards | None = None,
    notices: Sequence[str] = (),
    check_labels: bool = False,
    progress: Progress | None = None,
) -> ExtractSummary:
    """Has the shards of a run made that are not there yet, and finishes it.

    Args:
        plan: of the run.
        make_shards: has what is missing made elsewhere; None to compute it here.
        notices: of what was made elsewhere; they are looked at when everything is there.
        check_labels: as `extract`.
        progress: called after every batch.

    Returns:
        A summary of the run.

    Raises:
        GradscoreError: as `extract` and `make_shards`.
    """
    config, extractor = plan.config, plan.extractor
    weight_files = weight_files_sha256(config.model)
    target = check_target(config.run, config, plan.inputs)
    changes = target.changes.sentences(lambda split: split_folder(config.run, split).exists())
    was_complete = is_complete(config.run, target.manifest)
    if not was_complete:
        plan.warm_up()
    with naming_lost_workers(), RunWriter.opened(config.run, config=config, inputs=plan.inputs) as writer:
        manifest, fit = writer.manifest, plan.datasets[FIT]
        manifest.class_names = None if fit.class_names is None else list(fit.class_names)
        manifest.input_columns = None if fit.input_columns is None else list(fit.input_columns)
        manifest.weight_files_sha256 = weight_files
        manifest.write(writer.path)
        counter = Counter(sum(map(len, plan.datasets.values())), progress)
        was_complete = was_complete or is_complete(config.run, manifest)  # by another process meanwhile
        if not was_complete and extractor.last_layer is not None:
            write_head(writer.path, extractor.last_layer.head)
        splits = []
        for split in plan.datasets:
            splits.append(_completed(plan, writer, counter, split, make_shards))
            if check_labels and split == FIT:
                refuse_doubtful_labels(RunFolder(writer.path))
        if not was_complete:
            known = list(dict.fromkeys([*plan.notices, *notices]))
            writer.finish(feature_count=len(extractor.feature_names), notices=known)
    return _summary(writer, extractor, splits, was_complete=was_complete, changes=changes)


def _completed(
    plan: RunPlan, writer: RunWriter, counter: Counter, split: str, make_shards: MakeShards | None
) -> SplitSummary:
    """Has the shards of a split made that are missing."""
    began, pace = time.perf_counter(), Pace()
    shards = range(plan.count_shards(split))
    notes = writer.existing(split, shards)
    missing = [number for number in shards if number not in notes]
    computed = plan.samples_of(split, missing)
    counter.add(split, len(plan.datasets[split]) - computed)

    def on_batch(split: str, samples: int) -> None:
        counter.add(split, samples)
        pace.add(samples)

    of_gradients = None
    if missing:
        if make_shards is None:
            plan.extractor.take_gradient_seconds()
            write_shards(plan, split, missing, on_batch=on_batch)
            of_gradients = plan.extractor.take_gradient_seconds()
        else:
            make_shards(split, missing, on_batch)
        notes |= writer.existing(split, missing)
    ordered = [notes[number] for number in shards]
    seconds = time.perf_counter() - began
    share = None if of_gradients is None else min(1.0, round(of_gradients / seconds, 3))
    return _finished(writer, split, ordered, computed=computed, seconds=seconds, rate=pace.rate, gradients=share)


def _finished(
    writer: RunWriter,
    split: str,
    notes: Sequence[ShardNote],
    *,
    computed: int,
    seconds: float,
    rate: float | None,
    gradients: float | None = None,
) -> SplitSummary:
    """Enters a split into the manifest, with the notes of its shards in order."""
    if not any(note.rows for note in notes):
        skipped = [bad for note in notes for bad in note.skipped]
        first = skipped[0]
        raise DataError(f"split {split}: all {len(skipped)} samples were skipped; {first.sample_id}: {first.error}")
    entry = writer.finish_split(split, notes, samples=computed, seconds=seconds, gradients=gradients)
    return SplitSummary.of(split, entry, computed=computed, seconds=seconds, rate=rate)


def _summary(
    writer: RunWriter,
    extractor: Extractor,
    splits: list[SplitSummary],
    *,
    was_complete: bool = False,
    changes: Sequence[str] = (),
) -> ExtractSummary:
    folder = RunFolder(writer.path)
    return ExtractSummary(
        run=writer.path,
        device=extractor.device.type,
        splits=splits,
        feature_count=writer.manifest.feature_count,
        notices=[*label_warnings(folder), *_zero_losses(folder), *notes(writer.manifest.notices)],
        was_complete=was_complete,
        changes=list(changes),
    )


def _zero_losses(run: RunFolder) -> Iterator[Notice]:
    """Cautions of losses whose gradients are zero for all samples of `in_dist.fit`."""
    features, names = run.config.features, run.columns(FIT)
    for loss in features.losses:
        columns = [
            name
            for name in names
            if name.startswith(f"{loss}/") and find_statistic(name.rpartition("/")[2]).degree  # the size of gradients
        ]
        looks = (columns[:1], columns) if columns else ()
        if looks and not any(run.read(FIT, each).to_numpy().any() for each in looks):
            yield Notice(
                f"loss '{loss}': its gradients are zero for all {run.manifest.splits[FIT].rows} samples of {FIT}, so "
                "that its features say nothing; mend it, or leave it out (features.losses)",
                "caution",
            )


def write_shards(plan: RunPlan, split: str, numbers: Sequence[int], *, on_batch: OnBatch) -> None:
    """Computes some shards of a split and writes them into the folder of the run.

    Raises:
        GradscoreError: as `RunPlan.batches` and `Extractor.values`.
    """
    options, extractor = plan.config.extract, RowExtractor(plan.extractor)
    sink = ShardSink(plan.config.run, extractor, num_classes=plan.config.model.num_classes)
    run(
        plan.batches(split, numbers),
        extractor,
        sink,
        batch_size=options.batch_size,
        shard_size=options.part_size,
        shards=numbers,
        on_batch=on_batch,
    )


class ShardSink(Sink[Values]):
    """Writes the shards of a run; `shards` says how many of each split were there last.

    Args:
        path: the run folder.
        extractor: computes the rows.
        num_classes: K.
    """

    def __init__(self, path: Path, extractor: RowExtractor, *, num_classes: int) -> None:
        self._path, self._extractor, self._num_classes = path, extractor, num_classes
        self._waiting: dict[str, list[tuple[Batch, Values]]] = {}
        self.shards: dict[str, int] = {}

    def take(self, cut: Cut, found: Values | None) -> None:
        """See `Sink`."""
        assert found is not None
        split = cut.batch.split
        self._waiting.setdefault(split, []).append((cut.batch, found))
        self.shards[split] = cut.shard + 1
        if cut.is_last:
            self._write(split)

    def close(self) -> None:
        """See `Sink`."""
        for split, waiting in self._waiting.items():
            if waiting:
                self._write(split)

    def _write(self, split: str) -> None:
        waiting, self._waiting[split] = self._waiting[split], []
        rows = shard_rows(waiting, names=self._extractor.names(split), num_classes=self._num_classes)
        write_shard(shard_path(split_folder(self._path, split), self.shards[split] - 1), rows)


def extract_given(
    config: Config,
    extractor: Extractor,
    samples: Iterable[Batch],
    *,
    onto: RunFolder | None = None,
    progress: Progress | None = None,
    total: int = 0,
) -> ExtractSummary:
    """Computes the feature tables of a run, or of splits that are new to it, from samples as a program gives them.

    Args:
        config: the settings; where it says that samples come from does not matter.
        extractor: of the model, warmed up.
        samples: of the splits that are not there yet, perhaps mixed; they are looked at once, in the order they come.
        onto: the run in `config.run` that goes on; None for a new one.
        progress: called after every batch.
        total: how many samples there are, for `progress`; 0 if that is unknown.

    Returns:
        A summary of the run.

    Raises:
        DataError: samples that cannot be used, or none of a split.
        ModelError: the model cannot take them.
        StoreError: a run folder of something else, or made with other weights or settings.
        EngineError: gradients that cannot be computed.
    """
    before = {} if onto is None else onto.manifest.inputs.data
    planned = planned_splits(config.data)
    # Fingerprints of samples that nobody has seen yet are empty.
    inputs = extractor.describe(config, {name: before[name].fingerprint if name in before else "" for name in planned})
    rows, counter, options = RowExtractor(extractor), Counter(total, progress), config.extract
    seen: dict[str, _ReadSamples] = {}
    with RunWriter.opened(config.run, config=config, inputs=inputs) as writer:
        if onto is None and extractor.last_layer is not None:
            write_head(config.run, extractor.last_layer.head)
        sink = ShardSink(config.run, rows, num_classes=config.model.num_classes)
        extractor.take_gradient_seconds()
        then = time.perf_counter()

        def on_batch(split: str, samples: int) -> None:
            nonlocal then
            before, then = then, time.perf_counter()
            seen[split].seconds += then - before
            seen[split].pace.add(samples)
            counter.add(split, samples)

        run(
            _noted(samples, seen),
            rows,
            sink,
            batch_size=options.batch_size,
            shard_size=options.part_size,
            on_batch=on_batch,
        )
        whole = sum(each.seconds for each in seen.values())
        share = min(1.0, round(extractor.take_gradient_seconds() / whole, 3)) if whole else None
        known = [name for name in planned if onto is not None and name in onto.manifest.splits]
        summaries = [SplitSummary.of(name, writer.manifest.splits[name]) for name in known]
        for split in (name for name in planned if name not in known):
            if split not in seen:
                raise DataError(f"split {split}: wanted samples, got none; give more")
            found = seen[split]
            writer.manifest.inputs.data[split].fingerprint = found.digest.hexdigest()
            computed, rate = len(found.content_hashes), found.pace.rate
            notes = [*writer.existing(split, range(sink.shards[split])).values()]
            summaries.append(
                _finished(writer, split, notes, computed=computed, seconds=found.seconds, rate=rate, gradients=share)
            )
        writer.finish(feature_count=len(extractor.feature_names), notices=list(extractor.notices))
    return _summary(writer, extractor, summaries)


@dataclass
class _ReadSamples:
    """What is known of the samples of a split that were read."""

    content_hashes: list[str] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    pace: Pace = field(default_factory=Pace)
    seconds: float = 0.0


def _noted(samples: Iterable[Batch], seen: dict[str, _ReadSamples]) -> Iterator[Batch]:
    """Notes ids, labels and content of samples as they pass."""
    for batch in samples:
        found = seen.setdefault(batch.split, _ReadSamples())
        found.content_hashes += batch.content_hashes
        for row in zip(batch.ids, batch.labels.tolist(), batch.content_hashes, strict=True):
            found.digest.update(json.dumps(row).encode())
        yield batch


def _check_kept_rows(plan: RunPlan, folder: RunFolder, split: str) -> None:
    """Makes sure that stored rows are of the samples that are there, by content, and of this model.

    Manifests tell a change by what can be looked at without reading all samples: names and sizes of image files, the
    code of a data source, parameters. Here every sample is read again, and a few are sent through the network.

    Raises:
        StoreError: a sample, a label or a logit is another one.
        DataError: a sample that cannot be used.
    """
    advice = "the rows of this run are not of what is there now; remove the run folder, or give another one (--out)"
    stored = folder.read(split)
    logits = stored[logit_columns(stored.columns)].to_numpy(dtype=np.float64)
    kept = list(zip(stored["sample_id"], stored["content_hash"], stored["label"], strict=True))
    done = 0
    for batch in plan.batches(split):
        now = list(zip(batch.ids, batch.content_hashes, batch.labels.tolist(), strict=True))
        for before, found in zip(kept[done : done + len(now)], now, strict=False):
            if before != found:
                what = "sample" if before[0] != found[0] else "content" if before[1] != found[1] else "label"
                raise StoreError(
                    f"{folder.path}: {split}, {found[0]}: another {what} than when it was computed; {advice}"
                )
        if done == 0 and len(now):
            again = plan.extractor.forward_values(rows_of(batch.inputs, slice(PROBED)))[:, : logits.shape[1]]
            known = logits[np.isfinite(logits)]
            limit = MOVED * float(np.ptp(known)) if len(known) else 0.0
            if not np.isclose(again, logits[: len(again)], rtol=0.0, atol=limit, equal_nan=True).all():
                raise StoreError(
                    f"{folder.path}: {split}: the network says something else of the first samples than when they were "
                    "computed, though its weights have the same hash (does its code read other files, or the "
                    f"environment?); {advice}"
                )
        done += len(now)
    if done != len(kept):
        raise StoreError(f"{folder.path}: {split}: {len(kept)} samples then, {done} now; {advice}")
