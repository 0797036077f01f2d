"""Compiled loops over rows, with the extra `fast` (Numba): one pass over a block where PyTorch takes five.

Without Numba, on an accelerator and for other dtypes than those named, the functions return None and the caller goes
the ordinary way; the values differ in the last bits only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 2048
"""Elements that are added up in float32 before they join a sum in float64."""

EXTREMA, SUMS = slice(0, 2), slice(2, 5)
"""Columns of `row_sums`: the largest and smallest element; sum, sum of squares, sum of magnitudes."""

LOWEST, HIGHEST = np.int32(-(2**31)), np.int32(2**31 - 1)

ANY_ORDER = {"reassoc", "contract", "nsz"}
"""Sums in any order, so that they run in vector registers; NaN and infinity keep their meaning."""

Kernel = Callable[..., None]
Floats = NDArray[Any]
Integers = NDArray[np.int32]
Doubles = NDArray[np.float64]


def row_sums(values: Tensor) -> Tensor | None:
    """Largest and smallest element, sum, sum of squares and sum of magnitudes of every row.

    Args:
        values: (r, p) with p of at least one.

    Returns:
        (r, 5) float64, added up in float32 over a few thousand elements at a time; None where there is no kernel for
        `values`: only for contiguous float32 on the CPU.
    """
    kernels = _kernels()
    if kernels is None or values.dtype != torch.float32 or values.device.type != "cpu" or not values.is_contiguous():
        return None
    found = np.empty((len(values), 5))
    array = values.detach().numpy()
    kernels["sums"](array, array.view(np.int32), found)
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
    kernels = _kernels()
    if kernels is None or values.dtype not in (torch.float32, torch.float64) or values.device.type != "cpu":
        return None
    found = np.empty((len(values), 5))
    kernels["moments"](values.detach().contiguous().numpy(), about_mean, found)
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
    kernels = _kernels()
    operands = (values, centres, factors)
    if kernels is None or any(
        item.dtype != torch.float32 or item.device.type != "cpu" or not item.is_contiguous() for item in operands
    ):
        return None
    found = np.empty(len(values), dtype=np.float32)
    kernels["products"](*(item.detach().numpy() for item in operands), found)
    return torch.from_numpy(found)


@functools.cache
def _kernels() -> dict[str, Kernel] | None:
    try:
        import numba
    except ImportError:
        return None
    loops: dict[str, Kernel] = {"sums": _sum_rows, "moments": _take_moments, "products": _multiply_rows}
    return {name: _compiled(numba, loop) for name, loop in loops.items()}


def _compiled(numba: ModuleType, loop: Kernel) -> Kernel:
    """Compiles when first called; kept on disk for later processes where there is a place for it."""
    options = {"nogil": True, "fastmath": ANY_ORDER}
    try:
        kernel: Kernel = numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder that can be written
        kernel = numba.njit(**options)(loop)
    return kernel


def _sum_rows(values: Floats, bits: Integers, found: Doubles) -> None:
    """Largest, smallest, sum, squares, magnitudes of each row; `bits` is `values` seen as int32."""
    for row in range(values.shape[0]):
        total = squares = magnitudes = 0.0
        high, low = LOWEST, HIGHEST
        for start in range(0, values.shape[1], CHUNK):
            part = values[row, start : start + CHUNK]
            s, q, m = np.float32(0), np.float32(0), np.float32(0)
            for place in range(part.size):
                x = part[place]
                s += x
                q += x * x
                m += abs(x)
            total += float(s)
            squares += float(q)
            magnitudes += float(m)
            # Floating-point numbers as integers of the same order: those compare in vector registers.
            whole = bits[row, start : start + CHUNK]
            for place in range(whole.size):
                key = np.int32(whole[place] ^ np.int32(np.int32(whole[place] >> 31) & HIGHEST))
                if key > high:
                    high = key
                if key < low:
                    low = key
        extrema = np.empty(2, np.int32)  # made here: outside, it might overlap `bits`, and nothing would be vectorised
        extrema[0] = high ^ ((high >> 31) & HIGHEST)
        extrema[1] = low ^ ((low >> 31) & HIGHEST)
        largest, smallest = extrema.view(np.float32)
        found[row, 0] = np.nan if np.isnan(magnitudes) else largest
        found[row, 1] = np.nan if np.isnan(magnitudes) else smallest
        found[row, 2] = total
        found[row, 3] = squares
        found[row, 4] = magnitudes


def _take_moments(values: Floats, about_mean: bool, found: Doubles) -> None:
    """Largest, smallest, mean, spread, magnitudes of each row, in two passes."""
    for row in range(values.shape[0]):
        total = magnitudes = 0.0
        high, low = -np.inf, np.inf
        for place in range(values.shape[1]):
            x = np.float64(values[row, place])
            total += x
            magnitudes += abs(x)
            high = max(high, x)
            low = min(low, x)
        mean = total / values.shape[1]
        centre = mean if about_mean else 0.0
        scale = max(abs(high - centre), abs(low - centre))
        squares = 0.0
        if scale > 0 and scale < np.inf:
            for place in range(values.shape[1]):
                x = (np.float64(values[row, place]) - centre) / scale
                squares += x * x
        unknown = np.isnan(magnitudes)
        found[row, 0] = np.nan if unknown else high
        found[row, 1] = np.nan if unknown else low
        found[row, 2] = mean
        found[row, 3] = scale * np.sqrt(squares) if scale < np.inf else scale
        found[row, 4] = magnitudes


def _multiply_rows(values: Floats, centres: Floats, factors: Floats, found: Floats) -> None:
    """Sum of (value - centre) * factor of each row."""
    for row in range(values.shape[0]):
        centre = centres[row % centres.size]
        total = 0.0
        for start in range(0, values.shape[1], CHUNK):
            part, factor = values[row, start : start + CHUNK], factors[row, start : start + CHUNK]
            s = np.float32(0)
            for place in range(part.size):
                s += (part[place] - centre) * factor[place]
            total += float(s)
        found[row] = total
