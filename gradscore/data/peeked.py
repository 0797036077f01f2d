"""Samples whose first batch was looked at before the others are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from .samples import Batch


class SampleStream(Protocol):
    """Samples that come in batches."""

    @property
    def name(self) -> str:
        """What to call them in messages."""

    @property
    def samples(self) -> int | None:
        """How many there are, where that is known without reading them."""

    def batches(self) -> Iterator[Batch]:
        """All of them, in order."""


@dataclass(frozen=True)
class Peeked:
    """Samples that are read once, with the first batch at hand.

    Attributes:
        first: the first batch.
        name: what to call them in messages.
        samples: how many there are, where that is known.
        batches: all of them in order, `first` among them.
    """

    first: Batch
    name: str
    samples: int | None
    batches: Iterator[Batch]

    @classmethod
    def of(cls, samples: SampleStream) -> Peeked:
        """Reads the first batch.

        Raises:
            DataError: as `samples.batches`, which give one batch at least.
        """
        batches = samples.batches()
        first = next(batches)
        return cls(first, samples.name, samples.samples, chain([first], batches))
