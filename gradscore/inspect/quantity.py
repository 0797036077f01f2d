"""What all quantities have in common: what they are fed with, and what they keep of it.

A quantity is fed by an `Inspector`, or by hand: every kind has one method that takes what is to be looked at. It keeps
what it finds by measure ("norm") and layer, and answers in three ways: `value` (aggregates), `summary()` (rows for
tables) and `reset()` (a new epoch). Two quantities that saw different batches can be merged. What becomes of a value
that is observed again and again is at the end: moments, also with the values themselves, or over time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import islice
from math import isfinite, nan, sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..gradients import PerSample

Schedule = Callable[[int], bool]
"""From the number of a training step, counted from 0, to whether it is looked at."""

FLUSH = 512
"""Values that wait on a device before they are fetched together, since each fetch waits for the device; so few take no
memory to speak of."""

MODEL = "(model)"
"""The name under which figures of the whole model are kept."""


def every(steps: int) -> Schedule:
    """A schedule: the first step and then every so many; `ConfigError` for a number that is not positive."""
    if steps < 1:
        raise ConfigError(f"a schedule needs a positive number of steps, got {steps}")
    return partial(_is_multiple, steps)


def _is_multiple(steps: int, step: int) -> bool:
    return step % steps == 0


class Row(NamedTuple):
    """Figure: which measure of which layer, which statistic of it, and its value."""

    measure: str
    layer: str
    statistic: str
    value: float


class EpochFigure(NamedTuple):
    """A figure of an epoch."""

    epoch: int
    quantity: str
    measure: str
    layer: str
    statistic: str
    value: float


CALL = "#"
"""Stands between the name of a layer and the number of its call, from the second call of a pass on: `relu#2`."""


def layer_of(site: str) -> tuple[str, int]:
    """The layer of a call and the number of the call.

    Example:
        >>> layer_of("block.relu#2"), layer_of("conv")
        (('block.relu', 2), ('conv', 1))
    """
    name, _, number = site.rpartition(CALL)
    return (name, int(number)) if name and number.isdecimal() else (site, 1)


def model_order(names: Sequence[str]) -> Callable[[str], tuple[int, int]]:
    """Key that sorts names, and calls of layers, into the order of a model; others come last.

    Args:
        names: of layers and parameters in that order.
    """
    places = {name: place for place, name in enumerate(names)}

    def place(site: str) -> tuple[int, int]:
        layer, number = layer_of(site)
        return places.get(layer, len(places)), number

    return place


def ordered_rows(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """Rows measure by measure, layers in the order of the model, whose layers and parameters have these names."""
    found, place = list(rows), model_order(names)
    measures = {measure: number for number, measure in enumerate(dict.fromkeys(row.measure for row in found))}
    return sorted(found, key=lambda row: (measures[row.measure], place(row.layer)))


class Quantity(ABC):
    """Figures by measure and layer.

    Args:
        inplace: keep running moments instead of all values; quartiles need the values.
        line_aggregation: the statistics that are drawn as lines.
        range_aggregation: the ranges that are drawn as bands.
        schedule: the training steps that are looked at; all of them by default.
        log_scale: draw values on a logarithmic scale where all of them are positive.

    Attributes:
        name: under which tables and reports show it; a class sets it.
        title: of its section in reports; the name, if a class sets none.
        captions: a sentence for the plot of a measure, by measure.
        step: of training, which values belong to; set by an inspector, None without one.
        is_fed: whether an inspector is attached that feeds it.
        timelines: values over the steps of training, by measure and layer; a reset does not end them.
        joined: those of steps of which all processes have the values of all, where several train one model.

    Raises:
        ConfigError: an unknown statistic or range, or one that in-place aggregation does not have; a schedule that
            cannot be called; a class without `name`.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    captions: ClassVar[Mapping[str, str]] = {}
    _mergeable: ClassVar[tuple[str, ...]] = ("_aggregates", "timelines")
    """Attributes that hold what was found: dictionaries, of dictionaries, of what can be merged."""

    def __init__(
        self,
        *,
        inplace: bool = True,
        line_aggregation: str | Iterable[str] = "mean",
        range_aggregation: str | Iterable[str] | None = ("std", "min-max"),
        schedule: Schedule | None = None,
        log_scale: bool = False,
    ) -> None:
        if not getattr(self, "name", ""):
            raise ConfigError(f'{type(self).__name__} has no name: give the class one, as in `name = "saturation"`')
        if schedule is not None and not callable(schedule):
            raise ConfigError(f"{self.name}: a schedule is a function of the step, got {schedule!r}; use every(steps)")
        self.inplace, self.log_scale = inplace, log_scale
        self.lines = (line_aggregation,) if isinstance(line_aggregation, str) else tuple(line_aggregation)
        self.bands = (range_aggregation,) if isinstance(range_aggregation, str) else tuple(range_aggregation or ())
        if not self.lines:
            raise ConfigError(f'{self.name}: line_aggregation names no statistic; "mean" is one')
        for kind, names, known in (
            ("statistic", self.lines, (*POINTS, *QUARTILES)),
            ("range", self.bands, ("std", "min-max", "Q1-Q3")),
        ):
            for each in names:
                if each not in known:
                    raise ConfigError(f"no {kind} {each!r}; there are {', '.join(known)}")
                if inplace and (each in QUARTILES or each == "Q1-Q3"):
                    raise ConfigError(
                        f"{kind} {each!r} needs the values themselves, which in-place aggregation does not keep; "
                        "set inplace=False"
                    )
        self.schedule = schedule or every(1)
        self._aggregates: dict[str, dict[str, Running]] = {}
        self._waiting: list[tuple[str, str, Tensor, int | None]] = []
        self.step: int | None = None
        self.is_fed = False
        self.timelines: dict[str, dict[str, Timeline]] = {}
        self.joined: dict[str, dict[str, Timeline]] = {}

    def record(self, measure: str, layer: str, value: Tensor | float) -> None:
        """Adds a value, or all values of a tensor.

        Tensors on an accelerator wait there, and are fetched many at a time.

        Args:
            measure: what is measured.
            layer: of which layer.
            value: a number, or a tensor of any shape.
        """
        self._aggregates.setdefault(measure, {}).setdefault(layer, Running(keeps=not self.inplace))
        if isinstance(value, Tensor):
            self._waiting.append((measure, layer, value.detach().double().flatten(), self.step))
            if value.device.type == "cpu" or len(self._waiting) >= FLUSH:
                self.flush()
        else:
            self.flush()
            self._add(measure, layer, [float(value)], self.step)

    def caption(self, measure: str) -> str:
        """The sentence for the plot of a measure as it is set up; empty if there is none."""
        return self.captions.get(measure, "")

    @property
    def value(self) -> dict[str, dict[str, Running]]:
        """Aggregates by measure and layer, of everything since the start or the last `reset`."""
        self.flush()
        return self._aggregates

    def summary(self) -> Iterator[Row]:
        """All figures as rows."""
        for measure, layers in self.value.items():
            for layer, aggregate in layers.items():
                yield Row(measure, layer, "count", aggregate.count)
                yield Row(measure, layer, "non_finite", aggregate.non_finite)
                for name, value in aggregate.figures().items():
                    yield Row(measure, layer, name, value)

    def reset(self) -> None:
        """Forgets everything: a new epoch begins, whose figures come from its own batches alone."""
        self.flush()
        self._aggregates = {}

    def mergeable(self) -> dict[str, dict[Any, Any]]:
        """All that was found, by the attribute that holds it."""
        self.flush()
        return {name: vars(self)[name] for name in self._mergeable}

    def join(self, found: Mapping[str, Any]) -> None:
        """Takes what all processes found in the place of its own; what is in `timelines` is then in `joined`."""
        vars(self).update(found)
        merge_found(self.joined, self.timelines)
        self.timelines = {}

    def wants(self, module: nn.Module) -> bool:
        """Whether a layer is looked at; all are, unless a class says otherwise."""
        del module
        return True

    def flush(self) -> None:
        """Takes in the values that wait on an accelerator."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            numbers = iter(torch.cat([each[2].to(waiting[0][2].device) for each in waiting]).tolist())
            for measure, layer, value, step in waiting:
                self._add(measure, layer, list(islice(numbers, len(value))), step)

    def _add(self, measure: str, layer: str, values: list[float], step: int | None) -> None:
        aggregate = self._aggregates[measure][layer]
        for value in values:
            aggregate.add(value)
        if step is not None:
            self.timelines.setdefault(measure, {}).setdefault(layer, Timeline()).add(step, values)


def merge_found(mine: dict[Any, Any], others: Mapping[Any, Any]) -> None:
    """Takes in what other dictionaries hold, which may hold dictionaries: truth values of units, or what can merge."""
    for key, each in others.items():
        if key not in mine:
            mine[key] = deepcopy(each)
        elif isinstance(each, dict):
            merge_found(mine[key], each)
        elif isinstance(each, Tensor):
            mine[key] = mine[key] | each
        else:
            mine[key].merge(each)


class OutputQuantity(Quantity):
    """Looks at the outputs of layers, in every forward pass.

    Args:
        record_eval: look at evaluation passes, those without gradients, too.
        options: see `Quantity`.
    """

    def __init__(self, *, record_eval: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.record_eval = record_eval

    @abstractmethod
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        """Takes the output of a layer; of several outputs, the first tensor."""


class OutputGradientQuantity(Quantity):
    """Looks at the gradients of the loss with respect to the outputs of layers, in every backward pass."""

    @abstractmethod
    def observe(self, layer: str, module: nn.Module, gradient: Tensor) -> None:
        """Takes the gradient with respect to the output of a layer."""


class TensorQuantity(Quantity):
    """Looks at one tensor per name.

    Attributes:
        source: what an inspector feeds it with: the gradient of every parameter in every backward pass, or the
            parameters themselves before every training step and at the end of an epoch.
    """

    source: Literal["gradient", "parameter"] = "gradient"

    def is_news(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether parameters are worth a look, by what is known of the last one; they are, unless a class says not."""
        del tensors
        return True

    @abstractmethod
    def observe(self, name: str, tensor: Tensor) -> None:
        """Takes a tensor under the name of its parameter, or any other."""

    def finish(self) -> None:
        """All tensors of a step were observed: the place for figures of the whole model."""


