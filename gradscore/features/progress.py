"""How far an extraction is."""

from __future__ import annotations

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
