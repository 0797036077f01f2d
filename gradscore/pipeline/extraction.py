"""`gradscore extract`: from a configuration to a run folder with feature tables.

`RunPlan.of` opens all that the configuration names and settles what it leaves open; `complete_run` makes the
shards that are lacking, by `write_shards`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import nn

from ..columns import logit_columns
from ..config import AUTO, Config, FeaturesConfig, check_features
from ..data import (
    BANK,
    FILL,
    FIT,
    BadSample,
    Batch,
    Raw,
    Sample,
    SampleDataset,
    Samples,
    SampleSource,
    check_usable,
    collate,
    empty_rows,
    load_batches,
    naming_lost_workers,
    open_splits,
    open_synthetic,
    planned_splits,
    split_samples,
    with_auxiliary,
)
from ..errors import ConfigError, DataError, StoreError
from ..extractor import FAILURES, WARM_UP, Extractor
from ..losses import with_labels
from ..models import (
    LastLayer,
    build_model,
    class_names,
    first_parameter,
    last_layer,
    trusting_code,
    weight_files_sha256,
)
from ..notices import Notice, notes
from ..statistics import find_statistic
from ..store import (
    RunFolder,
    RunInputs,
    RunWriter,
    ShardNote,
    Skipped,
    SplitEntry,
    label_warnings,
    missing_labels,
    refuse_doubtful_labels,
)
from ..system import Inputs, as_address, closest, each_input, is_address, resolve_device, rows_of, sample_count
from .loop import Counter, OnBatch, Pace, Progress, RowExtractor, check_labelled, write_rows

PROBED = 8
"""Samples of each split whose logits are computed again where kept rows are checked."""

MOVED = 0.02
"""The largest difference of logits that is rounding, relative to the range of all: half precision moves by less."""


@dataclass(frozen=True)
class SplitSummary:
    """Summary of a split: what is in it and what it took.

    Attributes:
        name: the split.
        samples: rows in its table.
        labelled: those with a label.
        accuracy: of the classifier; None without labels.
        computed: samples looked at this time; the others were there already.
        seconds: spent on them.
        non_finite: rows with a logit or feature that is not finite; such values are kept as they are.
        skipped: samples that could not be used, and why.
    """

    name: str
    samples: int
    labelled: int
    accuracy: float | None
    computed: int
    seconds: float
    non_finite: int
    skipped: list[Skipped]

    @classmethod
    def of(cls, name: str, entry: SplitEntry, pace: Pace) -> Self:
        """That of a finished split, from its entry in the manifest."""
        return cls(
            name=name,
            samples=entry.rows,
            labelled=entry.labelled,
            accuracy=entry.accuracy,
            computed=pace.samples,
            seconds=pace.seconds,
            non_finite=entry.non_finite,
            skipped=entry.skipped,
        )


@dataclass(frozen=True)
class ExtractSummary:
    """Summary of an extraction.

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
        check_kept: read the samples of all rows again that the folder has already, and compare contents and labels; by
            default a few of each split, beside hashes of weights and code and what sources tell a change by.
        check_labels: stop after `in_dist.fit` where its labels are probably not those that the network learned.
        progress: called after every batch.

    Returns:
        A summary of the run.

    Raises:
        ConfigError: an unknown loss, statistic, augmentation or parameter pattern, or a device that is not there.
        ModelError: a model that cannot be built, or whose outputs do not fit.
        DataError: data that cannot be used, or without the labels that a loss looks at, or a worker that was killed.
        DoubtfulLabelsError: see `check_labels`.
        StoreError: a run folder made from other inputs, or with a damaged shard; or samples, or what the network says
            of them, are not those of its rows.
        EngineError: gradients that cannot be computed.
    """
    plan = RunPlan.of(config, out=out, trust_code=trust_code)
    summary = complete_run(plan, check_labels=check_labels, progress=progress)
    for split in summary.splits:
        if split.computed < split.samples:
            _check_kept_rows(plan, RunFolder(summary.run), split.name, all_of_them=check_kept)
    return summary


KEPT = "; the same run folder keeps what is there"
"""Ending of the message about a sample that ends an extraction."""


@dataclass(frozen=True)
class RunPlan:
    """Plan of a run: all that it is made of.

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
    inputs: RunInputs
    model_notices: Sequence[str]

    @classmethod
    def of(cls, config: Config, *, out: Path | None = None, trust_code: bool = False) -> Self:
        """Builds the model and opens the data; nothing is computed or written.

        Args:
            config: the settings.
            out: the run folder, instead of `config.run`.
            trust_code: allow a `python:` model and augmentations, whose code is run.

        Raises:
            ConfigError: an unknown loss, statistic, augmentation or parameter pattern, or a device that is not there;
                or the run is in object storage, where nothing can work directly.
            ModelError: a model that cannot be built.
            DataError: data that cannot be used, or without the labels that a loss looks at.
        """
        run = config.run if out is None else out
        if is_address(run):
            raise ConfigError(
                f"{as_address(run)}: a run in object storage is made in a local copy: with gradscore.object_storage."
                "working_copy(address) as copy, give copy.path as the run folder and copy.telling() as progress"
            )
        config = config if out is None else config.model_copy(update={"run": out.absolute()})
        device = resolve_device(config.extract.device)
        check_features(config.features)
        with trusting_code(trust_code):
            built = build_model(config.model, seed=config.extract.seed)
            model = built.model.to(device)
            opened = open_datasets(config)
            given = config.data
            config, left_out = _settled(config, model, opened[FIT])
            made = config.data.ood[len(given.ood) :]
            opened |= open_synthetic(made, opened[FIT], preprocessing=config.preprocessing, seed=config.extract.seed)
            extractor = Extractor(model, features=config.features, num_classes=config.model.classes)
        datasets = {name: opened[name] for name in planned_splits(config.data)}
        if losses := with_labels(config.features.losses):
            for name in (each for each in datasets if each != BANK):
                check_labelled(losses, datasets[name].labels, datasets[name].ids, where=name)
        inputs = extractor.describe(config, {name: dataset.fingerprint() for name, dataset in datasets.items()})
        return cls(config, datasets, extractor, inputs, [*built.notices, *left_out])

    @property
    def notices(self) -> list[str]:
        """Notices for the reader of the values, as far as they are computed."""
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
        return ceil(len(self.datasets[split]) / self.config.extract.part_size)

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


