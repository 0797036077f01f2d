"""Compiled loops over rows, with the extra `fast` (Numba): one pass over a block where PyTorch takes five.

Without Numba, on an accelerator and for other dtypes than those named, the functions return None and the caller goes
the ordinary way; the values differ in the last bits only.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def row_sums(values: Tensor) -> Tensor | None:
    """Largest and smallest element, sum, sum of squares and sum of magnitudes of every row.

    Args:
        values: (r, p) with p of at least one.

    Returns:
        (r, 5) float64, added up in float32 over a few thousand elements at a time; None where there is no kernel for
        `values`: only for contiguous float32 on the CPU.
    """
    loops = _loops()
    if loops is None or values.dtype != torch.float32 or values.device.type != "cpu" or not values.is_contiguous():
        return None
    found = np.empty((len(values), 5))
    loops.sum_rows(*_seen_twice(values.detach().numpy()), found)
    return torch.from_numpy(found)


def row_moments(values: Tensor, *, about_mean: bool) -> Tensor | None:
    """Largest and smallest element, mean, spread and sum of magnitudes of every row, all in float64.

    Args:
        values: (r, p) with p of at least one.
        about_mean: take the spread about the mean, not about zero.

    Returns:
        (r, 5) float64; the spread is the root of the sum of squared deviations, in a second pass and scaled so that
        squares stay in range. None where there is no kernel for `values`: only for float32 and float64 on the CPU.
    """
    loops = _loops()
    if loops is None or values.dtype not in (torch.float32, torch.float64) or values.device.type != "cpu":
        return None
    found = np.empty((len(values), 5))
    loops.take_moments(*_seen_twice(values.detach().contiguous().numpy()), about_mean, found)
    return torch.from_numpy(found)


def centred_products(values: Tensor, centres: Tensor, factors: Tensor) -> Tensor | None:
    """For every row the sum of (value - centre) * factor.

    Args:
        values: (r, p).
        centres: (c,) with r a multiple of c; row i has centre i modulo c.
        factors: (r, p).

    Returns:
        (r,) of the dtype of `values`; None where there is no kernel: only for contiguous float32 on the CPU.
    """
    loops = _loops()
    operands = (values, centres, factors)
    if loops is None or any(
        item.dtype != torch.float32 or item.device.type != "cpu" or not item.is_contiguous() for item in operands
    ):
        return None
    found = np.empty(len(values), dtype=np.float32)
    loops.multiply_rows(*(item.detach().numpy() for item in operands), 0, found)
    return torch.from_numpy(found)


@functools.cache
def _loops() -> ModuleType | None:
    try:
        from . import loops
    except ImportError:
        return None
    return loops


def _seen_twice(values: NDArray[Any]) -> tuple[Any, ...]:
    """Floating-point numbers, the same seen as integers, and what `loops` needs to compare those."""
    kind = np.dtype(f"i{values.itemsize}").type
    return values, values.view(kind), kind(np.iinfo(kind).max)
