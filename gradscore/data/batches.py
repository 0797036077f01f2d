"""The batches of a split: a shard of the feature table always starts a new one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from ..errors import DataError
from .dataset import SampleDataset
from .samples import Batch, collate

_LOST = re.compile(r"DataLoader worker \(pid")
"""Start of what PyTorch says when a worker ends that should not."""

_RAISED_IN_WORKER = "Caught "
"""Start of what PyTorch makes of an error of a sample that a worker loads."""


@dataclass(frozen=True)
class PlannedBatch:
    """The samples `start` to `stop` of a split; they belong to shard `shard` and are its last ones if `last`."""

    shard: int
    start: int
    stop: int
    last: bool


def count_shards(samples: int, *, shard_size: int) -> int:
    """The number of shards of a split."""
    return -(-samples // shard_size)


def plan_batches(samples: int, *, shards: Iterable[int], shard_size: int, batch_size: int) -> list[PlannedBatch]:
    """Cuts some shards of a split into batches.

    Args:
        samples: the number of samples of the split.
        shards: the numbers of the shards.
        shard_size: samples in a shard; the last shard may have fewer.
        batch_size: samples in a batch; the last batch of a shard may have fewer.

    Returns:
        The batches in order.

    Example:
        >>> [(batch.start, batch.stop) for batch in plan_batches(9, shards=[0, 2], shard_size=4, batch_size=3)]
        [(0, 3), (3, 4), (8, 9)]
    """
    planned = []
    for shard in shards:
        end = min((shard + 1) * shard_size, samples)
        for start in range(shard * shard_size, end, batch_size):
            planned.append(PlannedBatch(shard, start, min(start + batch_size, end), last=start + batch_size >= end))
    return planned


def load_batches(
    dataset: SampleDataset, planned: list[PlannedBatch], *, workers: int, pin: bool = False
) -> Iterator[Batch]:
    """Loads batches in order.

    Args:
        dataset: the samples.
        planned: which batches.
        workers: processes that load ahead; 0 loads in this one.
        pin: load into memory from which an accelerator copies while it computes.

    Yields:
        One batch for each planned one.

    Raises:
        DataError: a worker was killed.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=[list(range(batch.start, batch.stop)) for batch in planned],
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        worker_init_fn=_leave_interrupts_to_the_parent,
        generator=torch.Generator(),
    )
    try:
        with naming_lost_workers():
            yield from loader
    except (ConnectionError, EOFError) as error:
        if workers == 0 or str(error).startswith(_RAISED_IN_WORKER):
            raise
        raise _lost(f"{type(error).__name__} while it handed over a batch") from None


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
