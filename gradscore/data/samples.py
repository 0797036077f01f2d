"""Samples: one, a batch of them, the stream in which all samples come, and those of a split, loaded in batches."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import DTypeLike
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from ..errors import BadSampleError, DataError
from ..notices import storable
from ..system import Inputs, as_rows, described, each_input, rows_of
from .preprocessing import Preprocessing
from .sources.raw_samples import (
    UNLABELLED,
    Raw,
    SampleSource,
    UnreadableSampleError,
    class_names_of,
    input_columns_of,
    is_image,
)


@dataclass(frozen=True)
class Sample:
    """An image or another sample, ready for the model.

    Attributes:
        id: stable name: a path relative to the data's root, or a number.
        inputs: (C, H, W) float32; of other samples numbers of any shape, or several tensors by name.
        label: the class, -1 for none.
        content_hash: 16 hexadecimal digits of the SHA-256 of shape and raw pixels, before preprocessing.
        signature: of an image, by which near-duplicates are found; see `signature_of`.
    """

    id: str
    inputs: Tensor | Mapping[str, Tensor]
    label: int
    content_hash: str
    signature: bytes | None = None


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used, and why.

    Attributes:
        id: its name.
        error: why.
        place: its place in its batch.
        empty: the columns of a table in which its value is missing, where that is why.
    """

    id: str
    error: str
    place: int = 0
    empty: Sequence[str] = ()