NO_BANK = Notice(
    "the bank was left out: samples are compared with it by what enters the linear layer that makes the logits, and in "
    "this network none does (features.penultimate is auto): a program of torch.export has no layers, so give the "
    "network that it was made of; and where log_softmax or a temperature follows such a layer, the network without",
    "caution",
)
"""Notice where a bank is of no use."""

LOOKED_AT = 16
"""Samples, from the first to the last, of which those that can be read are looked at."""

SHOWN_TO_NETWORK = 7
"""Samples of these that a network is shown, to see whether a linear layer makes its logits."""


def resolved(
    config: Config,
    model: nn.Module,
    *,
    sample: Raw | None,
    inputs: Inputs | None,
    base: SampleSource | None,
    samples: int | None,
    has_classes: bool = True,
) -> tuple[Config, list[str]]:
    """The settings of a run without `auto`: what is stored of each sample, and which auxiliary sets are made.

    Without penultimate features there is no bank, see `NO_BANK`.

    Args:
        config: the settings.
        model: returns logits, where it computes.
        sample: one of `in_dist.fit` before preprocessing; None where none can be read.
        inputs: a few of them as the model takes them; None likewise.
        base: those of them that are at hand, as a source.
        samples: how many there are; None where that is not known.
        has_classes: whether their labels tell two classes apart.

    Returns:
        The settings, and what was left out and why.
    """
    bank = config.data.in_dist.bank
    features = resolved_features(config.features, model, inputs, needed=bank is not None)
    data, left_out = with_auxiliary(
        config.data, sample, base=base, samples=samples, seed=config.extract.seed, has_classes=has_classes
    )
    if bank is not None and features.penultimate is False:
        left_out.append(NO_BANK)
        data = data.model_copy(update={"in_dist": data.in_dist.model_copy(update={"bank": None})})
    return config.model_copy(update={"features": features, "data": data}), left_out


