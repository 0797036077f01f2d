"""Watching a model while it runs: what feeds quantities, epoch by epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self, TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from ..errors import ConfigError, EngineError
from ..gradients import Engine
from .hooks import leaf_modules
from .quantities.quantity import (
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    Row,
    SampleGradientQuantity,
    TensorQuantity,
)
from .rows import Entry, model_order, ordered_rows
from .samples import observe_samples, observe_training
from .watcher import Watcher

Named = TypeVar("Named")

COLUMNS = ["epoch", "quantity", "measure", "layer", "statistic", "value"]


class InspectionWarning(UserWarning):
    """Something that was asked for is not seen."""


EpochCallback = Callable[["Inspector"], None]
"""Is called at the end of every epoch, while the quantities still hold it."""


class Inspector:
    """Feeds quantities from a model that trains, or that is only run.

    A step is a forward pass of the model with gradients enabled. Whether a quantity looks at it, is for its schedule to
    say; passes without gradients are offered to every quantity that looks at outputs. A further forward pass within a
    step belongs into `paused`.

    A layer that is called again within a pass has figures of its own for every call: `relu`, `relu#2`, and so on.
    Copies of the model, and files it is saved to, hold nothing of the inspector.

    Args:
        model: what is watched.
        quantities: what is fed.
        layers: shell patterns on the names of layers: of modules without submodules.
        parameters: shell patterns on the names of parameters.
        on_epoch: called by `tick_epoch`, for writing things elsewhere.

    Attributes:
        epoch: number of the epoch, counted from 0.
        history: the figures of all epochs.

    Raises:
        ConfigError: two quantities of the same name, or a pattern that matches nothing.

    Example:
        >>> from gradscore.inspect import GradientGeometry
        >>> model = nn.Linear(2, 1)
        >>> with Inspector(model, [GradientGeometry()]) as inspector:
        ...     model(torch.ones(4, 2)).mean().backward()
        ...     figures = inspector.tick_epoch()
        >>> [entry.row.value for entry in figures if entry.row.layer == "bias" and entry.row.statistic == "mean"]
        [1.0]
    """

    def __init__(
        self,
        model: nn.Module,
        quantities: Sequence[Quantity],
        *,
        layers: Sequence[str] = ("*",),
        parameters: Sequence[str] = ("*",),
        on_epoch: Sequence[EpochCallback] = (),
    ) -> None:
        names = [quantity.name for quantity in quantities]
        if len(set(names)) < len(names):
            raise ConfigError(f"two quantities of the same name, {', '.join(names)}: give one of them another `name`")
        self.model, self.quantities, self.on_epoch = model, list(quantities), list(on_epoch)
        self.layers = _chosen(leaf_modules(model), layers, "layer")
        self.parameters = _chosen(dict(model.named_parameters()), parameters, "parameter")
        self.epoch = 0
        self.history: list[Entry] = []
        self._engine: Engine | None = None
        self._watcher = Watcher(model, self.layers, self.parameters, self.quantities, begin=self._begin)
        self._saw_samples = self._samples_were_due = False

    @property
    def step(self) -> int:
        """Number of the last step, counted from 0; -1 before the first."""
        return self._watcher.step

    def attach(self, *, count_steps: bool = True) -> Self:
        """Registers hooks; `detach` removes them.

        Args:
            count_steps: a forward pass of the model with gradients begins a step; otherwise `start_step` does.

        Raises:
            ConfigError: it is attached already, or a part of the model is compiled.
        """
        self._watcher.attach(count_steps=count_steps)
        return self

    def detach(self) -> None:
        """Removes all hooks. The model is as it was; what was found stays."""
        self._watcher.detach()

    def __enter__(self) -> Self:
        """Attaches."""
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detaches, whatever happened."""
        self.detach()

    def start_step(self) -> None:
        """Begins a step, for loops in which a step is not a forward pass of the model."""
        self._watcher.step += 1
        self._samples_were_due |= bool(self._due())
        self._watcher.watch_parameters()
        self.begin_pass()
        self.observe_parameters()

    def begin_pass(self) -> None:
        """Begins a pass, for loops that do not call the model itself, but parts of it; `start_step` does so, too."""
        self._watcher.begin_pass()

    def observe_losses(self, losses: Tensor) -> None:
        """Feeds the quantities that look at gradients of single samples; to be called before `backward`.

        Args:
            losses: (N,) with a graph, which is kept: loss n must depend on nothing but sample n and the parameters, so
                batch norm has to be in eval mode.

        Raises:
            CoupledSamplesError: the losses depend on one another.
            EngineError: gradients that cannot be computed, or losses of another shape.
        """
        _check_losses(losses)
        self._saw_samples = True
        due = self._due()
        if due:
            with self.paused():
                observe_samples(self._samples_of(), losses, torch.ones_like(losses), due, retain_graph=True)

    def backward(self, losses: Tensor, *, weight: float | None = None) -> None:
        """Does what `losses.mean().backward()` does, and feeds the quantities that look at gradients of single samples.

        It takes one backward pass instead of the two of `observe_losses`, for losses that are all there is to train on.

        Args:
            losses: (N,) as for `observe_losses`; their graph is not kept.
            weight: of each loss in what is trained on: 1 / N unless it is given, 1 for a sum, the scale over N with a
                gradient scaler. Gradients of single samples are those of the losses themselves.

        Raises:
            CoupledSamplesError: the losses depend on one another.
            EngineError: gradients that cannot be computed, losses of another shape, or a weight of zero.
        """
        _check_losses(losses)
        self._saw_samples = True
        weight = 1 / len(losses) if weight is None else weight
        due = self._due()
        if not due:
            torch.autograd.backward(losses, torch.full_like(losses, weight))
            return
        around = self._with_pause(self._watcher.paused)
        with self.paused():
            observe_training(self._samples_of(), losses, due, weight=weight, around=around)

    def observe_modules(self) -> None:
        """Feeds the quantities that look at modules; `tick_epoch` does, too."""
        for name, module in self.layers.items():
            for quantity in self._of(ModuleQuantity, module):
                quantity.observe(name, module)

    def observe_parameters(self) -> None:
        """Feeds the quantities that look at parameters; every step and `tick_epoch` do, too."""
        for quantity in self._of(TensorQuantity):
            due = quantity.source == "parameter" and self._watcher.is_due(quantity)
            if due and quantity.is_news(self.parameters):
                for name, parameter in self.parameters.items():
                    quantity.observe(name, parameter)

    def tick_epoch(self) -> list[Entry]:
        """Ends an epoch: its figures join the history, the quantities start anew.

        Returns:
            The figures, measure by measure, layers in the order of the model.
        """
        self._warn_of_nothing()
        self.observe_parameters()
        self.observe_modules()
        place = model_order([*self.layers, *self.parameters])
        found = [
            Entry(self.epoch, quantity.name, row)
            for quantity in self.quantities
            for row in ordered_rows(quantity.summary(), place)
        ]
        self.history += found
        for callback in self.on_epoch:
            callback(self)
        for quantity in self.quantities:
            quantity.reset()
        self.epoch += 1
        return found

    def table(self) -> pd.DataFrame:
        """The history as a table with columns epoch, quantity, measure, layer, statistic, value."""
        rows = [(entry.epoch, entry.quantity, *_fields(entry.row)) for entry in self.history]
        return pd.DataFrame(rows, columns=COLUMNS)

    def paused(self) -> AbstractContextManager[None]:
        """Looks at nothing while the block runs: for a forward pass that is no step.

        A model with batch norm trains on another pass than the one whose samples are looked at:

            with inspector.paused():
                losses = criterion(model.eval()(inputs), labels)
            inspector.observe_losses(losses)
            criterion(model.train()(inputs), labels).mean().backward()
        """
        return self._with_pause(True)

    @contextmanager
    def _with_pause(self, paused: bool) -> Iterator[None]:
        before, self._watcher.paused = self._watcher.paused, paused
        try:
            yield
        finally:
            self._watcher.paused = before

    def _due(self) -> list[SampleGradientQuantity]:
        return [quantity for quantity in self._of(SampleGradientQuantity) if self._watcher.is_due(quantity)]

    def _samples_of(self) -> Engine:
        wanted = {name: each for name, each in self.parameters.items() if each.requires_grad}
        if self._engine is None or self._engine.parameters.keys() != wanted.keys():
            self._engine = Engine(wanted)
        return self._engine

    def _of(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        return self._watcher.of(kind, module)

    def _begin(self, is_step: bool) -> None:
        if is_step:
            self.start_step()
        else:
            self.begin_pass()

    def _warn_of_nothing(self) -> None:
        """Says which quantities had nothing to look at in an epoch, and why."""
        if self._samples_were_due and not self._saw_samples:
            _warn(
                self._of(SampleGradientQuantity),
                "gradients of single samples need inspector.backward(losses), or inspector.observe_losses(losses) "
                "before a backward pass of your own",
            )
        hooks = [*self._of(OutputQuantity), *self._of(OutputGradientQuantity)]
        hooks += [quantity for quantity in self._of(TensorQuantity) if quantity.source == "gradient"]
        if hooks and self._watcher.is_attached and not self._watcher.saw:
            _warn(
                hooks,
                "no layer of the watched model was run; train that very model, and as it was before torch.compile",
            )
        self._saw_samples = self._samples_were_due = self._watcher.saw = False


def _warn(quantities: Sequence[Quantity], why: str) -> None:
    names = ", ".join(quantity.name for quantity in quantities)
    warnings.warn(f"{names}: nothing was seen in this epoch, because {why}", InspectionWarning, stacklevel=4)


def _check_losses(losses: Tensor) -> None:
    if losses.dim() != 1 or not len(losses):
        raise EngineError(
            f"losses of single samples have shape (N,), got {tuple(losses.shape)}; make them with reduction='none'"
        )


def _chosen(named: Mapping[str, Named], patterns: Sequence[str], what: str) -> dict[str, Named]:
    for pattern in patterns:
        if named and not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(f"{pattern!r} matches no {what}; there are {', '.join(list(named)[:8])} ...")
    return {name: each for name, each in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _fields(row: Row) -> tuple[str, str, str, float]:
    return row.measure, row.layer, row.statistic, row.value