@dataclass(frozen=True)
class Batch:
    """Samples that come together, in order; those that cannot be used are kept apart in `bad`.

    Attributes:
        ids: names.
        inputs: (N, C, H, W) float32; of other samples (N, ...), or several tensors by name, as the model takes them.
        labels: (N,) int64, -1 for none.
        content_hashes: see `Sample`.
        bad: samples that cannot be used, in order.
        signatures: see `Sample`; empty where there are none.
        raw: pixels (N, C, H, W) uint8 before preprocessing, where a program gave such.
        split: what the samples belong to.
    """

    ids: list[str]
    inputs: Inputs
    labels: Tensor
    content_hashes: list[str]
    bad: list[BadSample] = field(default_factory=list)
    signatures: list[bytes | None] = field(default_factory=list)
    raw: Tensor | None = None
    split: str = ""

    @property
    def places(self) -> int:
        """Number of samples, those that cannot be used among them."""
        return len(self.ids) + len(self.bad)

    @property
    def hides_images(self) -> bool:
        """Whether samples without signatures are of the shape of images, (C, H, W), so that they may be some."""
        parts = self.inputs.values() if isinstance(self.inputs, Mapping) else [self.inputs]
        is_shown = bool(self.signatures) and None not in self.signatures
        return not is_shown and any(each.dim() == 4 and min(each.shape[2:]) > 1 for each in parts)

    @property
    def tensor(self) -> Tensor:
        """The inputs, where a sample is one tensor.

        Raises:
            DataError: samples are several tensors by name.
        """
        if isinstance(self.inputs, Tensor):
            return self.inputs
        raise DataError(
            f"samples are keyword inputs ({', '.join(self.inputs)}), and this takes one tensor for each sample; an "
            "Inspector of gradscore.inspect watches any model in a loop of yours (gradscore docs inspect)"
        )

    def pin_memory(self) -> Batch:
        """The batch with its inputs where an accelerator can copy them from by itself."""
        return replace(self, inputs=each_input(self.inputs, Tensor.pin_memory))

    def rows(self, rows: Sequence[int]) -> Batch:
        """The samples in some rows of `inputs`, none of those that cannot be used."""
        return self._only(torch.tensor(rows, dtype=torch.int64, device="cpu"), [])

    def part(self, start: int, stop: int) -> Batch:
        """The samples in places `start` to `stop`, those that cannot be used among them."""
        if start <= 0 and stop >= self.places:
            return self
        before = sum(bad.place < start for bad in self.bad)
        bad = [replace(bad, place=bad.place - start) for bad in self.bad if start <= bad.place < stop]
        rows = slice(start - before, min(stop, self.places) - before - len(bad))
        return self._only(rows, bad)

    def _only(self, rows: slice | Tensor, bad: list[BadSample]) -> Batch:
        places = range(len(self.ids))[rows] if isinstance(rows, slice) else rows.tolist()
        return replace(
            self,
            ids=[self.ids[place] for place in places],
            inputs=rows_of(self.inputs, rows),
            labels=self.labels[rows],
            content_hashes=[self.content_hashes[place] for place in places],
            bad=bad,
            signatures=[self.signatures[place] for place in places] if self.signatures else [],
            raw=None if self.raw is None else self.raw[rows],
        )

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Several batches of samples of one split and shape as one; raw pixels stay behind."""
        if len(batches) == 1:
            return batches[0]
        starts = [sum(batch.places for batch in batches[:number]) for number in range(len(batches))]
        filled = [batch for batch in batches if batch.ids] or batches[:1]
        first = filled[0].inputs
        return cls(
            [name for batch in batches for name in batch.ids],
            torch.cat([batch.tensor for batch in filled])
            if isinstance(first, Tensor)
            else {name: torch.cat([each.inputs[name] for each in filled if isinstance(each.inputs, Mapping)])
                  for name in first},
            torch.cat([batch.labels for batch in filled]),
            [digest for batch in batches for digest in batch.content_hashes],
            [replace(bad, place=start + bad.place) for start, batch in zip(starts, batches, strict=True)
             for bad in batch.bad],
            [signature for batch in batches for signature in batch.signatures],
            split=filled[0].split,
        )  # fmt: skip


@dataclass
class Samples:
    """A set of samples: the one form in which samples come, wherever they are from.

    Iterating gives batches of any sizes, from the first sample to the last, none of which is kept: what does not fit
    into memory may come. Looking at the first batch loses none, even of what can be read only once.

    Attributes:
        name: what messages call them.
        count: how many there are, where that is known without reading them.
        read: reads them from the beginning; gives one batch at least, or raises `DataError`.
    """

    name: str
    count: int | None
    read: Callable[[], Iterator[Batch]]
    _begun: tuple[Batch, Iterator[Batch]] | None = None

    @property
    def first(self) -> Batch:
        """The first batch; `DataError` where it cannot be used."""
        if self._begun is None:
            batches = self.read()
            self._begun = next(batches), batches
        return self._begun[0]

    def __iter__(self) -> Iterator[Batch]:
        """All batches in order.

        Raises:
            DataError: samples that cannot be used, or none.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            yield begun[0]
        yield from self.read() if begun is None else begun[1]


