"""What a configuration asks for, opened: its model and the samples of its splits; and whether a run is still of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Self

from torch import nn

from ..config import Config, check_features
from ..data import (
    BANK,
    FIT,
    Batch,
    SampleDataset,
    Samples,
    base_split,
    check_usable,
    collate,
    kind_of,
    load_batches,
    open_made,
    open_splits,
    planned_splits,
    split_samples,
)
from ..errors import ConfigError, GradscoreError
from ..extractor import WARM_UP, Extractor
from ..losses import with_labels
from ..models import LIVE, build_model, class_names, weight_files_sha256
from ..store import CodeInputs, RunFolder, RunInputs, describe_inputs, find_changes
from ..system import closest, is_address, resolve_device, some
from .defaults import NO_BANK, resolved_for
from .loop import check_labelled

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
    inputs: RunInputs
    model_notices: Sequence[str]

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
        built = build_model(config.model, seed=config.extract.seed, look_for_random=True)
        model = built.model.to(device)
        opened = open_datasets(config)
        given, config = config.data, resolved_for(config, model, opened[FIT])
        made = config.data.ood[len(given.ood) :]
        opened |= open_made(made, opened[FIT], preprocessing=config.preprocessing, seed=config.extract.seed)
        datasets = {name: opened[name] for name in planned_splits(config.data)}
        extractor = Extractor(model, features=config.features, num_classes=config.model.num_classes)
        if losses := with_labels(config.features.losses):
            for name in (each for each in datasets if each != BANK):
                check_labelled(losses, datasets[name].labels, datasets[name].ids, where=name)
        inputs = extractor.describe(config, {name: dataset.fingerprint() for name, dataset in datasets.items()})
        left_out = [NO_BANK] if BANK in opened and BANK not in datasets else []
        return cls(config, datasets, extractor, inputs, [*built.notices, *left_out])

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
    model_notices: Sequence[str]
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
    built = build_model(config.model, seed=config.extract.seed, look_for_random=True)
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
    return OpenSplit(
        model=built.model.to(device), dataset=dataset, samples=samples, model_notices=built.notices, skipped=skipped
    )


@dataclass(frozen=True, kw_only=True)
class Outdated:
    """What of a run is out of date; nothing where all of it is empty but `unseen`.

    Attributes:
        changed: a sentence for each thing that differs from what the run was made from.
        gone: what the run was made from and is no longer there.
        unseen: what nobody looked at, and why.
    """

    changed: list[str]
    gone: list[str]
    unseen: list[str]


def outdated(run: RunFolder) -> Outdated:
    """Compares a run with the files that its configuration names, as they are now.

    What `extract` goes by decides: hashes of code and of what processes samples, and of each split its names, labels
    and content, as far as its source tells a change of that (of image files in folders: their sizes). In place of the
    hash of a built model stands that of its files of weights, so that no code of others runs. Data that code makes,
    files that code reads, and files at addresses, are not looked at.

    Raises:
        StoreError: the stored configuration is damaged.
    """
    before, config = run.manifest.inputs, run.config
    planned = planned_splits(config.data)
    found = Outdated(changed=[], gone=[], unseen=[])
    if not is_address(config.run) and config.run.resolve() != run.path.resolve():
        found.unseen.append(
            f"copies of its model and data: this run was made in {config.run}, and the files that its configuration "
            "names were; to compare copies, give a configuration that names them"
        )
    _compare_weights(run, found)
    sources = [config.model.source, *config.features.augmentations]
    if code := [each for each in sources if each.startswith("python:")]:
        found.unseen.append(f"what the code of {some(code)} reads itself; a check of the configuration runs it")
    fingerprints = {name: before.data[name].fingerprint if name in before.data else "" for name in planned}
    openable = _openable(config)
    if closed := [name for name in planned if name not in openable]:
        found.unseen.append(
            f"the samples of {some(closed)}, which code, a program or an address gives, or whose classes are named by "
            "such samples"
        )
    try:
        datasets = open_datasets(config, only=openable) if openable else {}
        fingerprints |= {name: dataset.fingerprint() for name, dataset in datasets.items()}
    except (GradscoreError, OSError) as error:
        found.gone.append(f"its samples cannot be opened ({error})")
    now = describe_inputs(
        config,
        weights_sha256=before.model.weights_sha256,
        dtype=before.model.dtype,
        device=before.extract.device,
        groups=before.features.groups,
        fingerprints=fingerprints,
        penultimate=before.features.penultimate,
    )
    _keep_hashes_of_lost_files(before, now, found.gone)
    changes = find_changes(run.manifest, config, now)
    found.changed.extend(changes.common)
    found.changed.extend(f"{name}: {reason}" for name, reason in changes.stale.items())
    found.changed.extend(f"{name} is new" for name in changes.added)
    found.changed.extend(f"{name} is gone" for name in changes.removed)
    return found


def _compare_weights(run: RunFolder, found: Outdated) -> None:
    model = run.config.model
    file = model.checkpoint or model.source
    if model.source.startswith(f"{LIVE}:"):
        found.unseen.append("the model, which a program gave")
        return
    try:
        now = weight_files_sha256(model)
    except (GradscoreError, OSError) as error:
        found.gone.append(f"the file of the weights, {file} ({getattr(error, 'strerror', None) or error})")
        return
    if now is None:
        found.unseen.append(f"the weights, of which no file is known here ({file})")
    elif now != run.manifest.weight_files_sha256:
        found.changed.append(f"the file of the weights, {file}, is another one")


def _keep_hashes_of_lost_files(before: RunInputs, now: RunInputs, gone: list[str]) -> None:
    """Names what had a hash of its code and has none now, and puts that of before in its place."""
    code: list[tuple[str, CodeInputs, CodeInputs]] = [("model", before.model, now.model)]
    code += [(f"data.{name}", before.data[name], each) for name, each in now.data.items() if name in before.data]
    augmentations = zip(before.features.augmentations, now.features.augmentations, strict=False)
    code += [("features.augmentations", was, each) for was, each in augmentations]
    for place, was, each in code:
        if was.code_sha256 is not None and each.code_sha256 is None:
            each.code_sha256 = was.code_sha256
            gone.append(f"the files of {place}")
    processor = before.preprocessing["processor_sha256"]
    if processor is not None and now.preprocessing["processor_sha256"] is None:
        now.preprocessing["processor_sha256"] = processor
        gone.append("the files of preprocessing")


def _openable(config: Config) -> list[str]:
    """The splits whose samples can be opened without running code and without fetching anything.

    Names of classes come from all splits with labels: where one of these cannot be opened, none of them is, nor what
    is made of them. Names of columns come from a table to fit on: where that is at an address, nothing is opened.
    """
    planned = planned_splits(config.data)
    bases = {name: base_split(info, spec) for name, (info, spec) in planned.items()}
    own = {name for name, (_, spec) in planned.items() if bases[name] is None and _is_at_hand(spec.source)}
    labelled = {name for name, (info, _) in planned.items() if info.kind != "ood" and bases[name] is None}
    if FIT not in own and is_address(planned[FIT][1].source.partition(":")[2]):
        return []
    if config.data.class_names is None and not labelled <= own:
        own -= labelled
    return [name for name in planned if name in own or bases[name] in own]


def _is_at_hand(source: str) -> bool:
    kind = kind_of(source)
    return kind is not None and not kind.is_code and not is_address(source.partition(":")[2])
