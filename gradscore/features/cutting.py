"""Batches of any sizes, cut into those of a run: so that the values are the same, however the samples came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..data import Batch
from ..system import described


@dataclass(frozen=True)
class Cut:
    """A batch, the number of its shard, and whether that is full now."""

    batch: Batch
    shard: int
    last: bool


class Cutter:
    """Cuts as `plan_batches` does: `batch_size` samples at a time, and a new batch at the start of every shard.

    Samples of another shape, such as texts of another length, start a new batch as well.

    Args:
        batch_size: samples in a batch; the last batch of a shard may have fewer.
        shard_size: samples in a shard; the last one may have fewer.
    """

    def __init__(self, *, batch_size: int, shard_size: int) -> None:
        self._batch_size, self._shard_size = batch_size, shard_size
        self._waiting: list[Batch] = []
        self._done = 0

    def add(self, batch: Batch) -> Iterator[Cut]:
        """Takes samples, and gives the batches that are full now."""
        if self._waiting and not _fit_together(self._waiting[0], batch):
            yield self._cut()
        while len(batch.sample_ids):
            lacking = self._wanted() - self._count()
            self._waiting.append(batch.part(slice(lacking)))
            batch = batch.part(slice(lacking, None))
            if self._count() == self._wanted():
                yield self._cut()

    def rest(self) -> Iterator[Cut]:
        """What is left when no more samples come, in a batch that need not be full."""
        if self._waiting:
            yield self._cut()

    def cuts(self, batches: Iterable[Batch]) -> Iterator[Cut]:
        """All batches of some samples."""
        for batch in batches:
            yield from self.add(batch)
        yield from self.rest()

    def _wanted(self) -> int:
        return min(self._batch_size, self._shard_size - self._done % self._shard_size)

    def _count(self) -> int:
        return sum(len(batch.sample_ids) for batch in self._waiting)

    def _cut(self) -> Cut:
        batch = Batch.joined(self._waiting)
        shard = self._done // self._shard_size
        self._done += len(batch.sample_ids)
        self._waiting = []
        return Cut(batch, shard, last=self._done % self._shard_size == 0)


def _fit_together(one: Batch, other: Batch) -> bool:
    return described(one.images) == described(other.images)