class SampleDataset(Dataset[Sample | BadSample]):
    """The samples of a split.

    Args:
        source: the selected raw samples, whose labels are classes of the model.
        preprocess: makes model inputs of them.
        labelled: False for OOD sets, whose labels are all -1.

    Attributes:
        source: as given.
        ids: their names.
        labels: (N,) classes of the model, -1 for none; None where no sample has one.
    """

    def __init__(self, source: SampleSource, preprocess: Preprocessing, *, labelled: bool) -> None:
        self.source = source
        self.ids: list[str] = list(source.ids)
        self._preprocess = preprocess
        self.labels = source.labels if labelled else None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample | BadSample:
        """One sample, or why it cannot be used.

        Raises:
            DataError: the whole split cannot be used.
        """
        try:
            raw = self.source.sample(index)
        except UnreadableSampleError as error:
            return BadSample(self.ids[index], storable(str(error)), empty=error.empty)
        label = UNLABELLED if self.labels is None else int(self.labels[index])
        model_input = self._preprocess.model_input(raw)
        if not is_image(raw) and not finite_samples(each_input(model_input, lambda each: each[None])).all():
            return BadSample(self.ids[index], "not all of its numbers are finite (NaN, infinite or beyond float32)")
        return Sample(self.ids[index], model_input, label, content_hash(raw), signature_of(raw))

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the model's classes, in the order of its outputs; None where they are not known."""
        return class_names_of(self.source)

    @property
    def input_columns(self) -> Sequence[str] | None:
        """Names of the numbers of a sample, in their order; None where they have none."""
        return input_columns_of(self.source)

    def fingerprint(self) -> str:
        """SHA-256 of ids, labels and what is known of the content, as hexadecimal digits."""
        labels = [] if self.labels is None else self.labels.tolist()
        parts = ["\0".join(self.ids), ",".join(map(str, labels)), self.source.content()]
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def load_batches(
    dataset: SampleDataset | Subset[Sample | BadSample],
    *,
    split: str,
    batch_size: int,
    shard_size: int | None = None,
    shards: Iterable[int] = (0,),
    workers: int,
    pin: bool = False,
    on_error: str,
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
        if workers == 0 or str(error).startswith("Caught "):  # by PyTorch, an error of a sample
            raise
        raise _lost(f"{type(error).__name__} while it handed over a batch") from None


def check_usable(batch: Batch, *, split: str, on_error: str, advice: str) -> None:
    """Makes sure that all samples of a batch can be used, unless others are to be skipped.

    Args:
        batch: the samples.
        split: where they are from, for the message.
        on_error: "fail", or "skip" for others.
        advice: what the message ends with.

    Raises:
        BadSampleError: one cannot.
    """
    if batch.bad and on_error == "fail":
        first = batch.bad[0]
        raise BadSampleError(
            f"split {split}, sample {first.id}: {first.error}; repair or remove it, "
            f"or go on without such samples by --set extract.on_error=skip{advice}"
        )


def split_samples(
    dataset: SampleDataset | Subset[Sample | BadSample],
    *,
    name: str,
    batch_size: int,
    workers: int,
    on_error: str,
    skipped: list[BadSample],
) -> Samples:
    """The samples of a split that can be used.

    Args:
        dataset: all samples, or some.
        name: of the split.
        batch_size: samples in a batch.
        workers: processes that load ahead.
        on_error: see `load_batches`.
        skipped: gets those that cannot be used, as they come.
    """

    def read() -> Iterator[Batch]:
        found = False
        for batch in load_batches(dataset, split=name, batch_size=batch_size, workers=workers, on_error=on_error):
            skipped.extend(batch.bad)
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
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise _lost(str(error).splitlines()[0]) from None


def _lost(reason: str) -> DataError:
    return DataError(
        f"data: a worker that loads samples was lost ({reason}); out of memory? Run the same command again, with fewer "
        "workers (--workers) if it happens again"
    )


def _leave_interrupts_to_the_parent(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def collate(samples: Sequence[Sample | BadSample]) -> Batch:
    """Puts samples into a batch, in their order.

    Raises:
        DataError: samples of different shapes.
    """
    good = [sample for sample in samples if isinstance(sample, Sample)]
    for sample in good:
        if form(sample.inputs) != form(good[0].inputs):
            own, first = stacked([sample.inputs]), stacked([good[0].inputs])
            advice = (
                "set preprocessing.resize, crop or channels to make them equal"
                if are_images(own) and are_images(first)
                else "a batch needs one shape: pad or cut them to one before"
            )
            raise DataError(
                f"sample {sample.id} has shape {described(own)} and sample {good[0].id} {described(first)}; {advice}"
            )
    return Batch(
        [sample.id for sample in good],
        stacked([sample.inputs for sample in good]) if good else torch.empty(0, 1, 1, 1, device="cpu"),
        torch.tensor([sample.label for sample in good], dtype=torch.int64, device="cpu"),
        [sample.content_hash for sample in good],
        [replace(bad, place=place) for place, bad in enumerate(samples) if isinstance(bad, BadSample)],
        [sample.signature for sample in good],
    )


def form(sample: Tensor | Mapping[str, Tensor]) -> tuple[object, ...]:
    """Form that samples of one batch share: the shape, or names and shapes."""
    if isinstance(sample, Tensor):
        return tuple(sample.shape)
    return tuple(f"{name} {tuple(tensor.shape)}" for name, tensor in sample.items())


def stacked(samples: Sequence[Tensor | Mapping[str, Tensor]]) -> Inputs:
    """Batch of one sample or more of the same names and shapes."""
    first = samples[0]
    if isinstance(first, Tensor):
        return torch.stack([sample for sample in samples if isinstance(sample, Tensor)])
    named = [sample for sample in samples if not isinstance(sample, Tensor)]
    return {name: torch.stack([sample[name] for sample in named]) for name in first}


def finite_samples(inputs: Inputs) -> Tensor:
    """Mask (N,) bool of the samples of inputs (N, ...) that hold finite numbers alone.

    Several inputs by name may be infinite, as masks of attention are, but not NaN.
    """
    if isinstance(inputs, Tensor):
        return as_rows(inputs.isfinite()).all(1)
    return torch.stack([~as_rows(each.isnan()).any(1) for each in inputs.values()]).all(0)


def are_images(inputs: Inputs) -> bool:
    """Whether inputs (n, ...) look like images: (n, 1 or 3, H, W), floats or raw pixels, more than one pixel a side."""
    return (
        isinstance(inputs, Tensor)
        and inputs.dim() == 4
        and inputs.shape[1] in (1, 3)
        and min(inputs.shape[2:]) > 1
        and (inputs.is_floating_point() or inputs.dtype == torch.uint8)
    )


SIGNATURE_SIDE = 8
"""Cells of a signature along either side of the image."""


_WIDTHS: Mapping[str, DTypeLike] = {"f": np.float32, "i": np.int64, "u": np.int64}
"""The types as which numbers are hashed, by kind; uint8 stays as it is."""


SIGNED = "its labels are -1 and 1, and -1 stands for no label"
"""Message about labels that `are_signed`."""


def are_signed(labels: Iterable[int], num_classes: int) -> bool:
    """Whether the labels of all samples are -1 and 1 for two classes: all samples of one count as without a label."""
    return num_classes <= 2 and {*labels} == {UNLABELLED, 1}


def content_hash(raw: Raw) -> str:
    """16 hexadecimal digits of the SHA-256 of a raw sample.

    Args:
        raw: an image (H, W, C) uint8 or numbers, of which shape and values count, as float32 or int64; several of these
            by name; or text.

    Returns:
        Equal for equal samples.
    """
    return hashlib.sha256(_bytes_of(raw)).hexdigest()[:16]


def signature_of(raw: Raw) -> bytes | None:
    """The mean colours of the 8 by 8 cells of an image, by which near-duplicates are found.

    It forgets noise of encoders and shifts by a pixel. It is stored with the features, so that nobody has to read the
    images again.

    Args:
        raw: an image (H, W, 1 or 3) uint8, or something else.

    Returns:
        192 bytes, row by row and RGB each; None of what is no image.
    """
    if not is_image(raw):
        return None
    image = Image.fromarray(np.ascontiguousarray(raw if raw.shape[2] == 3 else raw[..., 0]))
    return image.convert("RGB").resize((SIGNATURE_SIDE, SIGNATURE_SIDE), Image.Resampling.BOX).tobytes()


def _bytes_of(raw: Raw) -> bytes:
    if isinstance(raw, str):
        return raw.encode("utf-8", "surrogatepass")
    if isinstance(raw, Mapping):
        return b"".join(f"{name}=".encode() + _bytes_of(raw[name]) for name in sorted(raw))
    shape = ",".join(map(str, raw.shape)).encode()
    width = None if raw.dtype == np.uint8 else _WIDTHS.get(raw.dtype.kind)
    with np.errstate(over="ignore"):
        values = np.asarray(raw, dtype=width)
    if values.dtype.kind == "f":  # zeros and NaN have two signs
        values = np.where(np.isnan(values), np.float32(np.nan), values + np.float32(0))
    return shape + b":" + np.ascontiguousarray(values).tobytes()
