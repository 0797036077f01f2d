"""Layers: which parameters make a group of features, what enters the last layer, and what layers put out.

Hooks on modules live for one forward pass. Gradients of outputs are read at the nodes of the autograd graph, in the
same backward pass as those of the parameters; which rows of an output belong to which sample is found as
`gradients.layout` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from ..columns import PENULTIMATE
from ..errors import ConfigError, ModelError
from ..gradients import Gradients, Layout, Tap, probe, read_graph
from ..system import FloatArray, closest

Granularity = Literal["parameter", "module", "model"]
"""What a group is: each parameter, each module that owns some, or the whole model."""

LAST_LAYER = "@last"
"""Stands for the parameters of the model's last layer among the patterns of `features.parameters`."""

WHOLE_MODEL = "model"
"""The group of all selected parameters, for granularity `model`."""

ROOT = "."
"""The group of the parameters that the outermost module owns itself, for granularity `module`."""


def group_parameters(
    model: nn.Module, patterns: Iterable[str], *, granularity: Granularity = "parameter"
) -> dict[str, list[str]]:
    """The selected parameters of each group, in the order of the model.

    Args:
        model: the classifier.
        patterns: shell patterns on parameter names, or `@last` for those of `last_layer`.
        granularity: what a group is; the outermost module is called `ROOT`, the whole model `WHOLE_MODEL`.

    Returns:
        Parameter names by group name.

    Raises:
        ModelError: the model has no parameters.
        ConfigError: a pattern matches none of them.
    """
    names = [name for name, _ in model.named_parameters()]
    if not names:
        raise ModelError("the model has no parameters, so there are no gradients to make features of")
    selected = _selected(model, names, patterns)
    if granularity == "model":
        return {WHOLE_MODEL: selected}
    if granularity == "parameter":
        return {name: [name] for name in selected}
    groups: dict[str, list[str]] = {}
    for name in selected:
        groups.setdefault(name.rpartition(".")[0] or ROOT, []).append(name)
    return groups


def last_layer(model: nn.Module) -> str:
    """The name of the last module, in the order of the model, that owns a parameter of two or more dimensions.

    In the classifiers of torchvision, timm and transformers that is the layer the logits come from.

    Raises:
        ModelError: there is none.
    """
    matrices = [name for name, parameter in model.named_parameters() if parameter.dim() >= 2]
    if not matrices:
        raise ModelError("the model has no layer with a weight matrix, so it has no last layer; name its parameters")
    return matrices[-1].rpartition(".")[0]


