"""The loop that every sample goes through: batches are cut, computed and handed on.

Batches come in any sizes and are cut here, so that the values are the same however the samples came: `batch_size` at a
time, and a new batch at the start of every shard.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..data import Batch
from ..system import described

Found = TypeVar("Found")

OnBatch = Callable[[str, int], None]
"""Called after every batch, with its split and how many samples it had."""


class Progress(Protocol):
    """Is told how far the work is."""

    def __call__(self, split: str, done: int, total: int) -> None:
        """`done` of the `total` samples of all splits are there; `split` is being worked on.

        `total` is 0 where it is unknown. With `gradient_cosine`, the samples of `in_dist.fit` count twice: they are
        looked at before all others, too.
        """


@dataclass
class Counter:
    """Adds up samples and tells how far the work is.

    Attributes:
        total: how many samples are expected; 0 if that is unknown.
        progress: who is told.
        done: how many are there.
    """

    total: int = 0
    progress: Progress | None = None
    done: int = 0

    def add(self, split: str, samples: int) -> None:
        """Counts samples of a split that are done; a total that was too small is not kept to."""
        self.done += samples
        if self.progress is not None:
            self.progress(split, self.done, max(self.total, self.done) if self.total else 0)


@dataclass
class Pace:
    """How fast samples are done, apart from the first batch, which also compiles loops.

    Attributes:
        samples: done after the first batch.
        began: when the first batch was done, in seconds of `time.perf_counter`; 0 before.
        ended: when the last one was.
    """

    samples: int = 0
    began: float = 0.0
    ended: float = 0.0

    def add(self, samples: int) -> None:
        """Counts the samples of a batch that is done now."""
        self.ended = time.perf_counter()
        if self.began:
            self.samples += samples
        else:
            self.began = self.ended

    @property
    def rate(self) -> float | None:
        """Samples a second; None for a single batch."""
        return self.samples / (self.ended - self.began) if self.samples else None


@dataclass(frozen=True)
class Cut:
    """A batch as it is computed, the number of its shard, and whether it is the first, or fills the shard."""

    batch: Batch
    shard: int
    is_first: bool
    is_last: bool


class Sink(Generic[Found]):
    """Takes what was found in batches, in order."""

    def wants(self, cut: Cut) -> bool:  # noqa: ARG002
        """Whether a batch has to be computed; `take` gets None for others."""
        return True

    def take(self, cut: Cut, found: Found | None) -> None:
        """Takes a batch and what was found in it."""
        raise NotImplementedError

    def close(self) -> None:
        """There are no more samples; the last shard need not be full."""


class ListSink(Sink[Found]):
    """Keeps what was found of every batch, in `found`."""

    def __init__(self) -> None:
        self.found: list[Found] = []

    def take(self, cut: Cut, found: Found | None) -> None:  # noqa: ARG002
        """See `Sink`."""
        assert found is not None
        self.found.append(found)


def run(
    samples: Iterable[Batch],
    extractor: Callable[[Cut], Found],
    sink: Sink[Found],
    *,
    batch_size: int | None,
    shard_size: int,
    shards: Iterable[int] | None = None,
    on_batch: OnBatch | None = None,
) -> None:
    """Cuts samples into batches, computes each and hands on what was found.

    Args:
        samples: batches of any sizes, those of several splits perhaps mixed.
        extractor: computes a batch.
        sink: takes what was found.
        batch_size: see `cut`.
        shard_size: see `cut`.
        shards: see `cut`.
        on_batch: called after every batch.

    Raises:
        GradscoreError: as `samples`, `extractor` and `sink`.
    """
    for each in cut(samples, batch_size=batch_size, shard_size=shard_size, shards=shards):
        sink.take(each, extractor(each) if sink.wants(each) else None)
        if on_batch is not None:
            on_batch(each.batch.split, each.batch.places)
    sink.close()


def cut(
    samples: Iterable[Batch], *, batch_size: int | None, shard_size: int, shards: Iterable[int] | None = None
) -> Iterator[Cut]:
    """Cuts samples into the batches in which they are computed.

    Samples that cannot be used count as well, so that those of a split that are loaded in parallel come as they are.
    Samples of another shape, such as texts of another length, start a new batch.

    Args:
        samples: batches of any sizes with the split each belongs to.
        batch_size: samples in a batch, the last one of a shard may have fewer; None to leave batches as they are.
        shard_size: samples in a shard, or more where batches are left as they are; the last one may have fewer.
        shards: the numbers of the shards, where these are not all of a split.
    """
    splits: dict[str, _Cutter] = {}
    for batch in samples:
        if batch.split not in splits:
            splits[batch.split] = _Cutter(batch_size, shard_size, itertools.count() if shards is None else iter(shards))
        yield from splits[batch.split].add(batch)
    for cutter in splits.values():
        yield from cutter.rest()


class _Cutter:
    """Cuts the samples of one split; see `cut`."""

    def __init__(self, batch_size: int | None, shard_size: int, shards: Iterator[int]) -> None:
        self._batch_size, self._shard_size, self._shards = batch_size, shard_size, shards
        self._waiting: list[Batch] = []
        self._shard, self._in_shard = 0, 0

    def add(self, batch: Batch) -> Iterator[Cut]:
        """Takes samples, and gives the batches that are full now."""
        if self._batch_size is None:
            self._waiting = [batch]
            yield self._cut()
            return
        if batch.ids and any(each.ids and described(each.inputs) != described(batch.inputs) for each in self._waiting):
            yield self._cut()
        while batch.places:
            wanted = min(self._batch_size, self._shard_size - self._in_shard)
            lacking = wanted - sum(each.places for each in self._waiting)
            self._waiting.append(batch.part(0, lacking))
            batch = batch.part(lacking, max(lacking, batch.places))
            if sum(each.places for each in self._waiting) == wanted:
                yield self._cut()

    def rest(self) -> Iterator[Cut]:
        """What is left when no more samples come, in a batch that need not be full."""
        if self._waiting:
            yield self._cut()

    def _cut(self) -> Cut:
        batch, self._waiting = Batch.joined(self._waiting), []
        is_first = self._in_shard == 0
        if is_first:
            self._shard = next(self._shards)
        self._in_shard += batch.places
        is_last = self._in_shard >= self._shard_size
        if is_last:
            self._in_shard = 0
        return Cut(batch, self._shard, is_first=is_first, is_last=is_last)
