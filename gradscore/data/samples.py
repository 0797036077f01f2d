"""Samples and batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    """

    sample_id: str
    image: Tensor | Mapping[str, Tensor]
    label: int
    content_hash: str


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used, and why."""

    sample_id: str
    error: str


@dataclass(frozen=True)
class Batch:
    """Samples of one batch in order; those that cannot be used are kept apart in `bad`.

    Attributes:
        sample_ids: names.
        images: (N, C, H, W) float32; of other samples (N, ...), or several tensors by name, as the model takes them.
        labels: (N,) int64, -1 for none.
        content_hashes: see `Sample`.
        bad: samples that cannot be used.
    """

    sample_ids: list[str]
    images: Inputs
    labels: Tensor
    content_hashes: list[str]
    bad: list[BadSample]

    @property
    def tensor(self) -> Tensor:
        """The images, where a sample is one tensor.

        Raises:
            DataError: samples are several tensors by name.
        """
        if isinstance(self.images, Tensor):
            return self.images
        raise DataError(
            f"samples are keyword inputs ({', '.join(self.images)}), and this takes one tensor for each sample"
        )

    def pin_memory(self) -> Batch:
        """The same batch with its images where an accelerator can copy them from by itself."""
        return replace(self, images=each_input(self.images, Tensor.pin_memory))

    def part(self, rows: slice) -> Batch:
        """Some of the samples; `bad` stays behind."""
        return Batch(
            self.sample_ids[rows], rows_of(self.images, rows), self.labels[rows], self.content_hashes[rows], []
        )

    def where(self, rows: Tensor) -> Batch:
        """The samples that a mask (N,) bool chooses; `bad` stays behind."""
        places = rows.nonzero().flatten().tolist()
        return Batch(
            [self.sample_ids[place] for place in places],
            rows_of(self.images, rows),
            self.labels[rows],
            [self.content_hashes[place] for place in places],
            [],
        )

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Several batches of samples of one shape as one."""
        if len(batches) == 1:
            return batches[0]
        return cls(
            [name for batch in batches for name in batch.sample_ids],
            _joined([batch.images for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            [digest for batch in batches for digest in batch.content_hashes],
            [bad for batch in batches for bad in batch.bad],
        )


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
        [sample for sample in samples if isinstance(sample, BadSample)],
    )


def _joined(parts: Sequence[Inputs]) -> Inputs:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return {name: torch.cat([part[name] for part in parts if not isinstance(part, Tensor)]) for name in first}


_ADVICE = {
    True: "set preprocessing.resize, crop or channels to make them equal",
    False: "a batch needs one shape: pad or cut them to one before",
}


def _text(sample: Sample) -> str:
    shape = form(sample.image)
    return str(shape) if isinstance(sample.image, Tensor) else ", ".join(map(str, shape))
