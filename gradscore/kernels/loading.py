"""Modules of compiled loops, which are there with the extra `fast` (Numba) alone."""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType


@functools.cache
def loops(name: str) -> ModuleType | None:
    """The module of this room that has compiled loops; None without Numba."""
    try:
        return import_module(f".{name}", __package__)
    except ImportError:
        return None