def resolved_features(
    features: FeaturesConfig, model: nn.Module, inputs: Inputs | None, *, needed: bool = False
) -> FeaturesConfig:
    """The settings of features without `auto`.

    Args:
        features: the settings.
        model: returns logits, where it computes.
        inputs: a few samples as it takes them.
        needed: penultimate features are stored where no sample says whether a linear layer makes the logits.
    """
    if features.penultimate != AUTO:
        return features
    found = needed if inputs is None else _layer_of_logits(model, inputs)
    return features.model_copy(update={"penultimate": found})


def _settled(config: Config, model: nn.Module, fit: SampleDataset) -> tuple[Config, list[str]]:
    """Configuration as of `resolved`, with the samples to fit on as a configuration opens them."""
    if config.features.penultimate != AUTO and config.data.auxiliary == []:
        return config, []
    few = {place: each for place in _spread(len(fit), LOOKED_AT) if isinstance(each := fit[place], Sample)}
    labels = fit.labels
    return resolved(
        config,
        model,
        sample=fit.source.sample(min(few)) if few else None,
        inputs=collate([*few.values()]).inputs if few else None,
        base=fit.source,
        samples=len(fit),
        has_classes=labels is not None and len(set(labels[labels >= 0].tolist())) > 1,
    )


def _spread(count: int, most: int) -> list[int]:
    """Places of a few among `count` samples, from the first to the last."""
    return [int(place) for place in np.linspace(0, count - 1, min(count, most))]


def _layer_of_logits(model: nn.Module, inputs: Inputs) -> bool | str:
    """The linear layer that makes the logits, as a few samples show: True for the last one, False for none."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    # The first one comes again at the end: some networks take no single one, and some sort samples and put them back
    # behind the layer, which samples in order would not show.
    places = [*_spread(sample_count(inputs), SHOWN_TO_NETWORK), 0]
    width = None
    try:
        few = each_input(inputs, lambda each: each[places].to(first_parameter(model).device))
        for name, module in reversed(linear.items()):
            if width is not None and module.out_features not in (width, 1):
                continue
            with torch.no_grad():
                logits, features = LastLayer(name, module).catch(lambda: model(few))
            if features is not None:
                return True if name == last_layer(model) else name
            width = logits.shape[1]
    except (*FAILURES, SystemExit):  # where the model itself fails, it is refused by what computes
        return False
    return False


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
        num_classes=config.model.classes,
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
        skipped: samples that cannot be used, as they come.
    """

    model: nn.Module
    dataset: SampleDataset
    samples: Samples
    model_notices: Sequence[str]
    skipped: list[BadSample] = field(default_factory=list)

    @property
    def notices(self) -> list[str]:
        """Notices on how the model was built, and on samples skipped so far."""
        empty = [bad.empty for bad in self.skipped if bad.empty]
        gaps = [f"{empty_rows(empty, len(self.dataset))}, and were skipped; {FILL}"] if empty else []
        others = [f"{bad.id} was skipped" for bad in self.skipped if not bad.empty]
        return [*self.model_notices, *gaps, *others]


