"""What findings are made from: a few figures of every layer, gathered by hooks while a model runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf, log10, nan, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.batchnorm import _BatchNorm

from ..models import first_tensor
from .hooks import Calls, Hook, in_backward, learning_modules, watch_gradient
from .layer_quantities import precise_norm
from .quantity import MODEL
from .sample_gradients import EntryMoments

FAR_UNITS = 5.0
"""A silent unit is dead if its mean output is this many times as far from zero as that of the median active unit, both
in standard deviations."""

TELLING = 100
"""Samples from which on it tells something that none reaches a unit: all of them miss one of twenty that 3 % reach."""


@dataclass
class LayerFigures:
    """A call of a layer.

    Attributes:
        kind: class of the layer.
        place: number of the call in the first pass, counted from 1.
        parameters: full names of the parameters that are its own.
        widths: sizes of the first axis of those parameters.
        is_convolution: whether units lie on the second axis before the last.
        is_table: whether it looks up what it returns, as tables of positions do that never learn.
        bad_here: batches whose outputs are not finite though the inputs are.
        bad_from_input: batches whose outputs are not finite, as the inputs were not.
        largest: magnitude of the outputs.
        differs: whether two samples had different outputs.
        slopes: log10 of the root mean square over samples of the norm of the gradient at the output, by batch.
        bad_slopes: batches whose gradient at the output is not finite.
        reached: which units a gradient reached; None where units cannot be told.
        outputs: moments of the outputs of every unit, over samples and positions.
        shift: how far the means of a batch lie from running ones, in running standard deviations: median over channels,
            least over batches; NaN for anything but batch norm with running statistics.
        decades: the same for the log10 of the ratio of variances, by magnitude.
    """

    kind: str
    place: int
    parameters: tuple[str, ...]
    widths: tuple[int, ...]
    is_convolution: bool
    is_table: bool
    bad_here: int = 0
    bad_from_input: int = 0
    largest: float = 0.0
    differs: bool = False
    slopes: list[float] = field(default_factory=list)
    bad_slopes: int = 0
    reached: Tensor | None = None
    outputs: EntryMoments | None = None
    shift: float = nan
    decades: float = nan
    first: Tensor | None = None

    @property
    def slope(self) -> float:
        """Mean of `slopes` that are finite; -inf if all gradients were zero, NaN without any."""
        finite = [slope for slope in self.slopes if slope > -inf]
        return sum(finite) / len(finite) if finite else -inf if self.slopes else nan

    @property
    def is_silent(self) -> bool:
        """Whether gradients were there, and all of them zero."""
        return self.slope == -inf

    @property
    def width(self) -> int:
        """Units; 0 where they cannot be told."""
        return 0 if self.reached is None else len(self.reached)

    def unit_axis(self, values: Tensor) -> int | None:
        """The axis of units in outputs: the one that is as wide as the parameters of the layer."""
        axes = ((1, -1) if self.is_convolution else (-1, 1)) if self.widths and values.dim() > 1 else ()
        return next((axis for axis in axes if values.shape[axis] == self.widths[-1]), None)

    def dead_units(self, samples: int) -> int:
        """Units that no gradient of many samples reached, or whose outputs stay on one side more than those of others.

        In networks whose outputs hardly differ between samples, as fresh deep ones, half of the units are silent for
        all of them, each with a probability of one half, and none is dead.

        Args:
            samples: how many have gone through the layer.
        """
        if self.reached is None or self.outputs is None or len(self.outputs.mean) != len(self.reached):
            return 0
        deviation = (self.outputs.squares / self.outputs.count).sqrt()
        # Where outputs never differ, as those of weights that are zero, they are as far as can be, at zero as well.
        distance = torch.where(deviation > 0, self.outputs.mean.abs() / deviation, torch.inf)
        if not bool(self.reached.any()):
            return len(self.reached)
        missed, units = int((~self.reached).sum()), len(self.reached)
        if samples >= TELLING and missed > units / 2 + 2 * sqrt(units):  # four standard deviations
            return missed
        return int((~self.reached & (distance > FAR_UNITS * distance[self.reached].median())).sum())


OUTPUT = ""
"""Stands for the outputs of the model among the layers behind a layer."""

SAME = 1e-5
"""Outputs of two samples that differ by less than this share of the largest output are the same: a hundred times the
rounding of float32."""


class ModelFigures:
    """Gathers `LayerFigures` from hooks, as long as it is active.

    Args:
        model: what is watched, in its layers and other modules with parameters of their own.

    Attributes:
        layers: by call, in the order of the first pass.
        behind: by call, the calls whose layers take what it returns, with nothing but functions between; `OUTPUT` for
            the outputs of the model.
        inputs: root mean square of the inputs, least over batches; NaN for whole numbers.
        bad_inputs: samples whose inputs are not finite.
        bad_outputs: samples for which the outputs of the model are not finite.
        bad_weights: values that are not finite by name of parameter, before the first pass.
        samples: how many were seen.
        samples_ever: the same, and those seen before `forget`.
        margins: by sample, the largest logit less the second largest.
        is_fresh: whether a batch norm in eval mode has running statistics of no batch.
        immaterial: calls that are known to have no influence on the outputs.
        active: whether hooks look at anything.
        calls: with what the model was called last; in passes that are begun by hand, also the modules right below it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self._modules = model, learning_modules(model)
        self.layers: dict[str, LayerFigures] = {}
        self.behind: dict[str, set[str]] = {}
        self.inputs, self.bad_inputs, self.bad_outputs, self.samples, self.samples_ever = nan, 0, 0, 0, 0
        self.bad_weights: dict[str, int] | None = None
        self.margins: list[float] = []
        self.is_fresh = False
        self.immaterial: set[str] = set()
        self.active = False
        self.calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._runs = self._by_hand = False
        self._calls = Calls()
        self._nodes: dict[Node, str] = {}
        self._batch = 0

    def attach(self, stack: ExitStack) -> None:
        """Registers hooks, which the stack removes."""
        for name, module in {MODEL: self.model, **dict(self.model.named_children())}.items():
            hook = Hook(partial(self._before, name))
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for name, module in self._modules.items():
            stack.callback(module.register_forward_hook(Hook(partial(self._after_layer, name))).remove)
        if self.model not in self._modules.values():
            stack.callback(self.model.register_forward_hook(Hook(self._after)).remove)

    def forget(self) -> None:
        """Forgets figures of batches; which layers there are, and which units were ever reached, stays known."""
        for layer in self.layers.values():
            layer.slopes, layer.bad_slopes, layer.bad_here, layer.bad_from_input, layer.largest = [], 0, 0, 0, 0.0
            layer.shift = layer.decades = nan
            layer.differs, layer.first = False, None
        self.inputs, self.bad_inputs, self.bad_outputs, self.samples, self.margins = nan, 0, 0, 0, []
        self.bad_weights = None

    def begin_pass(self, inputs: object) -> None:
        """A pass begins, by hand if `inputs` is not None: then the model itself need not be called.

        Args:
            inputs: a tensor of samples, or a tuple, list or dictionary whose first tensor is.
        """
        self._by_hand, self._runs = inputs is not None, False
        if self._by_hand:
            self._begin(inputs)

    def end_pass(self, outputs: object) -> None:
        """Takes the outputs of the model, or a loss, of a pass: where gradients will come from."""
        tensor = first_tensor(outputs)
        if not self._is_looking() or tensor is None:
            return
        if tensor.grad_fn is not None:
            for site, others in layers_behind(tensor.grad_fn, self._nodes).items():
                self.behind.setdefault(site, set()).update(others)
        if tensor.dim() == 2 and tensor.shape[1] > 1 and tensor.is_floating_point():
            top = tensor.detach().double().topk(2, dim=1).values
            self.margins += (top[:, 0] - top[:, 1]).tolist()

    def _before(self, name: str, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if in_backward():
            return
        if module is self.model and not self._by_hand:
            self._begin((inputs, named))
        if self._is_looking() and (module is self.model or self._by_hand):
            self.calls.setdefault(name, (inputs, named))

    def _begin(self, inputs: object) -> None:
        self._runs = self.active and torch.is_grad_enabled()
        if not self._runs:
            return
        self._calls.clear()
        self._nodes, self.calls = {}, {}
        if self.bad_weights is None:  # now, since one bad gradient makes all weights bad
            counts = {name: int((~each.detach().isfinite()).sum()) for name, each in self.model.named_parameters()}
            self.bad_weights = {name: count for name, count in counts.items() if count}
        tensor = first_tensor(inputs)
        if tensor is None or not tensor.dim():
            return
        self._batch = len(tensor)
        self.samples += self._batch
        self.samples_ever += self._batch
        if tensor.is_floating_point() and tensor.numel():
            fine = tensor.detach().reshape(self._batch, -1).isfinite().all(1)
            self.bad_inputs += int((~fine).sum())
            if bool(fine.all()):
                size = float(precise_norm(tensor.detach())) / sqrt(tensor.numel())
                self.inputs = float(np.fmin(self.inputs, size))

    def _after_layer(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        tensor, given = first_tensor(output), first_tensor(inputs)
        if not self._is_looking() or tensor is None or not tensor.is_floating_point() or not tensor.numel():
            return
        site = self._calls.site(name)
        if site not in self.layers:
            self.layers[site] = _figures_of(name, module, len(self.layers) + 1)
        layer = self.layers[site]
        values = tensor.detach()
        largest = float(values.abs().max())
        if not largest < inf:
            fine = given is None or not given.is_floating_point() or bool(given.isfinite().all())
            layer.bad_here += fine
            layer.bad_from_input += not fine
        else:
            layer.largest = max(layer.largest, largest)
            self._compare(layer, values, largest)
            _add_units(layer, values)
        if isinstance(module, _BatchNorm) and given is not None:
            self.is_fresh |= (
                not module.training and module.num_batches_tracked is not None and not int(module.num_batches_tracked)
            )
            _compare_statistics(layer, module, given.detach())
        if tensor.requires_grad and tensor.grad_fn is not None and tensor.grad_fn not in self._nodes:
            self._nodes[tensor.grad_fn] = site
            if tensor._base is not None and tensor._base.grad_fn is not None:
                # What a view is a view of stays in the graph where the view is changed in place.
                self._nodes.setdefault(tensor._base.grad_fn, site)
            watch_gradient(tensor, partial(self._after_gradient, layer, self._batch))
        if module is self.model:
            self._after(module, inputs, output)

    def _after(self, module: nn.Module, inputs: object, output: object) -> None:
        del module, inputs
        tensor = first_tensor(output)
        if self._is_looking() and tensor is not None and tensor.dim() and len(tensor) == self._batch and tensor.numel():
            self.bad_outputs += int((~tensor.detach().reshape(len(tensor), -1).isfinite().all(1)).sum())
        self.end_pass(output)
        if not self._by_hand:
            self._nodes = {}

    def _is_looking(self) -> bool:
        """Whether this is a pass that gradients come back through, and the first time that it is computed."""
        return self.active and self._runs and not in_backward()

    def _compare(self, layer: LayerFigures, values: Tensor, largest: float) -> None:
        """Notes whether samples differ in the output of a layer."""
        if layer.differs or not values.dim() or len(values) != self._batch:
            layer.differs = True
            return
        if layer.first is None or layer.first.shape != values[0].shape:
            layer.first = values[0].clone()
        layer.differs = bool((values - layer.first).abs().max() > SAME * largest)

    def _after_gradient(self, layer: LayerFigures, samples: int, gradient: Tensor) -> None:
        if not self.active:
            return
        norm = float(precise_norm(gradient.detach())) / sqrt(max(1, samples))
        if not norm < inf:
            layer.bad_slopes += 1
            return
        layer.slopes.append(log10(norm) if norm else -inf)
        if (axis := layer.unit_axis(gradient)) is not None:
            reached = (gradient.detach() != 0).movedim(axis, 0).flatten(1).any(1).cpu()
            layer.reached = reached if layer.reached is None else layer.reached | reached


def _figures_of(name: str, module: nn.Module, place: int) -> LayerFigures:
    """The figures of a layer that has seen nothing."""
    own = dict(module.named_parameters(recurse=False))
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    return LayerFigures(
        kind=type(module).__name__,
        place=place,
        parameters=tuple(each if name == MODEL else f"{name}.{each}" for each in own),
        widths=tuple(
            each.shape[1] * int(getattr(module, "groups", 1)) if transposed and each.dim() > 1 else each.shape[0]
            for each in own.values()
            if each.dim()
        ),
        is_convolution=isinstance(module, nn.modules.conv._ConvNd | _BatchNorm | nn.GroupNorm),
        is_table=isinstance(module, nn.Embedding),
    )


def _add_units(layer: LayerFigures, values: Tensor) -> None:
    """Takes in the outputs of a batch, if units can be told in them."""
    axis = layer.unit_axis(values)
    if axis is None:
        return
    rows = values.movedim(axis, 0).flatten(1)
    variance, mean = torch.var_mean(rows, dim=1, correction=0)
    count = rows.shape[1]
    moments = EntryMoments(count, mean.double().cpu(), variance.double().cpu() * count)
    if layer.outputs is None:
        layer.outputs = moments
    else:
        layer.outputs.merge(moments)


def _compare_statistics(layer: LayerFigures, module: Any, given: Tensor) -> None:
    """Compares a batch with the running statistics of a batch norm that has been trained and is in eval mode."""
    tracked = module.num_batches_tracked
    if module.training or module.running_mean is None or tracked is None or not int(tracked) or given.dim() < 2:
        return
    channels = given.double().transpose(0, 1).flatten(1)
    variance = module.running_var.double() + module.eps
    shift = ((channels.mean(1) - module.running_mean) / variance.sqrt()).abs().median()
    decades = ((channels.var(1, correction=0) + module.eps) / variance).log10().median().abs()
    layer.shift = float(np.fmin(layer.shift, float(shift)))
    layer.decades = float(np.fmin(layer.decades, float(decades)))


def layers_behind(outputs: Node, nodes: Mapping[Node, str]) -> dict[str, set[str]]:
    """The calls that take what each call returns, read off the autograd graph.

    Args:
        outputs: the node of the outputs of the model.
        nodes: the calls by the node of their output.

    Returns:
        By call the next calls on the way to the outputs, `OUTPUT` for those themselves; calls that the outputs do not
        come from by way of the graph are missing.
    """
    behind: dict[str, set[str]] = {}
    waiting: list[tuple[Node, str]] = [(outputs, OUTPUT)]
    seen: set[tuple[Node, str]] = set()
    while waiting:
        node, after = waiting.pop()
        if (node, after) in seen:
            continue
        seen.add((node, after))
        site = nodes.get(node)
        if site is not None:
            behind.setdefault(site, set()).add(after)
            after = site
        waiting += [(further, after) for further, _ in node.next_functions if further is not None]
    return behind