def _selected(model: nn.Module, names: list[str], patterns: Iterable[str]) -> list[str]:
    chosen = set()
    for place, pattern in enumerate(patterns):
        if pattern == LAST_LAYER:
            layer = last_layer(model)
            chosen |= {name for name in names if name.rpartition(".")[0] == layer}
            continue
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise ConfigError(
                f"features.parameters.{place}: '{pattern}' matches no parameter of the model; {closest(pattern, names)}"
            )
        chosen |= matches
    return [name for name in names if name in chosen]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last layer as arrays: `features @ weight.T + bias` are the logits.

    Attributes:
        weight: (K, D) float64; of one logit for two classes, the first row is zero.
        bias: (K,) float64, zeros for a layer without.
    """

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True)
class LastLayer:
    """The linear layer that makes the logits.

    Attributes:
        name: of the module.
        module: the layer.
    """

    name: str
    module: nn.Linear

    @property
    def columns(self) -> list[str]:
        """The names of the columns of its inputs."""
        return [f"{PENULTIMATE}{place}" for place in range(self.module.in_features)]

    @property
    def head(self) -> Head:
        """Its weights."""
        weight = self.module.weight.detach().cpu().double().numpy()
        found = torch.zeros(len(weight)) if self.module.bias is None else self.module.bias
        bias = found.detach().cpu().double().numpy()
        if len(weight) == 1:
            weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
        return Head(weight=weight, bias=bias)

    def catch(self, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Runs the model once and looks at what enters the layer; no hook stays on the model.

        Args:
            forward: runs the model and returns its outputs (N, K).

        Returns:
            The outputs, and the features (N, D) without a graph.

        Raises:
            ModelError: the logits are not what the layer makes of one matrix of features.
        """
        seen: list[tuple[Any, Any]] = []

        def look(_module: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
            seen.append((inputs[0], result))

        handle = self.module.register_forward_hook(look)
        try:
            outputs = forward()
        finally:
            handle.remove()
        if len(seen) != 1 or seen[0][0].dim() != 2 or not _same(seen[0][1], outputs):
            raise ModelError(
                f"features.penultimate: the logits are not what layer '{self.name}' makes of one vector of features "
                "per sample; name the linear layer that makes them, or set it to false (an audit of labels needs one)"
            )
        return outputs, seen[0][0].detach()


def find_last_layer(model: nn.Module, setting: bool | str) -> LastLayer | None:
    """The layer whose inputs are wanted.

    Args:
        model: the classifier.
        setting: the name of the linear layer that makes the logits, True for the last one, False for none.

    Raises:
        ConfigError: no such module, or it is not a linear layer.
        ModelError: the model has no layer with a weight matrix.
    """
    if setting is False:
        return None
    name = last_layer(model) if setting is True else setting
    modules = dict(model.named_modules())
    if name not in modules:
        raise ConfigError(f"features.penultimate: no module '{name}'; {closest(name, modules)}")
    module = modules[name]
    if not isinstance(module, nn.Linear):
        raise ConfigError(
            f"features.penultimate: wanted the linear layer that makes the logits, got '{name}', a "
            f"{type(module).__name__}; name another one, or set it to false (an audit of labels needs one)"
        )
    return LastLayer(name, module)


def _same(result: Tensor, outputs: Tensor) -> bool:
    if result.shape[-1:] == (1,):  # one logit for two classes
        outputs = outputs[:, 1:]
    return result is outputs or torch.equal(result.nan_to_num(), outputs.nan_to_num())


CUTTING = frozenset(
    {
        *(F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6),
        *(F.hardtanh, F.hardtanh_, F.hardsigmoid, F.hardswish, F.threshold),
        *(F.hardshrink, F.softshrink, torch.hardshrink, Tensor.hardshrink),
    }
)
"""Activation functions that give exact zeros. GELU, SiLU, tanh and their kind do not."""


@dataclass(frozen=True)
class Point:
    """A tensor in the autograd graph: output number `output` of `node`, of this `shape`."""

    node: Node
    output: int
    shape: torch.Size


@dataclass(frozen=True)
class Call:
    """One output of a layer in a forward pass.

    Attributes:
        layer: its name.
        number: how many outputs the layer gave before in this pass.
        points: where its gradient can be had, if it needs one: at the output itself and, for a view of a whole tensor,
            at that. A view that is changed in place afterwards leaves the graph.
        active: where the output is not zero, bool, for activation functions.
    """

    layer: str
    number: int
    points: tuple[Point, ...]
    active: Tensor | None = None

    @property
    def key(self) -> tuple[str, int, bool]:
        """Tells the calls of a pass apart, and names those of other passes that are the same."""
        return self.layer, self.number, self.active is not None


@dataclass(frozen=True)
class Place:
    """Where the samples lie in an output.

    Attributes:
        point: which of the points of the call is in the graph.
        layout: the sample layout there.
        shape: of the tensor, with the samples divided out.
    """

    point: int
    layout: Layout
    shape: tuple[int, ...]

    def of(self, call: Call, samples: int) -> tuple[Point, Layout] | None:
        """The point and layout in another batch; None if the shapes do not fit."""
        layout = self.layout.resized(samples)
        if self.point >= len(call.points):
            return None
        point = call.points[self.point]
        fits = layout.fits(point.shape) and layout.per_sample(point.shape) == self.shape
        return (point, layout) if fits else None


class LayerWatch:
    """Looks at the outputs of layers.

    Args:
        model: what runs.
        layers: names of the modules whose output gradients are wanted.
        activations: look at activation functions too, those called outside modules of their own as well.

    Attributes:
        notices: what has no figure, and why; each is said once.
    """

    def __init__(self, model: nn.Module, *, layers: Sequence[str], activations: bool) -> None:
        self.model, self.layers, self.activations = model, list(layers), activations
        self.notices: list[str] = []
        self._active_layers: list[str] | None = None
        self._places: dict[tuple[str, int, bool], Place | None] = {}
        self._signature: tuple[object, ...] = ()

    @property
    def activation_layers(self) -> list[str]:
        """The modules that call an activation function themselves, in the order of the forward pass.

        Raises:
            ModelError: no forward pass was seen yet.
        """
        if self._active_layers is None:
            raise ModelError(
                "features.columns: which layers have an activation is seen when the model runs, and no sample could be "
                "used yet; repair or remove the first samples of in_dist.fit"
            )
        return self._active_layers

    def catch(self, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Call]]:
        """Runs the model once; no hook stays on it.

        Args:
            forward: runs the model and returns its outputs (N, K).

        Returns:
            The outputs, and what the layers put out on the way.

        Raises:
            ConfigError: activation functions are wanted and none was called.
            ModelError: other layers called one than in the first pass.
        """
        calls: list[Call] = []
        modules = dict(self.model.named_modules())
        running = [ROOT]

        def note(layer: str, tensor: Any, *, activation: bool = False) -> None:
            if isinstance(tensor, Tensor):
                number = sum((call.layer, call.active is not None) == (layer, activation) for call in calls)
                active = tensor.detach() != 0 if activation else None
                calls.append(Call(layer, number, _points(tensor, with_base=not activation), active))

        def after(layer: str, module: nn.Module, inputs: object, output: Any) -> None:
            del module, inputs
            note(layer, first_tensor(output))

        def enter(layer: str, module: nn.Module, inputs: object) -> None:
            del module, inputs
            running.append(layer)

        def leave(module: nn.Module, inputs: object, output: object) -> None:
            del module, inputs, output
            running.pop()

        with ExitStack() as stack:
            if self.activations:
                for name, module in modules.items():
                    stack.callback(module.register_forward_pre_hook(partial(enter, name or ROOT)).remove)
                    stack.callback(module.register_forward_hook(leave).remove)
            for layer in self.layers:
                module = modules["" if layer == ROOT else layer]
                stack.callback(module.register_forward_hook(partial(after, layer)).remove)
            mode = _Activations(lambda result: note(running[-1], result, activation=True))
            with mode if self.activations else nullcontext():
                outputs = forward()
        if self.activations:
            self._compare_layers([call.layer for call in calls if call.active is not None])
        return outputs, calls

    def locate(self, calls: Sequence[Call], outputs: Tensor, grad_outputs: Tensor) -> None:
        """Finds out where the samples lie in every output that was not seen before, or in a graph like this one.

        Args:
            calls: of the forward pass that gave `outputs`.
            outputs: (N, K) with a graph, which is kept.
            grad_outputs: gradient of any losses there.
        """
        graph = read_graph(outputs, {})
        if graph.signature != self._signature:  # rows may go elsewhere
            self._signature = graph.signature
            self._places.clear()
        unknown = [call for call in calls if not self._is_known(call, len(outputs))]
        if not unknown:
            return
        present = set(graph.order)
        wanted = [point.node for call in unknown for point in call.points if point.node in present]
        found = {} if len(outputs) == 1 else probe(outputs, grad_outputs, graph, list(dict.fromkeys(wanted)))
        for call in unknown:
            number, point = next(((n, each) for n, each in enumerate(call.points) if each.node in present), (0, None))
            layout = None if point is None else found.get(point.node)
            if point is not None and len(outputs) == 1 and point.shape:
                layout = Layout(0, 1, point.shape[0], point.shape[0], output=point.output, certain=False)
            if point is None or layout is None or layout.output != point.output:
                self._places[call.key] = None
                self._say(f"{call.layer}: an output in which samples cannot be told apart is left out of its columns")
            else:
                self._places[call.key] = Place(number, layout, layout.per_sample(point.shape))

    def active_shares(self, calls: Sequence[Call], samples: int) -> dict[str, Tensor]:
        """The share of each sample's outputs that are not zero, over all calls in a layer: (N,) float64 by layer."""
        active = {layer: torch.zeros(samples, dtype=torch.float64) for layer in self.activation_layers}
        elements = dict.fromkeys(active, 0)
        for call in calls:
            found = self._found(call, samples)
            if call.active is not None and found is not None:
                apart = _sample_first(found[1], call.active).flatten(1)
                active[call.layer] += apart.sum(1).cpu()
                elements[call.layer] += apart.shape[1]
        return {layer: count / max(1, elements[layer]) for layer, count in active.items()}

    def norm_taps(self, calls: Sequence[Call], norms: Mapping[str, Tensor]) -> dict[Node, Tap]:
        """What a backward pass has to look at for the L2 norms of output gradients.

        Args:
            calls: of the forward pass.
            norms: (N,) float64 zeros for each of `layers`, filled in during the backward pass.

        Returns:
            For `Engine.stream`.
        """
        taps: dict[Node, list[tuple[str, Point, Layout]]] = {}
        for call in calls:
            found = self._found(call, len(norms[call.layer])) if call.active is None else None
            if found is not None:
                taps.setdefault(found[0].node, []).append((call.layer, *found))
        for layer in self.layers:
            if not any(layer == other for entries in taps.values() for other, _, _ in entries):
                self._say(f"{layer}: no gradient at an output of its own, so its output_gradient_norm is 0")

        def tap(entries: Sequence[tuple[str, Point, Layout]], gradients: Gradients) -> None:
            for layer, point, layout in entries:
                gradient = gradients[point.output]
                if gradient is not None:
                    apart = _sample_first(layout, gradient.detach())
                    norm = torch.linalg.vector_norm(apart, dim=tuple(range(1, apart.dim())), dtype=torch.float64)
                    norms[layer].copy_(norms[layer].hypot(norm))

        return {node: partial(tap, entries) for node, entries in taps.items()}

    def _compare_layers(self, found: Sequence[str]) -> None:
        layers = list(dict.fromkeys(found))
        if not layers:
            raise ConfigError(
                "features.columns: activation_rate: the model calls no activation function that gives zeros (ReLU and "
                "its kind; GELU, SiLU and tanh never do); leave it out"
            )
        if self._active_layers is None:
            self._active_layers = layers
        if self._active_layers != layers:
            raise ModelError(
                "features.columns: activation_rate: which layers call an activation function changes from batch to "
                f"batch ({', '.join(sorted(set(layers) ^ set(self._active_layers))) or 'their order'}); leave it out"
            )

    def _is_known(self, call: Call, samples: int) -> bool:
        if call.key not in self._places:
            return False
        place = self._places[call.key]
        is_sure = place is not None and place.layout.certain and not place.layout.alternatives
        return place is None or (is_sure and place.of(call, samples) is not None)

    def _found(self, call: Call, samples: int) -> tuple[Point, Layout] | None:
        place = self._places[call.key]
        return None if place is None else place.of(call, samples)

    def _say(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)


