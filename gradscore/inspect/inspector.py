"""Watching a model while it runs: hooks that feed quantities, and go without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from ..errors import ConfigError, EngineError
from ..gradients import Engine
from .quantities.quantity import (
    MODEL,
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    Row,
    SampleGradientQuantity,
    TensorQuantity,
)
from .samples import observe_samples, observe_training

Named = TypeVar("Named")

COLUMNS = ["epoch", "quantity", "measure", "layer", "statistic", "value"]


@dataclass(frozen=True)
class Entry:
    """A figure of an epoch."""

    epoch: int
    quantity: str
    row: Row


EpochCallback = Callable[["Inspector"], None]
"""Is called at the end of every epoch, while the quantities still hold it."""


class Inspector:
    """Feeds quantities from a model that trains, or that is only run.

    A step is a forward pass of the model with gradients enabled. Whether a quantity looks at it, is for its schedule to
    say; passes without gradients are offered to every quantity that looks at outputs.

    Args:
        model: what is watched.
        quantities: what is fed.
        layers: shell patterns on the names of layers: of modules without submodules.
        parameters: shell patterns on the names of parameters.
        on_epoch: called by `tick_epoch`, for writing things elsewhere.

    Attributes:
        step: number of the last step, counted from 0; -1 before the first.
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
        self.step, self.epoch = -1, 0
        self.history: list[Entry] = []
        self._engine: Engine | None = None
        self._stack: ExitStack | None = None
        self._paused = False

    def attach(self, *, count_steps: bool = True) -> Self:
        """Registers hooks; `detach` removes them.

        Args:
            count_steps: a forward pass of the model with gradients begins a step; otherwise `start_step` does.

        Raises:
            ConfigError: it is attached already.
        """
        if self._stack is not None:
            raise ConfigError("the inspector is attached already; call detach() first")
        with ExitStack() as stack:
            if count_steps:
                stack.callback(self.model.register_forward_pre_hook(self._begin).remove)
            for name, module in self.layers.items():
                if self._of(OutputQuantity, module) or self._of(OutputGradientQuantity, module):
                    stack.callback(module.register_forward_hook(partial(self._after_layer, name)).remove)
            if any(quantity.source == "gradient" for quantity in self._of(TensorQuantity)):
                for name, parameter in self.parameters.items():
                    if parameter.requires_grad:
                        stack.enter_context(_hooked(parameter, partial(self._after_gradient, name)))
            self._stack = stack.pop_all()
        return self

    def detach(self) -> None:
        """Removes all hooks. The model is as it was; what was found stays."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

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
        self.step += 1
        self.observe_parameters()

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
        weight = 1 / len(losses) if weight is None else weight
        due = self._due()
        if not due:
            torch.autograd.backward(losses, torch.full_like(losses, weight))
            return
        around = self._with_pause(self._paused)
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
            if quantity.source == "parameter" and quantity.schedule(max(0, self.step)):
                for name, parameter in self.parameters.items():
                    quantity.observe(name, parameter)

    def tick_epoch(self) -> list[Entry]:
        """Ends an epoch: its figures join the history, the quantities start anew.

        Returns:
            The figures.
        """
        self.observe_parameters()
        self.observe_modules()
        found = [Entry(self.epoch, quantity.name, row) for quantity in self.quantities for row in quantity.summary()]
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
        """Looks at nothing while the block runs."""
        return self._with_pause(True)

    @contextmanager
    def _with_pause(self, paused: bool) -> Iterator[None]:
        before, self._paused = self._paused, paused
        try:
            yield
        finally:
            self._paused = before

    def _due(self) -> list[SampleGradientQuantity]:
        return [quantity for quantity in self._of(SampleGradientQuantity) if quantity.schedule(max(0, self.step))]

    def _samples_of(self) -> Engine:
        if self._engine is None:
            self._engine = Engine({name: each for name, each in self.parameters.items() if each.requires_grad})
        return self._engine

    def _of(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        return [
            quantity
            for quantity in self.quantities
            if isinstance(quantity, kind) and (module is None or quantity.wants(module))
        ]

    def _begin(self, module: nn.Module, inputs: object) -> None:
        del module, inputs
        if torch.is_grad_enabled() and not self._paused:
            self.start_step()

    def _after_layer(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        del inputs
        tensor = first_tensor(output)
        if self._paused or tensor is None:
            return
        for quantity in self._of(OutputQuantity, module):
            if not torch.is_grad_enabled() or quantity.schedule(max(0, self.step)):
                quantity.observe(name, module, tensor)
        gradients = [
            quantity for quantity in self._of(OutputGradientQuantity, module) if quantity.schedule(max(0, self.step))
        ]
        if gradients and tensor.requires_grad:
            hooked: Any = tensor
            hooked.register_hook(partial(self._after_output_gradient, name, module, gradients))

    def _after_output_gradient(
        self, name: str, module: nn.Module, quantities: list[OutputGradientQuantity], gradient: Tensor
    ) -> None:
        if self._stack is not None and not self._paused:
            for quantity in quantities:
                quantity.observe(name, module, gradient)

    def _after_gradient(self, name: str, gradient: Tensor) -> None:
        if not self._paused:
            for quantity in self._of(TensorQuantity):
                if quantity.source == "gradient" and quantity.schedule(max(0, self.step)):
                    quantity.observe(name, gradient)


def leaf_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules without submodules by name, in the order of the model; a model that has none is its own layer."""
    return {name or MODEL: module for name, module in model.named_modules() if not any(module.children())}


def _check_losses(losses: Tensor) -> None:
    if losses.dim() != 1 or not len(losses):
        raise EngineError(
            f"losses of single samples have shape (N,), got {tuple(losses.shape)}; make them with reduction='none'"
        )


def first_tensor(output: object) -> Tensor | None:
    """The output, or the first tensor in a tuple, list or dictionary of outputs."""
    if isinstance(output, Tensor):
        return output
    items = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((tensor for tensor in map(first_tensor, items) if tensor is not None), None)


@contextmanager
def _hooked(parameter: Any, hook: Callable[[Tensor], None]) -> Iterator[None]:
    """A hook on the gradient of a parameter; afterwards the parameter has the attributes it had before."""
    before = parameter._backward_hooks
    handle = parameter.register_hook(hook)
    try:
        yield
    finally:
        handle.remove()
        if before is None and not parameter._backward_hooks:
            parameter._backward_hooks = None


def _chosen(named: Mapping[str, Named], patterns: Sequence[str], what: str) -> dict[str, Named]:
    for pattern in patterns:
        if named and not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(f"{pattern!r} matches no {what}; there are {', '.join(list(named)[:8])} ...")
    return {name: each for name, each in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _fields(row: Row) -> tuple[str, str, str, float]:
    return row.measure, row.layer, row.statistic, row.value
