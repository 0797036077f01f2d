"""Which parameters make a group of features."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from .config import FeaturesConfig
from .config_source import closest
from .errors import ConfigError, ModelError
from .losses import LOSS_NAMES
from .moments import norm_order
from .presets import LAST_LAYER

WHOLE_MODEL = "model"
"""The group of all selected parameters, for granularity `model`."""

ROOT = "."
"""The group of the parameters that the outermost module owns itself, for granularity `module`."""


def check_names(features: FeaturesConfig) -> None:
    """Makes sure that the losses and statistics exist.

    Raises:
        ConfigError: one does not.
    """
    for place, loss in enumerate(features.losses):
        if loss not in LOSS_NAMES:
            raise ConfigError(f"features.losses.{place}: no loss '{loss}'; {closest(loss, LOSS_NAMES)}")
    for statistic in features.statistics:
        norm_order(statistic)


def group_parameters(model: nn.Module, features: FeaturesConfig) -> dict[str, list[str]]:
    """The selected parameters of each group, in the order of the model.

    Args:
        model: the classifier.
        features: its `parameters` are shell patterns on parameter names, or `@last` for those of `last_layer`; its
            `granularity` says what a group is: each parameter, each module that owns some (`ROOT` for the outermost
            one), or the whole model.

    Returns:
        Parameter names by group name.

    Raises:
        ModelError: the model has no parameters.
        ConfigError: a pattern matches none of them.
    """
    names = [name for name, _ in model.named_parameters()]
    if not names:
        raise ModelError("the model has no parameters, so there are no gradients to make features of")
    selected = _selected(model, names, features.parameters)
    if features.granularity == "model":
        return {WHOLE_MODEL: selected}
    if features.granularity == "parameter":
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
