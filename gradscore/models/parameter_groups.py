"""Which parameters make a group of features."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from ..errors import ConfigError, ModelError
from ..system import closest

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
