"""Modules of kernels, which are there with what compiles them alone: the extra `fast` (Numba), or Triton."""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType


@functools.cache
def loops(name: str) -> ModuleType | None:
    """A module of this room that has kernels; None without Numba, or Triton for those of accelerators."""
    try:
        return import_module(f".{name}", __package__)
    except ImportError:
        return None
