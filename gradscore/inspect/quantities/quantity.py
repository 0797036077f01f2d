"""What all quantities have in common, and what the kinds of them are fed with.

A quantity is fed by an `Inspector`, or by hand: every kind has one method that takes what is to be looked at. It keeps
what it finds by measure ("norm") and layer, and answers in three ways: `value` (aggregates), `summary()` (rows for
tables) and `reset()` (a new epoch). Two quantities that saw different batches can be merged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from ...errors import ConfigError
from ...gradients import PerSample
from .aggregates import Aggregate, Running, Series, Timeline, check_statistics

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


@dataclass(frozen=True)
class Row:
    """One figure: which measure of which layer, which statistic of it, and its value."""

    measure: str
    layer: str
    statistic: str
    value: float


@dataclass(frozen=True)
class Entry:
    """A figure of an epoch."""

    epoch: int
    quantity: str
    row: Row


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
    """What sorts names, and calls of layers, into the order of a model; others come last.

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
        timelines: values over the steps of training, by measure and layer; a reset does not end them.
        joined: those of steps of which all processes have the values of all, where several train one model.

    Raises:
        ConfigError: an unknown statistic or range, or one that in-place aggregation does not have; a schedule that
            cannot be called; a class without `name`.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    captions: ClassVar[Mapping[str, str]] = {}

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
        check_statistics(points=self.lines, bands=self.bands, in_place=inplace)
        self.schedule = schedule or every(1)
        self._aggregates: dict[str, dict[str, Aggregate]] = {}
        self._waiting: list[tuple[str, str, Tensor, int | None]] = []
        self.step: int | None = None
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
        self._aggregates.setdefault(measure, {}).setdefault(layer, Running() if self.inplace else Series())
        if isinstance(value, Tensor):
            self._waiting.append((measure, layer, value.detach().double().flatten(), self.step))
            if value.device.type == "cpu" or len(self._waiting) >= FLUSH:
                self._flush()
        else:
            self._flush()
            self._add(measure, layer, [float(value)], self.step)

    def caption(self, measure: str) -> str:
        """The sentence for the plot of a measure as it is set up; empty if there is none."""
        return self.captions.get(measure, "")

    @property
    def value(self) -> dict[str, dict[str, Aggregate]]:
        """Aggregates by measure and layer, of everything since the start or the last `reset`."""
        self._flush()
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
        self._flush()
        self._aggregates = {}

    def merge(self, other: Self) -> None:
        """Takes in what another quantity of the same settings found in other batches.

        Raises:
            ConfigError: the other one is of another class or aggregates in another way.
        """
        if type(other) is not type(self) or other.inplace != self.inplace:
            raise ConfigError(f"{self.name}: only a {type(self).__name__} of the same settings can be merged")
        for measure, layers in other.value.items():
            for layer, aggregate in layers.items():
                mine = self.value.setdefault(measure, {})
                mine.setdefault(layer, Running() if self.inplace else Series()).merge(aggregate)
        self.merge_timelines(other)

    def merge_timelines(self, other: Quantity) -> None:
        """Takes in the timelines of another quantity, of the same steps."""
        _merge(self.timelines, other.timelines)

    def join(self) -> None:
        """Moves what is in `timelines` to `joined`: it is the same in all processes."""
        _merge(self.joined, self.timelines)
        self.timelines = {}

    def wants(self, module: nn.Module) -> bool:
        """Whether a layer is looked at; all are, unless a class says otherwise."""
        del module
        return True

    def _flush(self) -> None:
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


def _merge(mine: dict[str, dict[str, Timeline]], others: Mapping[str, Mapping[str, Timeline]]) -> None:
    for measure, layers in others.items():
        for layer, timeline in layers.items():
            mine.setdefault(measure, {}).setdefault(layer, Timeline()).merge(timeline)


class OutputQuantity(Quantity):
    """Looks at the outputs of layers, in every forward pass.

    Args:
        record_eval: look at evaluation passes too.
        evaluation_from_grad: tell evaluation from gradients being disabled; otherwise from `module.training`.
        options: see `Quantity`.
    """

    def __init__(self, *, record_eval: bool = False, evaluation_from_grad: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.record_eval = record_eval
        self.evaluation_from_grad = evaluation_from_grad

    def is_training(self, module: nn.Module) -> bool:
        """Whether the pass that is running is a training pass."""
        return torch.is_grad_enabled() if self.evaluation_from_grad else module.training

    @abstractmethod
    def observe(self, layer: str, module: nn.Module, output: Tensor) -> None:
        """Takes the output of a layer; of several outputs, the first tensor."""


class OutputGradientQuantity(Quantity):
    """Looks at the gradients of the loss with respect to the outputs of layers, in every backward pass."""

    @abstractmethod
    def observe(self, layer: str, module: nn.Module, gradient: Tensor) -> None:
        """Takes the gradient with respect to the output of a layer."""


class InputQuantity(Quantity):
    """Looks at the inputs of layers, in every forward pass with gradients."""

    @abstractmethod
    def observe(self, layer: str, module: nn.Module, given: Tensor) -> None:
        """Takes the input of a layer, before the layer can change it in place; of several inputs, the first tensor."""


class InputGradientQuantity(Quantity):
    """Looks at the gradients of the loss with respect to the inputs of layers, in every backward pass.

    The gradient is that of the tensor a layer is given, from all that uses it: beside a layer whose input skips it,
    from the skip as well. Inputs that need no gradient, as those of the model, have none.
    """

    @abstractmethod
    def observe(self, layer: str, module: nn.Module, gradient: Tensor) -> None:
        """Takes the gradient with respect to the input of a layer; of several inputs, the first tensor."""


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

    def finish(self) -> None:
        """The batch is complete."""
