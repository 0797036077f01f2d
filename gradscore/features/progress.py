"""How far an extraction is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Progress(Protocol):
    """Is told how far an extraction is."""

    def __call__(self, split: str, done: int, total: int) -> None:
        """`done` of the `total` samples of all splits are there; `split` is being worked on.

        `total` is 0 where it is unknown. With `gradient_cosine`, the samples of `in_dist.fit` count twice: they are
        looked at before all others, too.
        """


@dataclass
class Counter:
    """Adds up samples and tells how far the extraction is.

    Attributes:
        total: how many samples are expected; 0 if that is unknown.
        progress: who is told.
        done: how many are there.
    """

    total: int
    progress: Progress | None
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
