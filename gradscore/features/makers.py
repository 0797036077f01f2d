"""Who computes what a run lacks: this process, or others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..data import FIT
from ..store import RunWriter, ShardNote
from .class_gradients import MeanGradients
from .run_plan import RunPlan, Told


class Maker(Protocol):
    """Computes the shards of a run that are not there yet, and the mean gradients they are compared with."""

    @property
    def notices(self) -> list[str]:
        """What the reader of the values should know beside what `RunPlan.notices` says."""

    def mean_gradients(self, plan: RunPlan, *, told: Told) -> MeanGradients:
        """Those of all samples of `in_dist.fit`."""

    def shards(
        self, plan: RunPlan, writer: RunWriter, split: str, numbers: Sequence[int], *, told: Told
    ) -> Iterator[tuple[int, ShardNote]]:
        """Writes shards of a split into the folder of the run, in any order, and gives the note of each."""


class Here:
    """Computes in this process, as `Maker` says."""

    notices: list[str]

    def __init__(self) -> None:
        self.notices = []

    def mean_gradients(self, plan: RunPlan, *, told: Told) -> MeanGradients:
        """See `Maker`."""
        return plan.class_sums(range(plan.count_shards(FIT)), told=told).finished()

    def shards(
        self, plan: RunPlan, writer: RunWriter, split: str, numbers: Sequence[int], *, told: Told
    ) -> Iterator[tuple[int, ShardNote]]:
        """See `Maker`."""
        for number, rows in plan.rows(split, numbers, told=told):
            yield number, writer.write(split, number, rows)