class _Activations(TorchFunctionMode):
    """Tells of the results of activation functions, in this thread and while it is entered."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in CUTTING:
            self._tell(result)
        return result


def owners(parameters: Sequence[str]) -> list[str]:
    """The names of the modules that own some of these parameters, in their order; `ROOT` for the outermost."""
    return list(dict.fromkeys(name.rpartition(".")[0] or ROOT for name in parameters))


def _points(tensor: Tensor, *, with_base: bool) -> tuple[Point, ...]:
    tensors = [tensor]
    base = tensor._base
    if with_base and base is not None and base.numel() == tensor.numel():
        tensors.append(base)
    return tuple(Point(each.grad_fn, each.output_nr, each.shape) for each in tensors if each.grad_fn is not None)


def _sample_first(layout: Layout, tensor: Tensor) -> Tensor:
    """(N, ...) with all elements of a sample behind the first axis."""
    if layout.is_plain:
        return tensor if tensor.dim() > 1 else tensor.unsqueeze(1)
    return layout.samples_first(tensor)


def first_tensor(output: object) -> Tensor | None:
    """The output, or the first tensor in a tuple, list or dictionary of outputs."""
    if isinstance(output, Tensor):
        return output
    items = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((tensor for tensor in map(first_tensor, items) if tensor is not None), None)
