"""What becomes of a value that is observed again and again: moments, the values themselves, or moments over time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from math import nan, sqrt
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError

POINTS = ("mean", "std", "min", "max")
"""Statistics that both aggregates have."""

QUARTILES = ("median", "Q1", "Q3", "IQR")
"""Statistics that need the values themselves."""

BANDS = ("std", "min-max", "Q1-Q3")
"""Ranges: mean less and plus one standard deviation, extremes, quartiles."""


class Aggregate(ABC):
    """Values that were observed, or what is kept of them; those that are not finite are counted apart."""

    in_place: ClassVar[bool]

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of finite values."""

    @property
    @abstractmethod
    def non_finite(self) -> int:
        """The number of values that are not finite."""

    @abstractmethod
    def add(self, value: float) -> None:
        """Takes in a value."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Takes in everything another aggregate of the same kind holds, as if it had been added here."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """All statistics of the finite values by name, `POINTS` first; NaN without any."""

    def point(self, name: str) -> float:
        """A statistic of the finite values; NaN without any.

        Args:
            name: one of `POINTS`, or of `QUARTILES` where the values are kept.

        Raises:
            ConfigError: another name.
        """
        check_statistics(points=[name], bands=[], in_place=self.in_place)
        return self.figures()[name]

    def band(self, name: str) -> tuple[float, float]:
        """A range, from low to high, by a name of `BANDS`; `ConfigError` for `Q1-Q3` without the values."""
        check_statistics(points=[], bands=[name], in_place=self.in_place)
        if name == "std":
            mean, std = self.point("mean"), self.point("std")
            return mean - std, mean + std
        low, _, high = name.partition("-")
        return self.point(low), self.point(high)


class Running(Aggregate):
    """Count, mean, population variance, minimum and maximum of values, without keeping them.

    Attributes:
        mean: of the finite values; NaN without any.
        minimum: smallest finite value; NaN without any.
        maximum: largest finite value; NaN without any.

    Source: Welford 1962, "Note on a method for calculating corrected sums of squares and products"; Chan, Golub,
        LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances", for `merge`.

    Example:
        >>> running = Running()
        >>> for value in (1.0, 2.0, 6.0):
        ...     running.add(value)
        >>> running.mean, running.point("max")
        (3.0, 6.0)
    """

    in_place = True
    count = non_finite = 0

    def __init__(self) -> None:
        self.mean = self.minimum = self.maximum = nan
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Takes in a value."""
        if not math.isfinite(value):
            self.non_finite += 1
            return
        self.count += 1
        if self.count == 1:
            self.mean = self.minimum = self.maximum = value
            return
        difference = value - self.mean
        self.mean += difference / self.count
        self._squares += difference * (value - self.mean)
        self.minimum, self.maximum = min(self.minimum, value), max(self.maximum, value)

    def merge(self, other: Self) -> None:
        """See `Aggregate.merge`."""
        self.non_finite += other.non_finite
        if not other.count:
            return
        if not self.count:
            self.mean, self.minimum, self.maximum = other.mean, other.minimum, other.maximum
        else:
            difference = other.mean - self.mean
            total = self.count + other.count
            self._squares += difference**2 * self.count * other.count / total
            self.mean += difference * other.count / total
            self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self._squares += other._squares
        self.count += other.count

    def figures(self) -> dict[str, float]:
        """See `Aggregate.figures`."""
        std = sqrt(self._squares / self.count) if self.count else nan
        return {"mean": self.mean, "std": std, "min": self.minimum, "max": self.maximum}


class Series(Aggregate):
    """Values kept in memory, in order; the same answers as `Running`, and quartiles.

    Quartiles interpolate linearly between the two nearest values, as `numpy.quantile` does.

    Attributes:
        values: everything that was added, in order, finite or not.
    """

    in_place = False

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, value: float) -> None:
        """Takes in a value."""
        self.values.append(value)

    def merge(self, other: Self) -> None:
        """See `Aggregate.merge`."""
        self.values += other.values

    @property
    def count(self) -> int:
        """The number of finite values."""
        return len(self._finite())

    @property
    def non_finite(self) -> int:
        """The number of values that are not finite."""
        return len(self.values) - self.count

    def figures(self) -> dict[str, float]:
        """See `Aggregate.figures`."""
        values = self._finite()
        if not len(values):
            return dict.fromkeys((*POINTS, *QUARTILES), nan)
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        quartiles = {"median": float(middle), "Q1": float(low), "Q3": float(high), "IQR": float(high - low)}
        points = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
        return {**{name: float(value) for name, value in points.items()}, **quartiles}

    def _finite(self) -> NDArray[np.float64]:
        values = np.asarray(self.values, dtype=np.float64)
        return values[np.isfinite(values)]


def check_statistics(*, points: Iterable[str], bands: Iterable[str], in_place: bool) -> None:
    """Makes sure that statistics exist, and that in-place aggregation has them.

    Args:
        points: names of single figures.
        bands: names of ranges.
        in_place: whether the values themselves are not kept.

    Raises:
        ConfigError: one of them does not, or needs in-memory aggregation.
    """
    for kind, names, known in (("statistic", points, (*POINTS, *QUARTILES)), ("range", bands, BANDS)):
        for name in names:
            if name not in known:
                raise ConfigError(f"no {kind} {name!r}; there are {', '.join(known)}")
            if in_place and (name in QUARTILES or name == "Q1-Q3"):
                raise ConfigError(
                    f"{kind} {name!r} needs the values themselves, which in-place aggregation does not keep; "
                    "set inplace=False"
                )


CAPACITY = 256
"""Stretches of steps that are kept: one for every three or four pixels of a plot."""


class Timeline:
    """Moments of a value over stretches of steps of equal length, which double when there are too many.

    Nothing is dropped: mean, extremes and values that are not finite are those of all values of a stretch.

    Attributes:
        width: steps of a stretch, a power of two.

    Example:
        >>> timeline = Timeline()
        >>> for step in range(1000):
        ...     timeline.add(step, [float(step)])
        >>> timeline.width, [(start, moments.maximum) for start, _, moments in timeline.stretches()][-1]
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

    def stretches(self) -> Iterator[tuple[int, int, Running]]:
        """First step, step after the last one, and moments of each stretch in which something was observed."""
        for place in sorted(self._moments):
            yield place * self.width, (place + 1) * self.width, self._moments[place]

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
            self._moments.setdefault(place // 2, Running()).merge(moments)
