"""Watching a model while it runs: what feeds quantities, epoch by epoch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd
import torch
from torch import Tensor, distributed, nn

from ..errors import ConfigError, EngineError
from ..gradients import Engine
from ..models import first_tensor
from ..system import checked_but, some, unwatched
from .findings import Finding
from .health import TrainingHealth
from .hooks import (
    Calls,
    Hook,
    hooked,
    in_backward,
    leaf_modules,
    learning_modules,
    refuse_compiled,
    watch_gradient,
)
from .quantity import (
    MODEL,
    EpochFigure,
    ModuleQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    SampleGradientQuantity,
    Schedule,
    TensorQuantity,
    merge_found,
    ordered_rows,
)
from .sample_gradients import feeding
from .training_report import LOSS, RATE, Logbook, TrainingLoop, TrainingRecord, write_training

Named = TypeVar("Named")


class InspectionWarning(UserWarning):
    """Something that was asked for is not seen."""


class Inspector:
    """Feeds quantities from a model that trains, or that is only run.

    A step is a forward pass of the model with gradients enabled; a quantity looks at those of its schedule. Passes
    without gradients are offered to every quantity that looks at outputs. A further forward pass within a step goes
    into `paused`.

    A layer that is called again within a pass has figures of its own for every call: `relu`, `relu#2`, and so on.
    Copies of the model, and files it is saved to, hold nothing of the inspector.

    Args:
        model: what is watched.
        quantities: what is fed.
        layers: shell patterns, or one, on the names of layers, which are modules without submodules; and whole names of
            others, of blocks and of attention for example.
        parameters: shell patterns on the names of parameters.
        optimizer: whose learning rates are kept for `report`.
        health: the steps at which `findings` are looked for; none by default.
        name: of the run, for `report`.

    Attributes:
        epoch: number of the epoch, counted from 0.
        step: number of the last step, counted from 0; -1 before the first.
        history: the figures of all epochs.

    Raises:
        ConfigError: two quantities of the same name, a pattern that matches nothing, or something of another kind.

    Examples:
        >>> from gradscore.inspect import GradientGeometry
        >>> model = nn.Linear(2, 1)
        >>> with Inspector(model, [GradientGeometry()]) as inspector:
        ...     model(torch.ones(4, 2)).mean().backward()
        ...     figures = inspector.tick_epoch()
        >>> [entry.value for entry in figures if entry.layer == "bias" and entry.statistic == "mean"]
        [1.0]
    """

    @checked_but("optimizer")  # those of others have param_groups as well
    def __init__(
        self,
        model: nn.Module,
        quantities: Sequence[Quantity],
        *,
        layers: Sequence[str] = ("*",),
        parameters: Sequence[str] = ("*",),
        optimizer: torch.optim.Optimizer | None = None,
        health: Schedule | None = None,
        name: str = "run",
    ) -> None:
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise ConfigError(f"optimizer: wanted one with param_groups, got {type(optimizer).__name__}")
        names = [quantity.name for quantity in quantities]
        if twice := next((each for each in quantities if names.count(each.name) > 1), None):
            kind = type(twice).__name__
            raise ConfigError(
                f"two quantities of the same name, {twice.name!r}: derive a class with another one, as in "
                f'`class Second({kind}): name = "second"`, and give one of them as Second(...)'
            )
        layers, patterns = ((each,) if isinstance(each, str) else each for each in (layers, parameters))
        self.model, self.quantities, self.step = model, list(quantities), -1
        self.layers = chosen_layers(model, layers)
        self.parameters = chosen(dict(model.named_parameters()), patterns, "parameter")
        self._health, self._is_examined = TrainingHealth(model, self.parameters, health or _never), health is not None
        self._is_paused = self._saw = False  # the latter: whether a layer or a gradient was seen in this epoch
        self._counts_steps = True
        self._stack: ExitStack | None = None
        self._hooked: set[str] = set()
        self._calls, self._recalls = Calls(), Calls()
        self._with_gradients: set[str] = set()
        # Attention, say, has parameters of its own and a layer within.
        self._owners = learning_modules(model) if tuple(layers) == ("*",) else {}
        self.epoch, self.name, self.optimizer = 0, str(name), optimizer
        self.history: list[EpochFigure] = []
        self._engine: Engine | None = None
        self._loop, self._logbook = TrainingLoop(), Logbook()
        self._saw_samples = self._samples_were_due = False

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, and a pickle.

        Raises:
            ConfigError: the inspector is attached: hooks of the model belong to one inspector.
        """
        if self._stack is not None:
            raise ConfigError("the inspector is attached, so it cannot be copied or pickled; call detach() first")
        return self.__dict__

    def attach(self, *, count_steps: bool = True) -> Self:
        """Registers hooks; `detach` removes them.

        Args:
            count_steps: a forward pass of the model with gradients begins a step; otherwise `start_step` does.

        Raises:
            ConfigError: it is attached already, or a part of the model is compiled.
        """
        if self._stack is not None:
            raise ConfigError("the inspector is attached already; call detach() first")
        if fed := [quantity.name for quantity in self.quantities if quantity.is_fed]:
            raise ConfigError(f"another inspector that is attached feeds {fed[0]}: make quantities for each inspector")
        refuse_compiled(self.model)
        self._counts_steps = count_steps
        with ExitStack() as stack:
            stack.callback(self.model.register_forward_pre_hook(Hook(self._before)).remove)
            if self._is_examined:
                self._health.attach(stack)
            for name, module in self.layers.items():
                if self._of(OutputQuantity, module) or self._of(OutputGradientQuantity, module):
                    stack.callback(module.register_forward_hook(Hook(partial(self._after_layer, name))).remove)
            for quantity in self.quantities:
                quantity.is_fed = True
            self._stack = stack.pop_all()
        self._watch_parameters()
        return self

    def detach(self) -> None:
        """Removes all hooks. The model is as it was; what was found stays."""
        stack, self._stack = self._stack, None
        self._hooked.clear()
        if stack is not None:
            for quantity in self.quantities:
                quantity.is_fed = False
            stack.close()

    def __enter__(self) -> Self:
        """Attaches."""
        return self.attach()

    def __exit__(self, *error: object) -> None:
        """Detaches, whatever happened."""
        self.detach()

    def start_step(self) -> None:
        """Begins a step, for loops in which a step is not a forward pass of the model."""
        self.finish_step()
        self._look_back()
        self.step += 1
        for quantity in (*self.quantities, self._loop):
            quantity.step = self.step
        self._health.start_step(self.step)
        self._watch_parameters()
        self.begin_pass()
        for number, group in enumerate(self.optimizer.param_groups if self.optimizer is not None else ()):
            self._loop.push(RATE if not number else f"{RATE} {number + 1}", float(group["lr"]))
        self._samples_were_due |= bool(self._due(SampleGradientQuantity))
        self.observe_parameters()

    def begin_pass(self, inputs: object = None) -> None:
        """Begins a pass, for loops that do not call the model itself, but parts of it; `start_step` does so, too.

        Args:
            inputs: of the pass, if `findings` are looked for in it: a tensor of samples, or a tuple, list or dictionary
                whose first tensor is. The pass then ends with `end_pass`.
        """
        self._calls.clear()
        self._recalls.clear()
        self._with_gradients.clear()
        self._health.begin_pass(inputs)

    def end_pass(self, outputs: object) -> None:
        """Ends a pass that `begin_pass` was given the inputs of.

        Args:
            outputs: where the backward pass begins: logits (N, K) or a loss, with a graph.
        """
        self._health.end_pass(outputs)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Looks at nothing while the block runs: for a forward pass that is no step.

        A model with batch norm trains on another pass than the one whose samples are looked at:

            with inspector.paused():
                losses = criterion(model.eval()(inputs), labels)
            inspector.observe_losses(losses)
            criterion(model.train()(inputs), labels).mean().backward()
        """
        before = self._is_paused
        self._pause(True)
        try:
            yield
        finally:
            self._pause(before)

    def _pause(self, pause: bool) -> None:
        self._is_paused = pause
        self._health.pause(pause)

    def finish_step(self) -> None:
        """Ends a step; the next one does, too, and `tick_epoch`."""
        for quantity in self._of(TensorQuantity):
            quantity.finish()

    def observe_losses(self, losses: Tensor) -> None:
        """Feeds the quantities that look at gradients of single samples; to be called before `backward`.

        Args:
            losses: (N,) with a graph, which is kept: loss n must depend on nothing but sample n and the parameters, so
                batch norm has to be in eval mode.

        Raises:
            CoupledSamplesError: the losses depend on one another.
            EngineError: gradients that cannot be computed, or losses of another shape.
        """
        due = self._take_losses(losses)
        if due:
            engine = self._engine_of_samples()
            with unwatched(), feeding(due, engine.parameters, len(losses)) as sink:
                engine.stream(losses, torch.ones_like(losses), sink, retain_graph=True)

    def backward(self, losses: Tensor, *, weight: float | None = None) -> None:
        """Does what `losses.mean().backward()` does, and feeds the quantities that look at gradients of single samples.

        It takes one backward pass instead of the two of `observe_losses`, for losses that are all there is to train on.

        Args:
            losses: (N,) as for `observe_losses`; their graph is not kept.
            weight: of each loss in what is trained on: 1 / N unless it is given, 1 for a sum. Gradients of single
                samples are those of the losses themselves.

        Raises:
            CoupledSamplesError: the losses depend on one another.
            EngineError: gradients that cannot be computed, losses of another shape, or a weight of zero.
        """
        due = self._take_losses(losses)
        weight = 1 / len(losses) if weight is None else weight
        if not due:
            torch.autograd.backward(losses, torch.full_like(losses, weight))
            return
        engine = self._engine_of_samples()
        with unwatched() as depth, feeding(due, engine.parameters, len(losses)) as sink:
            trained = unwatched(depth=depth)
            engine.backward(losses, torch.ones_like(losses), sink, weight=weight, around=trained)

    def _take_losses(self, losses: Tensor) -> list[SampleGradientQuantity]:
        """Keeps the mean of losses (N,), and returns the quantities that look at single samples of this step."""
        if losses.dim() != 1 or not len(losses):
            raise EngineError(
                f"losses of single samples have shape (N,), got {tuple(losses.shape)}; make them with reduction='none'"
            )
        self._loop.record(LOSS, MODEL, losses.detach().mean())
        self._saw_samples = True
        return self._due(SampleGradientQuantity)

    def _engine_of_samples(self) -> Engine:
        wanted = {name: each for name, each in self.parameters.items() if each.requires_grad}
        if self._engine is None or self._engine.parameters.keys() != wanted.keys():
            self._engine = Engine(wanted)
        return self._engine

    def observe_modules(self) -> None:
        """Feeds the quantities that look at modules; `tick_epoch` does, too."""
        for name, module in {**self.layers, **self._owners}.items():
            for quantity in self._of(ModuleQuantity, module):
                quantity.observe(name, module)

    def observe_parameters(self) -> None:
        """Feeds the quantities that look at parameters; every step and `tick_epoch` do, too."""
        for quantity in self._due(TensorQuantity):
            if quantity.source == "parameter" and quantity.is_news(self.parameters):
                for name, parameter in self.parameters.items():
                    quantity.observe(name, parameter)
                quantity.finish()

    def push(self, **figures: Tensor | float) -> None:
        """Keeps figures of this step for `report`, the loss above all: `push(loss=loss.item())`.

        `backward` and `observe_losses` push the mean of the losses themselves; underscores in names become spaces.
        """
        for name, value in figures.items():
            self._loop.push(name.replace("_", " "), value)

    def findings(self) -> list[Finding]:
        """Findings at the steps that `health` names, each cause once, with the step it was seen at first.

        Raises:
            ConfigError: no step was to be looked at.
        """
        if not self._is_examined:
            raise ConfigError("findings are looked for where Inspector is given health=every(50), say")
        self._loop.flush()
        self._look_back()
        return list(self._health.found)

    def _look_back(self) -> None:
        """Names what was not well in the step that ends, its loss included."""
        self._health.conclude()
        if self._is_examined and self._loop.bad_loss is not None:
            self._health.take_bad_loss(self._loop.bad_loss)

    def record(self) -> TrainingRecord:
        """Everything that was seen of the run until now, as tables."""
        found = self.findings() if self._is_examined else []
        layers = [*self.layers, *self.parameters]
        return self._logbook.record(self.name, layers, [self._loop, *self.quantities], self.history, found)

    def save(self, path: Path | str) -> None:
        """Writes `record` to one Parquet file; the column `part` says which of its tables a row is of.

        Where `torch.distributed` is at work, the process of rank 0 writes, and the others nothing.
        """
        if writes():
            self.record().save(path)

    def report(self, path: Path | str) -> None:
        """Writes a page that shows the run until now, and beside it the Parquet file of the same name.

        Where `torch.distributed` is at work, the process of rank 0 writes, and the others nothing: at the end of an
        epoch it has what all of them saw.

        Args:
            path: the page.

        Raises:
            ConfigError: the path is that of a Parquet file.
            MissingExtraError: the extra `report` is not installed.
            OutputError: a file cannot be written.
        """
        file = Path(path).with_suffix(".parquet")
        if file == Path(path):
            raise ConfigError(f"{path}: the figures of the page are written to that file; end its own name with .html")
        if not writes():
            return
        record = self.record()
        record.save(file)
        write_training(record, path)

    def tick_epoch(self) -> list[EpochFigure]:
        """Ends an epoch: its figures join the history, the quantities start anew.

        Where `torch.distributed` is at work, every process has to call it; quantities then hold what all of them saw.

        Returns:
            The figures, measure by measure, layers in the order of the model.
        """
        self._warn_of_nothing()
        self._warn_of_replaced()
        self.finish_step()
        self.observe_parameters()
        self.observe_modules()
        merge_ranks([*self.quantities, self._loop])
        self._loop.reset()
        found = [
            EpochFigure(self.epoch, quantity.name, *row)
            for quantity in self.quantities
            for row in ordered_rows(quantity.summary(), [*self.layers, *self.parameters])
        ]
        self.history += found
        self._logbook.end_epoch(self.epoch, self.step, self.quantities)
        for quantity in self.quantities:
            quantity.reset()
        self.epoch += 1
        return found

    def table(self) -> pd.DataFrame:
        """Epochs that `tick_epoch` ended: columns epoch, quantity, measure, layer, statistic, value."""
        return pd.DataFrame(self.history, columns=EpochFigure._fields)

    def _watch_parameters(self) -> None:
        """Hooks on the gradients of parameters that need one and have none yet: some are unfrozen while they train."""
        if self._stack is not None and any(quantity.source == "gradient" for quantity in self._of(TensorQuantity)):
            for name, parameter in self.parameters.items():
                if parameter.requires_grad and name not in self._hooked:
                    self._stack.enter_context(hooked(parameter, partial(self._after_gradient, name)))
                    self._hooked.add(name)

    def _of(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        """The quantities of a kind, and of those the ones that look at a module."""
        return [each for each in self.quantities if isinstance(each, kind) and (module is None or each.wants(module))]

    def _due(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        """Quantities of a kind that look at this step."""
        return [quantity for quantity in self._of(kind, module) if quantity.schedule(max(0, self.step))]

    def _before(self, module: nn.Module, inputs: object) -> None:
        del module, inputs
        if self._is_paused or in_backward():
            return
        if self._counts_steps and torch.is_grad_enabled():
            self.start_step()
        else:
            self.begin_pass()

    def _after_layer(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        del inputs
        tensor = first_tensor(output)
        if self._is_paused or tensor is None:
            return
        self._saw = True
        again = in_backward() and name in self._calls
        if again and name in self._with_gradients:
            return  # activation checkpointing: what is computed again was seen the first time
        site = (self._recalls if again else self._calls).site(name)
        if torch.is_grad_enabled():
            self._with_gradients.add(name)
        for quantity in (self._due if torch.is_grad_enabled() else self._of)(OutputQuantity, module):
            if not (again and quantity.record_eval):
                quantity.observe(site, module, tensor)
        gradients = self._due(OutputGradientQuantity, module)
        if gradients and tensor.requires_grad:
            watch_gradient(tensor, partial(self._after_output_gradient, site, module, gradients))

    def _after_output_gradient(
        self, site: str, module: nn.Module, quantities: list[OutputGradientQuantity], gradient: Tensor
    ) -> None:
        if self._stack is not None and not self._is_paused:
            for quantity in quantities:
                quantity.observe(site, module, gradient)

    def _after_gradient(self, name: str, gradient: Tensor) -> None:
        if self._is_paused:
            return
        self._saw = True
        plain = gradient if gradient.layout == torch.strided else gradient.to_dense()
        for quantity in self._due(TensorQuantity):
            if quantity.source == "gradient":
                quantity.observe(name, plain)

    def _warn_of_nothing(self) -> None:
        """Says which quantities had nothing to look at in an epoch, and why."""
        idle: dict[str, list[Quantity]] = {}
        if self._samples_were_due and not self._saw_samples:
            why = (
                "gradients of single samples need inspector.backward(losses), or inspector.observe_losses(losses) "
                "before a backward pass of your own"
            )
            idle[why] = self._of(SampleGradientQuantity)
        if self._stack is not None and not self._saw:
            why = "no layer of the watched model was run; train that very model, and as it was before torch.compile"
            gradients = [quantity for quantity in self._of(TensorQuantity) if quantity.source == "gradient"]
            idle[why] = [*self._of(OutputQuantity), *self._of(OutputGradientQuantity), *gradients]
        for why, quantities in idle.items():
            if quantities:
                names = ", ".join(quantity.name for quantity in quantities)
                message = f"{names}: nothing was seen in this epoch, because {why}"
                warnings.warn(message, InspectionWarning, stacklevel=3)
        self._saw_samples = self._samples_were_due = self._saw = False

    def _warn_of_replaced(self) -> None:
        """Says which layers and parameters of the model are not those any more that are watched."""
        modules = {name or MODEL: each for name, each in self.model.named_modules(remove_duplicate=False)}
        there = {**modules, **dict(self.model.named_parameters(remove_duplicate=False))}
        gone = [name for name, each in {**self.layers, **self.parameters}.items() if there.get(name) is not each]
        if self._stack is not None and gone:
            message = f"{some(gone)}: replaced in the model, and what was there before is watched; make a new Inspector"
            warnings.warn(message, InspectionWarning, stacklevel=3)


def _never(step: int) -> bool:
    del step
    return False


def chosen_layers(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """The layers that are watched, by name in the order of the model; see `Inspector`.

    Raises:
        ConfigError: a pattern that matches nothing.
    """
    layers, modules = leaf_modules(model), dict(model.named_modules())
    named = [name for name in patterns if name in modules and name not in layers and name]
    wanted = [pattern for pattern in patterns if pattern not in named]
    found = chosen(layers, wanted, "layer")
    return {name or MODEL: each for name, each in modules.items() if name in named or (name or MODEL) in found}


def chosen(named: Mapping[str, Named], patterns: Sequence[str], what: str) -> dict[str, Named]:
    """Entries that match one of some shell patterns, by name; `ConfigError` for a pattern that matches nothing."""
    for pattern in patterns:
        if named and not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(f"{pattern!r} matches no {what}; there are {', '.join(list(named)[:8])} ...")
    return {name: each for name, each in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def merge_ranks(quantities: Sequence[Quantity]) -> None:
    """Gives the quantities of every process what those of all processes saw, in the order of their ranks.

    Every process calls it with the same quantities at the same point, and has the same figures afterwards. Nothing
    happens where `torch.distributed` is not at work, or has one process.

    Args:
        quantities: are changed in place; what they compare the next batch with stays their own.

    Raises:
        ConfigError: another process has quantities of other classes, or that aggregate in another way.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return
    buffer = io.BytesIO()
    kinds = [(type(each).__name__, each.inplace) for each in quantities]
    torch.save((kinds, [quantity.mergeable() for quantity in quantities]), buffer)
    gathered = [b""] * distributed.get_world_size()
    distributed.all_gather_object(gathered, buffer.getvalue())
    ranks = [torch.load(io.BytesIO(each), map_location="cpu", weights_only=False) for each in gathered]
    for rank, (others, _) in enumerate(ranks):
        if others != kinds:
            raise ConfigError(f"process {rank} has other quantities, wanted the same with the same settings in all")
    for mine, first, *others in zip(quantities, *(found for _, found in ranks), strict=True):
        for other in others:
            merge_found(first, other)
        mine.join(first)


def writes() -> bool:
    """Whether this process writes files: where several train one model, the first one does."""
    return not distributed.is_available() or not distributed.is_initialized() or distributed.get_rank() == 0
