"""The loop that every sample goes through, and the rows of feature tables that come of it.

Batches come in any sizes and are cut here, so that the values are the same however the samples came: `batch_size` at a
time, and a new batch at the start of every shard.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..config import Config
from ..data import BANK, FIT, Batch
from ..errors import DataError
from ..extractor import Extractor
from ..store import Recomputed, ShardRows, Skipped, shard_path, split_folder, write_shard
from ..system import FloatArray, described

OnBatch = Callable[[str, int], None]
"""Called after every batch, with its split and how many samples it had."""

TWICE = 16
"""Samples of each shard of `in_dist.fit` that are computed twice: 1.6 % of a full one."""


Progress = Callable[[str, int, int], None]
"""Is told which split is being worked on, and how many of the samples of all splits are there: `split, done, total`.

`total` is 0 where it is unknown.
"""


@dataclass
class Pace:
    """Progress: what of a split was computed.

    Attributes:
        samples: how many.
        seconds: from when the samples before them were done, of whatever split.
    """

    samples: int = 0
    seconds: float = 0.0


class Counter:
    """Counts samples as they are done: how far the work is, and what each split takes.

    Args:
        total: how many samples are expected; 0 if that is unknown.
        progress: who is told.

    Attributes:
        paces: of the splits.
    """

    def __init__(self, total: int = 0, progress: Progress | None = None) -> None:
        self._total, self._progress, self._done = total, progress, 0
        self._then = time.perf_counter()
        self.paces: defaultdict[str, Pace] = defaultdict(Pace)

    def skip(self, split: str, samples: int) -> None:
        """Counts samples of a split that were there before; a total that was too small is not kept to."""
        self._done += samples
        if self._progress is not None:
            self._progress(split, self._done, max(self._total, self._done) if self._total else 0)

    def add(self, split: str, samples: int) -> None:
        """Counts samples of a split that are done now."""
        before, self._then = self._then, time.perf_counter()
        pace = self.paces[split]
        pace.samples, pace.seconds = pace.samples + samples, pace.seconds + self._then - before
        self.skip(split, samples)


@dataclass(frozen=True)
class Cut:
    """A batch as it is computed, the number of its shard, and whether it is the first, or fills the shard."""

    batch: Batch
    shard: int
    is_first: bool
    is_last: bool


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
        """Last samples when no more come, in a batch that need not be full."""
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


@dataclass(frozen=True)
class Values:
    """Values of the N samples of a batch: logits, features and whatever else there are columns of.

    Attributes:
        first: (N, F) float64.
        again: of a few of the samples once more, computed in another batch.
    """

    first: FloatArray
    again: Recomputed | None = None


class RowExtractor:
    """Computes the rows of splits, batch by batch.

    Of a bank there is no more than what one look forward gives. Some samples of `in_dist.fit` are computed again, in a
    batch of their own, so that a fit sees what is rounding.

    Args:
        extractor: turns batches into values.
    """

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self._lacking = TWICE

    def __call__(self, cut: Cut) -> Values:
        """Computes a batch; raises the same as `Extractor.values`.

        Raises:
            DataError: a loss looks at labels, and a sample has none.
        """
        batch = cut.batch
        if batch.split == BANK:
            return Values(self._extractor.forward_values(batch.inputs))
        values = self._values(batch)
        if batch.split != FIT:
            return Values(values)
        if cut.is_first:
            self._lacking = TWICE
        chosen = from_least_to_most_certain(values[:, : self._extractor.num_classes], self._lacking)
        self._lacking -= len(chosen)
        if not len(chosen):
            return Values(values)
        again = self._values(batch.rows(chosen.tolist()), nudged=True)
        return Values(values, Recomputed(chosen, again))

    def rows(self, found: Sequence[tuple[Batch, Values]]) -> ShardRows:
        """Joins batches of one split, in order, and their values; the prediction is the first of the largest logits."""
        batches, split = [batch for batch, _ in found], found[0][0].split
        values = np.concatenate([each.first for _, each in found])
        again: Recomputed | None = None
        if split == FIT:
            starts = np.cumsum([0, *(len(batch.ids) for batch in batches)])
            twice = [(start, each.again) for start, (_, each) in zip(starts, found, strict=False) if each.again]
            places = [np.empty(0, dtype=np.intp), *(start + once.places for start, once in twice)]
            second = [values[:0], *(once.values for _, once in twice)]
            again = Recomputed(np.concatenate(places), np.concatenate(second))
        return ShardRows(
            split=split,
            sample_ids=[name for batch in batches for name in batch.ids],
            labels=np.concatenate([batch.labels.numpy() for batch in batches]),
            predictions=values[:, : self._extractor.num_classes].argmax(axis=1),
            content_hashes=[name for batch in batches for name in batch.content_hashes],
            names=self._extractor.forward_names if split == BANK else self._extractor.names,
            values=values,
            skipped=[
                Skipped(sample_id=bad.id, error=bad.error, empty=[*bad.empty]) for batch in batches for bad in batch.bad
            ],
            recomputed=again,
            signatures=[signature for batch in batches for signature in batch.signatures] or None,
            hides_images=any(batch.hides_images for batch in batches),
        )

    def _values(self, batch: Batch, *, nudged: bool = False) -> FloatArray:
        extractor = self._extractor
        check_labelled(extractor.losses_with_labels, batch.labels.numpy(), batch.ids, where=batch.split)
        return extractor.values(batch.inputs, labels=batch.labels, nudged=nudged)


def from_least_to_most_certain(logits: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """Chooses samples from the least to the most confident one, in equal steps of rank.

    Args:
        logits: (N, K).
        count: how many, at most.

    Returns:
        Their places, the least confident one first; none of a sample whose logits are not finite.
    """
    finite = np.flatnonzero(np.isfinite(logits).all(axis=1))
    known = logits[finite]
    order = finite[np.argsort(-np.exp(known - known.max(axis=1, keepdims=True)).sum(axis=1), kind="stable")]
    return order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.intp))]


def write_rows(
    samples: Iterable[Batch],
    extractor: RowExtractor,
    config: Config,
    *,
    shards: Iterable[int] | None = None,
    on_batch: OnBatch,
) -> dict[str, int]:
    """Computes samples and writes their rows into the folder of a run, shard by shard.

    Args:
        samples: batches of any sizes, those of several splits perhaps mixed.
        extractor: computes the rows.
        config: of the run.
        shards: see `cut`.
        on_batch: called after every batch.

    Returns:
        One more than the number of the last shard, by split.

    Raises:
        GradscoreError: as `samples` and `extractor`.
    """
    waiting: defaultdict[str, list[tuple[Batch, Values]]] = defaultdict(list)
    ends: dict[str, int] = {}

    def write(split: str) -> None:
        path = shard_path(split_folder(config.run, split), ends[split] - 1)
        write_shard(path, extractor.rows(waiting.pop(split)))

    options = config.extract
    for each in cut(samples, batch_size=options.batch_size, shard_size=options.part_size, shards=shards):
        split = each.batch.split
        waiting[split].append((each.batch, extractor(each)))
        ends[split] = each.shard + 1
        if each.is_last:
            write(split)
        on_batch(split, each.batch.places)
    for split in list(waiting):
        write(split)
    return ends


GIVEN_SPLIT = "given"
"""Name of the split of a table without a run folder."""


def check_labelled(
    losses: Sequence[str], labels: npt.NDArray[np.int64] | None, sample_ids: Sequence[str], *, where: str
) -> None:
    """Makes sure that samples have the labels that losses look at.

    Args:
        losses: those that look at given labels; without any, nothing is checked.
        labels: (N,) of the samples, -1 for none; None for none at all.
        sample_ids: their names, N of them.
        where: the split, for the message.

    Raises:
        DataError: one has none.
    """
    if not losses:
        return
    missing = np.arange(len(sample_ids)) if labels is None else np.flatnonzero(labels < 0)
    if len(missing):
        several = f" and {len(missing) - 1} more have" if len(missing) > 1 and where != GIVEN_SPLIT else " has"
        what_to_do = "give inputs and labels, batch by batch as a pair or under 'labels' in a mapping"
        if where != GIVEN_SPLIT:
            what_to_do = "label all of them, or take out of the data those that have none"
            what_to_do += "; a loss that features.losses names can be left out there"
        of_split = "" if where == GIVEN_SPLIT else f" of split {where}"
        raise DataError(
            f"the loss '{losses[0]}' looks at the label of every sample, and sample {sample_ids[missing[0]]}{of_split}"
            f"{several} none; {what_to_do}"
        )
