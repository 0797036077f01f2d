"""The batches of a split: a part of the feature table always starts a new one."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from .data import Batch, SampleDataset, collate


@dataclass(frozen=True)
class PlannedBatch:
    """The samples `start` to `stop` of a split; they belong to part `part` and are its last ones if `last`."""

    part: int
    start: int
    stop: int
    last: bool


def count_parts(samples: int, *, part_size: int) -> int:
    """The number of parts of a split."""
    return -(-samples // part_size)


def plan_batches(samples: int, *, parts: Iterable[int], part_size: int, batch_size: int) -> list[PlannedBatch]:
    """Cuts some parts of a split into batches.

    Args:
        samples: the number of samples of the split.
        parts: the numbers of the parts.
        part_size: samples in a part; the last part may have fewer.
        batch_size: samples in a batch; the last batch of a part may have fewer.

    Returns:
        The batches in order.

    Example:
        >>> [(batch.start, batch.stop) for batch in plan_batches(9, parts=[0, 2], part_size=4, batch_size=3)]
        [(0, 3), (3, 4), (8, 9)]
    """
    planned = []
    for part in parts:
        end = min((part + 1) * part_size, samples)
        for start in range(part * part_size, end, batch_size):
            planned.append(PlannedBatch(part, start, min(start + batch_size, end), last=start + batch_size >= end))
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
    """
    yield from DataLoader(
        dataset,
        batch_sampler=[list(range(batch.start, batch.stop)) for batch in planned],
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        worker_init_fn=_leave_interrupts_to_the_parent,
        generator=torch.Generator(),
    )


def _leave_interrupts_to_the_parent(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
