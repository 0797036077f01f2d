"""The samples of splits: opened, selected, preprocessed one by one, and loaded in batches."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from ..models import CodeTrust
from ..printable import storable
from ..system import sha256
from .class_names import ClassNames, decide
from .content import content_hash, signature_of
from .preprocessing import Preprocessing
from .samples import BadSample, Batch, Sample, Samples, collate
from .settings import DataConfig, DatasetConfig, PreprocessingConfig, SelectConfig
from .sources import (
    UNLABELLED,
    ImageSource,
    Raw,
    UnreadableImageError,
    class_names_of,
    input_columns_of,
    kind_of,
    open_source,
    refuse_text,
)
from .splits import FIT, SplitInfo, base_split, planned_splits


class HashShares:
    """Numbers in [0, 1) for the samples of sources, by content alone (by id where there is no content to be had).

    Each sample is read once, however many splits ask for it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ImageSource, dict[int, float]]] = {}

    def of(self, source: ImageSource, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Those of the samples at some places."""
        # The source is kept, so that no other has its id.
        _, known = self._known.setdefault(id(source), (source, {}))
        for place in places.tolist():
            if place not in known:
                known[place] = _share(source, place)
        return np.array([known[place] for place in places.tolist()])


def select(
    source: ImageSource,
    spec: SelectConfig,
    *,
    labels: NDArray[np.int64] | None = None,
    classes: Sequence[int] | None = None,
    shares: HashShares | None = None,
) -> NDArray[np.int64]:
    """Positions of the selected samples: by class, then content hash, then start and stop, then count.

    A sample that cannot be decoded goes by the hash of its id, so that it is in one part of several, which names it.

    Args:
        source: the samples.
        spec: the selection.
        labels: (N,) of the source; None without.
        classes: the labels that `spec.classes` asks for; None for all.
        shares: what is known of the contents of sources, which may be those of other splits too.

    Returns:
        Positions in the order of the source.

    Raises:
        DataError: a selection by class without labels.
    """
    places = np.arange(len(source.ids), dtype=np.int64)
    if classes is not None:
        if labels is None:
            raise DataError("select.classes needs labels, and the source has none")
        places = places[np.isin(labels, classes)]
    if spec.hash is not None:
        low, high = spec.hash
        found = (shares or HashShares()).of(source, places)
        places = places[(found >= low) & (found < high)]
    places = places[spec.start : spec.stop]
    if spec.count is not None and spec.count < len(places):
        places = np.sort(np.random.default_rng(spec.seed).choice(places, spec.count, replace=False))
    return places


def _share(source: ImageSource, place: int) -> float:
    try:
        digest = content_hash(source.image(place))
    except UnreadableImageError:
        digest = sha256(source.ids[place].encode())[:16]
    return int(digest, 16) / 2**64


@dataclass(frozen=True)
class Selected:
    """Some samples of a source, as a source."""

    base: ImageSource
    places: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    class_names: Sequence[str] | None = None

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        ids = self.base.ids  # once: a source may make the list anew every time
        return [ids[place] for place in self.places]

    @property
    def input_columns(self) -> Sequence[str] | None:
        """See `input_columns_of`."""
        return input_columns_of(self.base)

    def image(self, index: int) -> Raw:
        """See `ImageSource`."""
        return self.base.image(int(self.places[index]))

    def content(self) -> str:
        """See `ImageSource`."""
        return self.base.content()


class SampleDataset(Dataset[Sample | BadSample]):
    """The samples of a split.

    Args:
        images: the selected raw images, whose labels are classes of the model.
        preprocess: makes model inputs of them.
        labelled: False for OOD sets, whose labels are all -1.
    """

    def __init__(self, images: ImageSource, preprocess: Preprocessing, *, labelled: bool) -> None:
        self.images = images
        self.ids: list[str] = list(images.ids)
        self._preprocess = preprocess
        self._labels = images.labels if labelled else None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample | BadSample:
        """One sample, or why it cannot be used.

        Raises:
            DataError: the whole split cannot be used.
        """
        try:
            raw = self.images.image(index)
        except UnreadableImageError as error:
            return BadSample(self.ids[index], storable(str(error)))
        label = UNLABELLED if self._labels is None else int(self._labels[index])
        model_input = self._preprocess.model_input(raw)
        return Sample(self.ids[index], model_input, label, content_hash(raw), signature_of(raw))

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """(N,) classes of the model, -1 for none; None where no sample has one."""
        return self._labels

    @property
    def class_names(self) -> Sequence[str] | None:
        """Of the model, in the order of its outputs; None where they are not known."""
        return class_names_of(self.images)

    @property
    def input_columns(self) -> Sequence[str] | None:
        """Names of the numbers of a sample, in their order; None where they have none."""
        return input_columns_of(self.images)

    def fingerprint(self) -> str:
        """SHA-256 of ids, labels and what is known of the content, as hexadecimal digits."""
        labels = [] if self._labels is None else self._labels.tolist()
        parts = ["\0".join(self.ids), ",".join(map(str, labels)), self.images.content()]
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def open_split(
    spec: DatasetConfig,
    *,
    preprocessing: PreprocessingConfig,
    num_classes: int,
    labelled: bool,
    made_of: ImageSource | None,
    seed: int,
) -> SampleDataset:
    """Opens the data of a split by itself.

    Args:
        spec: source, selection and label map.
        preprocessing: from raw samples to model inputs.
        num_classes: K, to check the labels.
        labelled: whether labels count; False for OOD sets.
        made_of: the raw in-distribution samples that a set made of others is made of.
        seed: of random choices of the source.

    Returns:
        The samples.

    Raises:
        DataError: a source that cannot be used, nothing selected, or a label that is no class of the model.
    """
    images = open_images(spec, num_classes=num_classes if labelled else None, made_of=made_of, seed=seed)
    return SampleDataset(images, Preprocessing(preprocessing), labelled=labelled)


def open_images(spec: DatasetConfig, *, num_classes: int | None, made_of: ImageSource | None, seed: int) -> Selected:
    """Opens the raw samples of a split by itself: names of classes are those of its own source.

    Args:
        spec: source, selection and label map.
        num_classes: K, of the model whose classes the labels become; None for OOD sets, which keep those of the source.
        made_of: the raw in-distribution samples that a set made of others is made of.
        seed: of random choices of the source.

    Returns:
        The selected samples.

    Raises:
        DataError: a source that cannot be used, nothing selected, or a label that is no class of the model.
    """
    source = open_source(spec.source, spec.arguments, base=made_of, seed=seed)
    names = None if num_classes is None else decide({spec.source: (spec, source)}, num_classes=num_classes)
    return _selected(spec, source, names, num_classes, HashShares())


def open_splits(
    data: DataConfig,
    *,
    preprocessing: PreprocessingConfig,
    num_classes: int,
    seed: int,
    only: Collection[str] | None = None,
    model_names: Sequence[str] | None = None,
    trust_code: bool | CodeTrust = False,
) -> dict[str, SampleDataset]:
    """Opens the data of all splits, by name and in order.

    Sets made of in-distribution images get the raw ones of the split that `base_split` names. Labels with names mean
    the same class in every split, and columns of numbers with names the same input of the model, that of the samples
    to fit on, unless the arguments of a split name its columns.

    Args:
        data: the section of the configuration.
        preprocessing: from raw pixels to model inputs.
        num_classes: K, to check the labels.
        seed: of random choices of the source.
        only: names of the splits that are wanted; all of them if None.
        model_names: what the model calls its classes, if it does.
        trust_code: allow `python:` sources, whose code is run; a `CodeTrust` says which.

    Raises:
        DataError: data that cannot be used.
        ModelError: code that is not trusted, not what it should be, or fails when it is imported.
    """
    planned = planned_splits(data)
    wanted = set(planned if only is None else only)
    wanted |= {base for name in wanted if (base := base_split(*planned[name])) is not None}

    alike: dict[tuple[str, str], ImageSource] = {}

    def opened(name: str, base: ImageSource | None = None) -> ImageSource:
        spec = planned[name][1]
        if base is None and not _is_code(spec.source):
            key = (spec.source, repr(sorted(spec.arguments.items())))
            if key not in alike:
                columns = None if name == FIT else known_columns(spec)
                alike[key] = open_source(spec.source, spec.arguments, base=None, seed=seed, columns=columns)
            return alike[key]
        return open_source(spec.source, spec.arguments, base=base, seed=seed, trust_code=trust_code)

    def known_columns(spec: DatasetConfig) -> Sequence[str] | None:
        is_told = spec.arguments.get("inputs") is not None or not _is_table(spec.source)
        return None if is_told or not _is_table(data.in_dist.fit.source) else input_columns_of(opened(FIT))

    are_named = data.class_names is None and any(planned[name][0].kind != "ood" for name in wanted)
    needed = {*wanted, *_labelled(planned)} if are_named else wanted
    own = {name: opened(name) for name in planned if name in needed and base_split(*planned[name]) is None}
    labelled = {name: (planned[name][1], own[name]) for name in _labelled(planned) if name in own}
    # Sets without labels are opened without a look at those that name the classes.
    names = decide(labelled, num_classes=num_classes, given=data.class_names, model_names=model_names)
    preprocess = Preprocessing(preprocessing)
    found: dict[str, SampleDataset] = {}
    shares = HashShares()
    for name, (info, spec) in planned.items():
        if name in wanted:
            base, is_ood = base_split(info, spec), info.kind == "ood"
            source = own[name] if base is None else opened(name, found[base].images)
            if not preprocess.takes_text:
                refuse_text(source)
            images = _selected(spec, source, None if is_ood else names, num_classes, shares)
            found[name] = SampleDataset(images, preprocess, labelled=not is_ood)
    return {name: each for name, each in found.items() if only is None or name in only}


def _is_code(source: str) -> bool:
    """Whether a source is code of the user's, which may give other samples every time."""
    kind = kind_of(source)
    return kind is not None and kind.is_code


def _is_table(source: str) -> bool:
    kind = kind_of(source)
    return kind is not None and kind.is_table


def _labelled(planned: Mapping[str, tuple[SplitInfo, DatasetConfig]]) -> list[str]:
    """The splits whose labels are classes of the model."""
    return [name for name, (info, _) in planned.items() if info.kind != "ood"]


def _selected(
    spec: DatasetConfig, source: ImageSource, names: ClassNames | None, num_classes: int | None, shares: HashShares
) -> Selected:
    """The samples that a split asks for, with classes of the model as labels; OOD sets, without names, keep theirs."""
    own = class_names_of(source)
    local = names or ClassNames(None if own is None else tuple(own))
    labels = local.aligned(source, spec.source)
    classes = None if spec.select.classes is None else local.chosen(spec.select.classes, source, spec.source)
    places = select(source, spec.select, labels=labels, classes=classes, shares=shares)
    if not len(places):
        chosen = spec.select.model_dump(exclude_defaults=True)
        of_all = f"left of {len(source.ids)} with select {chosen}" if chosen else "in it"
        raise DataError(f"{spec.source} has no sample {of_all}")
    images = Selected(source, places, None if labels is None else labels[places], own)
    if names is None or num_classes is None:
        return images
    mapped = images.labels
    if mapped is not None:
        mapped = names.mapped(mapped, spec, is_named=own is not None, ids=images.ids, num_classes=num_classes)
    return Selected(source, places, mapped, names.of_model)


_LOST = re.compile(r"DataLoader worker \(pid")
"""Start of what PyTorch says when a worker ends that should not."""

_RAISED_IN_WORKER = "Caught "
"""Start of what PyTorch makes of an error of a sample that a worker loads."""


def count_shards(samples: int, *, shard_size: int) -> int:
    """The number of shards of a split."""
    return -(-samples // shard_size)


def load_batches(
    dataset: SampleDataset,
    *,
    split: str,
    batch_size: int,
    shard_size: int | None = None,
    shards: Iterable[int] = (0,),
    workers: int = 0,
    pin: bool = False,
    on_error: str = "fail",
    advice: str = "",
) -> Iterator[Batch]:
    """Loads the samples of some shards of a split in order.

    Args:
        dataset: the samples of the split.
        split: its name.
        batch_size: samples in a batch; the last one of a shard may have fewer.
        shard_size: samples in a shard, those that cannot be used among them; None for all in one.
        shards: their numbers.
        workers: processes that load ahead; 0 loads in this one.
        pin: load into memory from which an accelerator copies while it computes.
        on_error: "fail" where a sample cannot be used, or "skip", which leaves it in `Batch.bad`.
        advice: what the message of such a sample ends with.

    Raises:
        DataError: a sample that cannot be used, or a worker was killed.
    """
    size = shard_size or len(dataset)
    ends = {shard: min((shard + 1) * size, len(dataset)) for shard in shards}
    starts = [(start, end) for shard, end in ends.items() for start in range(shard * size, end, batch_size)]
    loader = DataLoader(
        dataset,
        batch_sampler=[list(range(start, min(start + batch_size, end))) for start, end in starts],
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        worker_init_fn=_leave_interrupts_to_the_parent,
        generator=torch.Generator(),
    )
    try:
        with naming_lost_workers():
            for batch in loader:
                check_usable(batch, split=split, on_error=on_error, advice=advice)
                yield replace(batch, split=split)
    except (ConnectionError, EOFError) as error:
        if workers == 0 or str(error).startswith(_RAISED_IN_WORKER):
            raise
        raise _lost(f"{type(error).__name__} while it handed over a batch") from None


def check_usable(batch: Batch, *, split: str, on_error: str, advice: str = "") -> None:
    """Makes sure that all samples of a batch can be used, unless others are to be skipped.

    Args:
        batch: the samples.
        split: where they are from, for the message.
        on_error: "fail", or "skip" for others.
        advice: what the message ends with.

    Raises:
        DataError: one cannot.
    """
    if batch.bad and on_error == "fail":
        first = batch.bad[0]
        raise DataError(
            f"split {split}, sample {first.sample_id}: {first.error}; repair or remove it, "
            f"or set extract.on_error=skip to go on without such samples{advice}"
        )


def split_samples(
    dataset: SampleDataset, *, name: str, batch_size: int, workers: int, on_error: str, skipped: list[str]
) -> Samples:
    """The samples of a split that can be used.

    Args:
        dataset: all samples.
        name: of the split.
        batch_size: samples in a batch.
        workers: processes that load ahead.
        on_error: see `load_batches`.
        skipped: gets the names of those that cannot be used, as they come.
    """

    def read() -> Iterator[Batch]:
        found = False
        for batch in load_batches(dataset, split=name, batch_size=batch_size, workers=workers, on_error=on_error):
            skipped.extend(bad.sample_id for bad in batch.bad)
            if batch.ids:
                found = True
                yield batch
        if not found:
            raise DataError(f"split {name}: no sample of it can be used")

    return Samples(name, len(dataset), read)


@contextmanager
def naming_lost_workers() -> Iterator[None]:
    """Turns what PyTorch raises when a loading worker was killed into an error that says what to do.

    PyTorch raises it in whatever the main thread is doing then: all that is done while workers run belongs inside.

    Raises:
        DataError: a worker was killed.
    """
    try:
        yield
    except RuntimeError as error:
        if not _LOST.match(str(error)):
            raise
        raise _lost(str(error).splitlines()[0]) from None


def _lost(reason: str) -> DataError:
    return DataError(
        f"data: a worker that loads samples was lost ({reason}); out of memory? Run the same command again, with fewer "
        "workers (--workers) if it happens again"
    )


def _leave_interrupts_to_the_parent(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
