"""What is refused, and what is warned of, where an inspector is used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import Tensor

from ..errors import ConfigError, EngineError
from .quantities.quantity import Quantity

Named = TypeVar("Named")


class InspectionWarning(UserWarning):
    """Something that was asked for is not seen."""


def warn_of_nothing(quantities: Sequence[Quantity], why: str) -> None:
    """Warns that quantities saw nothing in an epoch, and why."""
    names = ", ".join(quantity.name for quantity in quantities)
    warnings.warn(f"{names}: nothing was seen in this epoch, because {why}", InspectionWarning, stacklevel=4)


def check_losses(losses: Tensor) -> None:
    """Makes sure that losses are those of single samples; `EngineError` for another shape than (N,)."""
    if losses.dim() != 1 or not len(losses):
        raise EngineError(
            f"losses of single samples have shape (N,), got {tuple(losses.shape)}; make them with reduction='none'"
        )


def chosen(named: Mapping[str, Named], patterns: Sequence[str], what: str) -> dict[str, Named]:
    """What matches one of some shell patterns, by name; `ConfigError` for a pattern that matches nothing."""
    for pattern in patterns:
        if named and not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(f"{pattern!r} matches no {what}; there are {', '.join(list(named)[:8])} ...")
    return {name: each for name, each in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