class ModuleQuantity(Quantity):
    """Looks at modules themselves, at the end of every epoch."""

    @abstractmethod
    def observe(self, layer: str, module: nn.Module) -> None:
        """Takes a module."""


class SampleGradientQuantity(Quantity):
    """Looks at the gradients of single samples, one parameter at a time."""

    def start(self, samples: int) -> None:
        """A batch begins."""

    @abstractmethod
    def observe(self, name: str, parameter: Tensor, gradient: PerSample) -> None:
        """Takes the gradients of some samples of the batch with respect to one parameter.

        Args:
            name: of the parameter.
            parameter: its values.
            gradient: of some samples, `len(gradient)` of them; `gradient.blocks(budget)` gives all elements of all of
                them in any order, `gradient.dense(rows)` those of a few in the shape of the parameter. Both are good
                only until the method returns.
        """

    def observe_unreached(self, name: str, parameter: Tensor, samples: int) -> None:
        """Takes note of a parameter on which no loss of the batch depends: the gradients of its samples are zero."""

    def finish(self) -> None:
        """The batch is complete."""


POINTS = ("mean", "std", "min", "max")
"""Statistics that need no values."""

QUARTILES = ("median", "Q1", "Q3", "IQR")
"""Statistics that need the values themselves."""


class Running:
    """Count, mean, population variance, minimum and maximum of values; and, where these are kept, quartiles.

    Quartiles interpolate linearly between the two nearest values, as `numpy.quantile` does.

    Args:
        keeps: keep the values.

    Attributes:
        count: of finite values.
        non_finite: of values that are not finite, which are counted and nothing else.
        mean: of the finite values; NaN without any.
        minimum: smallest finite value; NaN without any.
        maximum: largest finite value; NaN without any.
        values: everything that was added, in order, finite or not, where values are kept.

    Source: Welford 1962, "Note on a method for calculating corrected sums of squares and products"; Chan, Golub,
        LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances", for `merge`.

    Example:
        >>> running = Running()
        >>> for value in (1.0, 2.0, 6.0):
        ...     running.add(value)
        >>> running.mean, running.figures()["max"]
        (3.0, 6.0)
    """

    count = non_finite = 0

    def __init__(self, *, keeps: bool = False) -> None:
        self.keeps, self.values = keeps, list[float]()
        self.mean = self.minimum = self.maximum = nan
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Takes in a value."""
        if self.keeps:
            self.values.append(value)
        if not isfinite(value):
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
        """Takes in everything another one holds, as if it had been added here."""
        self.values += other.values
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
        """All statistics of the finite values by name; NaN without any."""
        std = sqrt(self._squares / self.count) if self.count else nan
        found = {"mean": self.mean, "std": std, "min": self.minimum, "max": self.maximum}
        if not self.keeps:
            return found
        values = [value for value in self.values if isfinite(value)] or [nan]
        low, middle, high = (float(each) for each in np.quantile(values, [0.25, 0.5, 0.75]))
        return found | {"median": middle, "Q1": low, "Q3": high, "IQR": high - low}


def band_of(figures: Any, name: str) -> tuple[Any, Any] | None:
    """A range from low to high, `std` around the mean, `min-max` or `Q1-Q3`; None where a statistic is missing.

    Args:
        figures: statistics by name, numbers or columns.
        name: of the range.
    """
    if name == "std":
        low, high = "mean", "std"
    else:
        low, _, high = name.partition("-")
    if low not in figures or high not in figures:
        return None
    one, other = figures[low], figures[high]
    return (one - other, one + other) if name == "std" else (one, other)


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
        if place not in self._moments:
            self._moments[place] = Running()
            if len(self._moments) > CAPACITY:
                self._double()
                place //= 2
        return self._moments[place]

    def _double(self) -> None:
        before, self._moments = self._moments, {}
        self.width *= 2
        for place, moments in before.items():
            self._moments.setdefault(place // 2, Running()).merge(moments)
