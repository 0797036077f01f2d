"""Samples and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import DataError


@dataclass(frozen=True)
class Sample:
    """An image, ready for the model.

    Attributes:
        sample_id: stable name: a path relative to the data's root, or a number.
        image: (C, H, W) float32.
        label: the class, -1 for none.
        content_hash: 16 hexadecimal digits of the SHA-256 of shape and raw pixels, before preprocessing.
    """

    sample_id: str
    image: Tensor
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
        images: (N, C, H, W) float32.
        labels: (N,) int64, -1 for none.
        content_hashes: see `Sample`.
        bad: samples that cannot be used.
    """

    sample_ids: list[str]
    images: Tensor
    labels: Tensor
    content_hashes: list[str]
    bad: list[BadSample]

    def pin_memory(self) -> Batch:
        """The same batch with its images where an accelerator can copy them from by itself."""
        return replace(self, images=self.images.pin_memory())


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
        if sample.image.shape != good[0].image.shape:
            raise DataError(
                f"sample {sample.sample_id} has shape {tuple(sample.image.shape)} and sample {good[0].sample_id} "
                f"{tuple(good[0].image.shape)}; set preprocessing.resize, crop or channels to make them equal"
            )
    return Batch(
        [sample.sample_id for sample in good],
        torch.stack([sample.image for sample in good]) if good else torch.empty(0, 1, 1, 1),
        torch.tensor([sample.label for sample in good], dtype=torch.int64),
        [sample.content_hash for sample in good],
        [sample for sample in samples if isinstance(sample, BadSample)],
    )
