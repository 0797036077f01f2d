"""The batches of a split: a shard of the feature table always starts a new one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.utils.data import DataLoader

from ..errors import DataError
from .dataset import SampleDataset
from .samples import Batch, Samples, collate

_LOST = re.compile(r"DataLoader worker \(pid")
"""Start of what PyTorch says when a worker ends that should not."""

_RAISED_IN_WORKER = "Caught "
"""Start of what PyTorch makes of an error of a sample that a worker loads."""


def count_shards(samples: int, *, shard_size: int) -> int:
    """The number of shards of a split."""
    return -(-samples // shard_size)


def load_batches(
    dataset: SampleDataset,
    *,
    split: str,
    batch_size: int,
    shard_size: int | None = None,
    shards: Iterable[int] = (0,),
    workers: int = 0,
    pin: bool = False,
    on_error: str = "fail",
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
        if workers == 0 or str(error).startswith(_RAISED_IN_WORKER):
            raise
        raise _lost(f"{type(error).__name__} while it handed over a batch") from None


def check_usable(batch: Batch, *, split: str, on_error: str, advice: str = "") -> None:
    """Makes sure that all samples of a batch can be used, unless others are to be skipped.

    Args:
        batch: the samples.
        split: where they are from, for the message.
        on_error: "fail", or "skip" for others.
        advice: what the message ends with.

    Raises:
        DataError: one cannot.
    """
    if batch.bad and on_error == "fail":
        first = batch.bad[0]
        raise DataError(
            f"split {split}, sample {first.sample_id}: {first.error}; repair or remove it, "
            f"or set extract.on_error=skip to go on without such samples{advice}"
        )


def split_samples(
    dataset: SampleDataset, *, name: str, batch_size: int, workers: int, on_error: str, skipped: list[str]
) -> Samples:
    """The samples of a split that can be used.

    Args:
        dataset: all samples.
        name: of the split.
        batch_size: samples in a batch.
        workers: processes that load ahead.
        on_error: see `load_batches`.
        skipped: gets the names of those that cannot be used, as they come.
    """

    def read() -> Iterator[Batch]:
        found = False
        for batch in load_batches(dataset, split=name, batch_size=batch_size, workers=workers, on_error=on_error):
            skipped.extend(bad.sample_id for bad in batch.bad)
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
