"""What is refused, and what is warned of, where an inspector is used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import Tensor, nn

from ..errors import ConfigError, EngineError
from .hooks import leaf_modules, modules_to_depth
from .quantities.quantity import MODEL, Quantity

Named = TypeVar("Named")


class InspectionWarning(UserWarning):
    """Something that was asked for is not seen."""


def warn_of_nothing(quantities: Sequence[Quantity], why: str) -> None:
    """Warns that quantities saw nothing in an epoch, and why."""
    names = ", ".join(quantity.name for quantity in quantities)
    warnings.warn(f"{names}: nothing was seen in this epoch, because {why}", InspectionWarning, stacklevel=4)


def check_arguments(model: object, quantities: object, *, optimizer: object = None, health: object = None) -> None:
    """Makes sure that an inspector is given what it can watch, and with what; `ConfigError` otherwise."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"wanted a torch.nn.Module to watch, got {type(model).__name__}")
    if not isinstance(quantities, Sequence) or not all(isinstance(each, Quantity) for each in quantities):
        got = [each.__name__ if isinstance(each, type) else type(each).__name__ for each in _listed(quantities)]
        raise ConfigError(f"wanted a list of quantities, as in [GradientGeometry()], got {', '.join(got)}")
    names = [quantity.name for quantity in quantities]
    if len(set(names)) < len(names):
        raise ConfigError(f"two quantities of the same name, {', '.join(names)}: give one of them another `name`")
    if health is not None and not callable(health):
        raise ConfigError(f"health is a function of the step, got {health!r}; use every(steps)")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise ConfigError(f"optimizer: wanted one with param_groups, got {type(optimizer).__name__}")


def _listed(given: object) -> Sequence[object]:
    return given if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def check_losses(losses: Tensor) -> None:
    """Makes sure that losses are those of single samples; `EngineError` for another shape than (N,)."""
    if losses.dim() != 1 or not len(losses):
        raise EngineError(
            f"losses of single samples have shape (N,), got {tuple(losses.shape)}; make them with reduction='none'"
        )


def chosen_layers(model: nn.Module, patterns: Sequence[str], depth: int | None) -> dict[str, nn.Module]:
    """The layers that are watched, by name in the order of the model; see `Inspector`.

    Raises:
        ConfigError: a pattern that matches nothing, or a depth below 1.
    """
    if depth is not None and depth < 1:
        raise ConfigError(f"depth counts levels below the model, from 1; got {depth}")
    layers = leaf_modules(model) if depth is None else modules_to_depth(model, depth) or leaf_modules(model)
    modules = dict(model.named_modules())
    named = [name for name in patterns if name in modules and name not in layers and name]
    wanted = [pattern for pattern in patterns if pattern not in named]
    found = chosen(layers, wanted, "layer")
    return {name or MODEL: each for name, each in modules.items() if name in named or (name or MODEL) in found}


def chosen(named: Mapping[str, Named], patterns: Sequence[str], what: str) -> dict[str, Named]:
    """What matches one of some shell patterns, by name; `ConfigError` for a pattern that matches nothing."""
    for pattern in patterns:
        if named and not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(f"{pattern!r} matches no {what}; there are {', '.join(list(named)[:8])} ...")
    return {name: each for name, each in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
