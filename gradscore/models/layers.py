"""Layers: which parameters make a group of features, and what enters the last layer.

Hooks on modules live for one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import get_ident
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..columns import PENULTIMATE
from ..errors import ConfigError, ModelError
from ..system import FloatArray, closest

Granularity = Literal["parameter", "module", "model"]
"""Groups of parameters: each parameter, each module that owns some, or the whole model."""

LAST_LAYER = "@last"
"""Stands for the parameters of the model's last layer among the patterns of `features.parameters`."""

WHOLE_MODEL = "model"
"""The group of all selected parameters, for granularity `model`."""

ROOT = "."
"""The group of the parameters that the outermost module owns itself, for granularity `module`."""


def first_parameter(model: nn.Module) -> nn.Parameter:
    """The first parameter of a model, which says where it lies; a `ModelError` where it has none."""
    for parameter in model.parameters():
        return parameter
    raise ModelError("the model has no parameters, so there are no gradients to look at")


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
    first_parameter(model)
    names = [name for name, _ in model.named_parameters()]
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
    selected = [name for name in names if name in chosen]
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
        """Weights of the layer."""
        weight = self.module.weight.detach().cpu().double().numpy()
        found = torch.zeros(len(weight), device="cpu") if self.module.bias is None else self.module.bias
        bias = found.detach().cpu().double().numpy()
        if len(weight) == 1:
            weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
        return Head(weight=weight, bias=bias)

    def catch(self, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Runs the model once and looks at what enters the layer; no hook stays on the model.

        Args:
            forward: runs the model and returns its outputs (N, K).

        Returns:
            The outputs, and the features (N, D) without a graph; None where the logits are not what the layer makes of
            one matrix of features.
        """
        seen: list[tuple[Any, Any]] = []
        thread = get_ident()  # what others make of the model meanwhile is none of this

        def look(_module: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
            if get_ident() == thread:
                seen.append((inputs[0], result))

        handle = self.module.register_forward_hook(look)
        try:
            outputs = forward()
        finally:
            handle.remove()
        if len(seen) != 1 or seen[0][0].dim() != 2:
            return outputs, None
        features, result = seen[0]
        wanted = outputs[:, 1:] if result.shape[-1:] == (1,) else outputs  # one logit for two classes
        is_same = result is wanted or torch.equal(result.nan_to_num(), wanted.nan_to_num())
        return outputs, features.detach() if is_same else None


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


def first_tensor(output: object) -> Tensor | None:
    """The output, or the first tensor in a tuple, list or dictionary of outputs."""
    if isinstance(output, Tensor):
        return output
    items = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((tensor for tensor in map(first_tensor, items) if tensor is not None), None)
