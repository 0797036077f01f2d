"""The samples of a split of a configuration, for what reads those of a program as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from ..config import ExtractConfig
from ..data import Batch, SampleDataset, load_batches, plan_batches
from ..errors import DataError
from ..system import each_input
from .split_rows import check_samples


@dataclass(frozen=True, kw_only=True)
class SplitSamples:
    """The samples of a split that can be used.

    Attributes:
        dataset: all samples.
        name: of the split.
        dtype: floating inputs are converted to it: that of the parameters of the model.
        options: batch size, workers, and what becomes of samples that cannot be used.
        skipped: names of those, as they come.
    """

    dataset: SampleDataset
    name: str
    dtype: torch.dtype
    options: ExtractConfig
    skipped: list[str] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How many there are, those among them that cannot be used."""
        return len(self.dataset)

    def batches(self) -> Iterator[Batch]:
        """Batches, in the order of the data.

        Raises:
            DataError: a sample cannot be used and is not to be skipped, or none can.
        """
        planned = plan_batches(self.samples, shards=[0], shard_size=self.samples, batch_size=self.options.batch_size)
        is_empty = True
        for batch in load_batches(self.dataset, planned, workers=self.options.workers):
            check_samples(batch, split=self.name, on_error=self.options.on_error)
            self.skipped.extend(bad.sample_id for bad in batch.bad)
            if batch.sample_ids:
                is_empty = False
                images = each_input(
                    batch.images, lambda each: each.to(self.dtype) if each.is_floating_point() else each
                )
                yield replace(batch, images=images, bad=[])
        if is_empty:
            raise DataError(f"split {self.name}: no sample of it can be used")