def open_split(config: Config, split: str, *, loss: str, command: str) -> OpenSplit:
    """Opens the samples of a split and the model of a configuration.

    Args:
        config: the settings.
        split: which samples.
        loss: where it looks at labels, all samples need one.
        command: begins the message if there is no such split.

    Raises:
        ConfigError: no such split or device, or OOD samples where the loss looks at labels.
        ModelError: a model that cannot be built.
        DataError: samples that cannot be used, or have no label where the loss looks at it.
    """
    planned = planned_splits(config.data)
    usable = [name for name, (info, _) in planned.items() if info.kind != "ood" or not with_labels([loss])]
    if split not in usable:
        what = f"split '{split}' has no labels" if split in planned else f"no split '{split}'"
        raise ConfigError(f"{command}: {what}; {closest(split, usable)}")
    device = resolve_device(config.extract.device)
    dataset = open_datasets(config, only=[split])[split]
    check_labelled(with_labels([loss]), dataset.labels, dataset.ids, where=split)
    built = build_model(config.model, seed=config.extract.seed)
    skipped: list[BadSample] = []
    options = config.extract
    samples = split_samples(
        dataset,
        name=split,
        batch_size=options.batch_size,
        workers=options.workers,
        on_error=options.on_error,
        skipped=skipped,
    )
    return OpenSplit(
        model=built.model.to(device), dataset=dataset, samples=samples, model_notices=built.notices, skipped=skipped
    )


def complete_run(
    plan: RunPlan,
    *,
    notices: Sequence[str] = (),
    check_labels: bool = False,
    progress: Progress | None,
) -> ExtractSummary:
    """Makes the shards of a run that are not there yet, and finishes it.

    Args:
        plan: of the run.
        notices: of shards that other processes made.
        check_labels: as `extract`.
        progress: called after every batch.

    Returns:
        A summary of the run.

    Raises:
        GradscoreError: as `extract`.
    """
    config, extractor = plan.config, plan.extractor
    weight_files = weight_files_sha256(config.model)
    opened = RunWriter.opened(config.run, config=config, inputs=plan.inputs, head=extractor.head, begin=plan.warm_up)
    with naming_lost_workers(), opened as writer:
        manifest, fit = writer.manifest, plan.datasets[FIT]
        manifest.class_names = None if fit.class_names is None else list(fit.class_names)
        manifest.input_columns = None if fit.input_columns is None else list(fit.input_columns)
        manifest.weight_files_sha256 = weight_files
        manifest.write(writer.path)
        counter = Counter(sum(map(len, plan.datasets.values())), progress)
        splits = []
        for split in plan.datasets:
            splits.append(_completed(plan, writer, counter, split))
            if check_labels and split == FIT:
                refuse_doubtful_labels(RunFolder(writer.path), said=f"Nothing was computed after {FIT}")
        if not writer.was_complete:
            known = list(dict.fromkeys([*plan.notices, *notices]))
            writer.finish(feature_count=len(extractor.feature_names), notices=known)
    return summary_of(writer, extractor, splits)


def _completed(plan: RunPlan, writer: RunWriter, counter: Counter, split: str) -> SplitSummary:
    """Makes the shards of a split that are missing."""
    shards = range(plan.count_shards(split))
    notes = writer.existing(split, shards)
    missing = [number for number in shards if number not in notes]
    counter.skip(split, len(plan.datasets[split]) - plan.samples_of(split, missing))
    share = None
    if missing:
        plan.extractor.take_gradient_seconds()
        write_shards(plan, split, missing, on_batch=counter.add)
        share = plan.extractor.take_gradient_seconds() / counter.paces[split].seconds
        notes |= writer.existing(split, missing)
    return finished_split(writer, split, [notes[number] for number in shards], counter.paces[split], share)


def finished_split(
    writer: RunWriter, split: str, notes: Sequence[ShardNote], pace: Pace, gradients: float | None
) -> SplitSummary:
    """Enters a split into the manifest.

    Args:
        writer: of the run.
        split: its name.
        notes: of its shards in order.
        pace: what was computed of it.
        gradients: share of that time that gradients took, if it is known.
    """
    if not any(note.rows for note in notes):
        skipped = [bad for note in notes for bad in note.skipped]
        first = skipped[0]
        raise DataError(f"split {split}: all {len(skipped)} samples were skipped; {first.sample_id}: {first.error}")
    share = None if gradients is None else min(1.0, round(gradients, 3))
    entry = writer.finish_split(split, notes, samples=pace.samples, seconds=pace.seconds, gradients=share)
    return SplitSummary.of(split, entry, pace)


