"""Finds functions of PyTorch's library for the CPU, and of those it was linked with."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch


def addresses_of(*names: str) -> tuple[int, ...] | None:
    """Where functions lie in memory; None where one of them is missing.

    Args:
        names: as the linker has them.
    """
    library = _library()
    try:
        return None if library is None else tuple(_address(library, name) for name in names)
    except AttributeError:
        return None


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None


def _address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
