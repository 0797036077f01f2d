"""A value over the steps of training, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .aggregate import Running

CAPACITY = 256
"""Stretches of steps that are kept: one for every three or four pixels of a plot."""


@dataclass(frozen=True)
class Stretch:
    """Some steps in a row.

    Attributes:
        start: the first step.
        stop: the step after the last one.
        moments: of the values that were observed in them.
    """

    start: int
    stop: int
    moments: Running


class Timeline:
    """Moments of a value over stretches of steps of equal length, which double when there are too many.

    Nothing is dropped: mean, extremes and values that are not finite are those of all values of a stretch.

    Attributes:
        width: steps of a stretch, a power of two.

    Example:
        >>> timeline = Timeline()
        >>> for step in range(1000):
        ...     timeline.add(step, [float(step)])
        >>> timeline.width, [(each.start, each.moments.maximum) for each in timeline.stretches()][-1]
        (4, (996, 999.0))
    """

    def __init__(self) -> None:
        self.width = 1
        self._moments: dict[int, Running] = {}

    def add(self, step: int, values: Iterable[float]) -> None:
        """Takes the values of a step."""
        moments = self._at(step // self.width)
        for value in values:
            moments.add(value)

    def merge(self, other: Timeline) -> None:
        """Takes in what another one holds, of the same steps."""
        while self.width < other.width:
            self._double()
        for place, moments in other._moments.items():
            self._at(place * other.width // self.width).merge(moments)

    def stretches(self) -> Iterator[Stretch]:
        """The stretches in which something was observed, in order."""
        for place in sorted(self._moments):
            yield Stretch(place * self.width, (place + 1) * self.width, self._moments[place])

    def _at(self, place: int) -> Running:
        found = self._moments.get(place)
        if found is None:
            found = self._moments[place] = Running()
            if len(self._moments) > CAPACITY:
                step = place * self.width
                self._double()
                return self._moments[step // self.width]
        return found

    def _double(self) -> None:
        before, self._moments = self._moments, {}
        self.width *= 2
        for place, moments in before.items():
            if place // 2 in self._moments:
                self._moments[place // 2].merge(moments)
            else:
                self._moments[place // 2] = moments