def summary_of(writer: RunWriter, extractor: Extractor, splits: list[SplitSummary]) -> ExtractSummary:
    """Summary of an extraction, when its run is written."""
    folder = RunFolder(writer.path)
    stored = [NO_BANK if each == NO_BANK else each for each in writer.manifest.notices]  # which keeps no levels
    return ExtractSummary(
        run=writer.path,
        device=extractor.device.type,
        splits=splits,
        feature_count=writer.manifest.feature_count,
        notices=[*label_warnings(folder), *_zero_losses(folder), *missing_labels(folder), *notes(stored)],
        was_complete=writer.was_complete,
        changes=list(writer.changes),
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
    rows = RowExtractor(plan.extractor)
    write_rows(plan.batches(split, numbers), rows, plan.config, shards=numbers, on_batch=on_batch)


def _check_kept_rows(plan: RunPlan, folder: RunFolder, split: str, *, all_of_them: bool) -> None:
    """Makes sure that stored rows are of the samples that are there, by content, and of this model.

    Manifests tell a change by what can be looked at without reading samples: names and sizes of image files, the code
    of a data source, parameters. Here a few samples are read again and sent through the network, or every one is read.

    Raises:
        StoreError: a sample, a label or a logit is another one.
        DataError: a sample that cannot be used.
    """
    advice = "the rows of this run are not of what is there now; remove the run folder, or give another one (--out)"
    dataset, names = plan.datasets[split], logit_columns(folder.columns(split))
    stored = folder.read(split, ["sample_id", "content_hash", "label", *names])
    logits = stored[names].to_numpy(dtype=np.float64)
    kept = list(zip(stored["sample_id"], stored["content_hash"], stored["label"], strict=True))
    row_of = {name: row for row, (name, *_) in enumerate(kept)}
    few = (dataset[place] for place in _spread(len(dataset), PROBED))
    done = 0
    for batch in plan.batches(split) if all_of_them else [collate([*few])]:
        if bad := next((each for each in batch.bad if each.id in row_of), None):
            raise StoreError(f"{folder.path}: {split}, {bad.id}: cannot be used any more ({bad.error}); {advice}")
        found = list(zip(batch.ids, batch.content_hashes, batch.labels.tolist(), strict=True))
        rows = range(done, done + len(found)) if all_of_them else [row_of.get(name, len(kept)) for name in batch.ids]
        for row, now in zip(rows, found, strict=True):
            before = kept[row] if row < len(kept) else ("", "", 0)
            if before != now:
                what = "sample" if before[0] != now[0] else "content" if before[1] != now[1] else "label"
                raise StoreError(
                    f"{folder.path}: {split}, {now[0]}: another {what} than when it was computed; {advice}"
                )
        if done == 0 and found:
            again = plan.extractor.forward_values(rows_of(batch.inputs, slice(PROBED)))[:, : logits.shape[1]]
            finite = logits[np.isfinite(logits)]
            limit = MOVED * float(np.ptp(finite)) if len(finite) else 0.0
            if not np.isclose(again, logits[rows[:PROBED]], rtol=0.0, atol=limit, equal_nan=True).all():
                raise StoreError(
                    f"{folder.path}: {split}: the network says something else of these samples than when they were "
                    "computed, though its weights have the same hash (does its code read other files, or the "
                    f"environment?); {advice}"
                )
        done += len(found)
    if all_of_them and done != len(kept):
        raise StoreError(f"{folder.path}: {split}: {len(kept)} samples then, {done} now; {advice}")
