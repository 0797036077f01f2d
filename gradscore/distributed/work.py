"""The shards a run is made of, and what computes one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..columns import COSINE
from ..data import FIT
from ..errors import StoreError
from ..extractor import MeanGradients
from ..pipeline import OnBatch, RunPlan, write_shards
from ..store import PARTIAL, shard_path, split_folder
from ..system import file_sha256, write_bytes

SUMS = "sums"
"""Stands for a split where the gradients of a shard of `in_dist.fit` are added up, which comes before all tables."""

_FILE = re.compile(
    rf"features/(?P<split>\w[^/]*)/part-(?P<part>\d+)\.parquet|{PARTIAL}/{SUMS}-(?P<sum>\d+)\.safetensors"
)


@dataclass(frozen=True, order=True)
class Shard:
    """One unit of work: shard `number` of a split, or of the sums of gradients."""

    split: str
    number: int

    @property
    def file(self) -> str:
        """What it makes, as a path relative to the run folder."""
        if self.split == SUMS:
            return f"{PARTIAL}/{SUMS}-{self.number:05d}.safetensors"
        return shard_path(split_folder(Path(), self.split), self.number).as_posix()

    @classmethod
    def of_file(cls, name: str) -> Self | None:
        """The shard whose file has this name; None of any other name."""
        found = _FILE.fullmatch(name)
        if found is None:
            return None
        shard = cls(found["split"] or SUMS, int(found["part"] or found["sum"]))
        return shard if shard.file == name else None


def needs_means(plan: RunPlan) -> bool:
    """Whether the tables of a run need the mean gradients of `in_dist.fit`."""
    return COSINE in plan.config.features.columns


def sum_shards(plan: RunPlan) -> list[Shard]:
    """The first stage of a run: the shards of the sums of gradients, in order; none where it needs none."""
    return [Shard(SUMS, number) for number in range(plan.count_shards(FIT) if needs_means(plan) else 0)]


def table_shards(plan: RunPlan) -> list[Shard]:
    """The shards of all tables of a run, in order."""
    return [Shard(split, number) for split in plan.datasets for number in range(plan.count_shards(split))]


def make_shard(plan: RunPlan, shard: Shard, *, on_batch: OnBatch) -> str:
    """Computes one shard and writes it into the run folder; returns the SHA-256 of the file.

    Raises:
        GradscoreError: as `write_shards` and `RunPlan.class_sums`.
    """
    path = plan.config.run / shard.file
    if shard.split == SUMS:
        write_bytes(path, plan.class_sums([shard.number], on_batch=on_batch).to_bytes())
    else:
        write_shards(plan, shard.split, [shard.number], on_batch=on_batch)
    return file_sha256(path)


def add_up(plan: RunPlan) -> MeanGradients:
    """The mean gradients of a run from the sums of all shards, in order: bit for bit those that one process adds up.

    Raises:
        StoreError: a file is missing or damaged.
    """
    sums = plan.extractor.class_sums()
    for shard in sum_shards(plan):
        path = plan.config.run / shard.file
        try:
            sums.add(path.read_bytes(), where=str(path))
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}; run its shard again") from None
    return sums.finished()
