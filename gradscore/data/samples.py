"""Samples: one, a batch of them, and the stream of batches in which all samples come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..errors import DataError
from ..system import Inputs, each_input, rows_of


@dataclass(frozen=True)
class Sample:
    """An image or another sample, ready for the model.

    Attributes:
        sample_id: stable name: a path relative to the data's root, or a number.
        image: (C, H, W) float32; of other samples numbers of any shape, or several tensors by name.
        label: the class, -1 for none.
        content_hash: 16 hexadecimal digits of the SHA-256 of shape and raw pixels, before preprocessing.
        signature: of an image, by which near-duplicates are found; see `signature_of`.
    """

    sample_id: str
    image: Tensor | Mapping[str, Tensor]
    label: int
    content_hash: str
    signature: bytes | None = None


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used, and why; `place` is its place in its batch."""

    sample_id: str
    error: str
    place: int = 0


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
        """How many samples there are, those that cannot be used among them."""
        return len(self.ids) + len(self.bad)

    @property
    def tensor(self) -> Tensor:
        """The inputs, where a sample is one tensor.

        Raises:
            DataError: samples are several tensors by name.
        """
        if isinstance(self.inputs, Tensor):
            return self.inputs
        raise DataError(
            f"samples are keyword inputs ({', '.join(self.inputs)}), and this takes one tensor for each sample"
        )

    def pin_memory(self) -> Batch:
        """The same batch with its inputs where an accelerator can copy them from by itself."""
        return replace(self, inputs=each_input(self.inputs, Tensor.pin_memory))

    def rows(self, rows: Sequence[int]) -> Batch:
        """The samples in some rows of `inputs`, none of those that cannot be used."""
        chosen = torch.tensor(rows, dtype=torch.int64)
        return replace(
            self,
            ids=[self.ids[row] for row in rows],
            inputs=rows_of(self.inputs, chosen),
            labels=self.labels[chosen],
            content_hashes=[self.content_hashes[row] for row in rows],
            bad=[],
            signatures=[self.signatures[row] for row in rows] if self.signatures else [],
            raw=None if self.raw is None else self.raw[chosen],
        )

    def part(self, start: int, stop: int) -> Batch:
        """The samples in places `start` to `stop`, those that cannot be used among them."""
        if start <= 0 and stop >= self.places:
            return self
        before = sum(bad.place < start for bad in self.bad)
        bad = [replace(bad, place=bad.place - start) for bad in self.bad if start <= bad.place < stop]
        rows = slice(start - before, min(stop, self.places) - before - len(bad))
        return replace(
            self,
            ids=self.ids[rows],
            inputs=rows_of(self.inputs, rows),
            labels=self.labels[rows],
            content_hashes=self.content_hashes[rows],
            bad=bad,
            signatures=self.signatures[rows],
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
        is_read_once: whether a second time there is nothing more to be had.
    """

    name: str
    count: int | None
    read: Callable[[], Iterator[Batch]]
    is_read_once: bool = False
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


def stacked(samples: Sequence[Tensor | Mapping[str, Tensor]]) -> Inputs:
    """One batch of samples of the same names and shapes; there is one at least."""
    first = samples[0]
    if isinstance(first, Tensor):
        return torch.stack([sample for sample in samples if isinstance(sample, Tensor)])
    named = [sample for sample in samples if not isinstance(sample, Tensor)]
    return {name: torch.stack([sample[name] for sample in named]) for name in first}


def are_images(inputs: Inputs) -> bool:
    """Whether inputs (n, ...) look like images: (n, 1 or 3, H, W), floats or raw pixels, more than one pixel a side."""
    return (
        isinstance(inputs, Tensor)
        and inputs.dim() == 4
        and inputs.shape[1] in (1, 3)
        and min(inputs.shape[2:]) > 1
        and (inputs.is_floating_point() or inputs.dtype == torch.uint8)
    )


def form(sample: Tensor | Mapping[str, Tensor]) -> tuple[object, ...]:
    """What samples of one batch have in common: the shape, or names and shapes."""
    if isinstance(sample, Tensor):
        return tuple(sample.shape)
    return tuple(f"{name} {tuple(tensor.shape)}" for name, tensor in sample.items())


def collate(samples: Sequence[Sample | BadSample]) -> Batch:
    """Puts samples into a batch.

    Args:
        samples: in order.

    Returns:
        The batch.

    Raises:
        DataError: images of different shapes.
    """
    good = [sample for sample in samples if isinstance(sample, Sample)]
    for sample in good:
        if form(sample.image) != form(good[0].image):
            raise DataError(
                f"sample {sample.sample_id} has shape {_text(sample)} and sample {good[0].sample_id} {_text(good[0])}; "
                + _ADVICE[all(are_images(stacked([each.image])) for each in (sample, good[0]))]
            )
    return Batch(
        [sample.sample_id for sample in good],
        stacked([sample.image for sample in good]) if good else torch.empty(0, 1, 1, 1),
        torch.tensor([sample.label for sample in good], dtype=torch.int64),
        [sample.content_hash for sample in good],
        [replace(bad, place=place) for place, bad in enumerate(samples) if isinstance(bad, BadSample)],
        [sample.signature for sample in good],
    )


_ADVICE = {
    True: "set preprocessing.resize, crop or channels to make them equal",
    False: "a batch needs one shape: pad or cut them to one before",
}


def _text(sample: Sample) -> str:
    shape = form(sample.image)
    return str(shape) if isinstance(sample.image, Tensor) else ", ".join(map(str, shape))
