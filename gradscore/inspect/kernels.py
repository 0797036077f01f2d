"""Compiled loops over gradient elements, with the extra `fast` (Numba); PyTorch does the same in more passes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LANES = 4
"""Counters side by side, so that many equal values (zeros, mostly) do not wait for one another."""

Kernel = Callable[..., Any]
Floats = NDArray[Any]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]
Doubles = NDArray[np.float64]


def count_bins(values: Tensor, bins: int, low: float, high: float, columns: Tensor | None, inner: int) -> Tensor | None:
    """Counts finite values in bins of equal width.

    Args:
        values: (n, p), all finite.
        bins: number of bins; the outermost take what lies beyond.
        low: lower end of the first bin.
        high: upper end of the last bin.
        columns: (p,) int32 bin of every column on a second axis; None for one axis.
        inner: number of bins of the second axis, 1 without one.

    Returns:
        (bins, inner) int64 counts. None where there is no kernel: without Numba, off the CPU, and for other dtypes than
        float32 and float64.
    """
    kernels = _kernels()
    if kernels is None or values.dtype not in (torch.float32, torch.float64) or values.device.type != "cpu":
        return None
    array = values.detach().contiguous().numpy()
    counts = np.zeros((LANES, bins, inner), np.int64)
    kind = array.dtype.type
    places = np.zeros(0, np.int32) if columns is None else columns.numpy()
    kernels["bins"](array, kind(low), kind(high - low), kind(bins), places, counts)
    return torch.from_numpy(counts.sum(0))


def count_products(
    left: Tensor, right: Tensor, bins: int, low: float, high: float, columns: Tensor | None, inner: int
) -> Tensor | None:
    """Counts the elements of outer products as `count_bins` does, without writing them out.

    Args:
        left: (n, o).
        right: (n, i); all products are finite.
        bins: see `count_bins`.
        low: see `count_bins`.
        high: see `count_bins`.
        columns: (o * i,) as in `count_bins`.
        inner: see `count_bins`.

    Returns:
        See `count_bins`.
    """
    kernels = _kernels()
    if kernels is None or left.dtype not in (torch.float32, torch.float64) or left.device.type != "cpu":
        return None
    one, other = (each.detach().contiguous().numpy() for each in (left, right))
    counts = np.zeros((LANES, bins, inner), np.int64)
    kind = one.dtype.type
    places = np.zeros((one.shape[1], 0), np.int32) if columns is None else columns.numpy().reshape(one.shape[1], -1)
    kernels["products"](one, other, kind(low), kind(high - low), kind(bins), places, counts)
    return torch.from_numpy(counts.sum(0))


def add_deviations(values: Tensor, first: Tensor, sums: Tensor, squares: Tensor) -> bool:
    """Adds up, over rows and in float64, deviations from `first` and their squares.

    Args:
        values: (n, p).
        first: (p,) of the same dtype.
        sums: (p,) float64, changed in place.
        squares: (p,) float64, changed in place.

    Returns:
        False, with nothing changed, where there is no kernel; see `count_bins`.
    """
    kernels = _kernels()
    if kernels is None or values.dtype not in (torch.float32, torch.float64) or values.device.type != "cpu":
        return False
    kernels["deviations"](
        values.detach().contiguous().numpy(), first.detach().contiguous().numpy(), sums.numpy(), squares.numpy()
    )
    return True


@functools.cache
def _kernels() -> dict[str, Kernel] | None:
    try:
        import numba
    except ImportError:
        return None
    loops: dict[str, Kernel] = {"bins": _count_bins, "products": _count_products, "deviations": _add_deviations}
    return {name: _compiled(numba, loop) for name, loop in loops.items()}


def _compiled(numba: ModuleType, loop: Kernel) -> Kernel:
    """Compiles when first called; kept on disk for later processes where there is a place for it."""
    try:
        kernel: Kernel = numba.njit(cache=True, nogil=True)(loop)
    except RuntimeError:  # no folder that can be written
        kernel = numba.njit(nogil=True)(loop)
    return kernel


def _count_bins(values: Floats, low: Any, width: Any, bins: Any, places: Places, counts: Integers) -> None:
    """Counts into `counts` (lanes, bins, inner); bins are worked out many at a time, in vector registers."""
    last = values.dtype.type(counts.shape[1] - 1)
    nothing = values.dtype.type(0)
    found = np.empty(1024, np.int32)
    for row in range(values.shape[0]):
        for start in range(0, values.shape[1], 1024):
            part = values[row, start : start + 1024]
            for place in range(part.size):
                found[place] = np.int32(min(max((part[place] - low) / width * bins, nothing), last))
            if places.size:
                beside = places[start : start + 1024]
                for place in range(part.size):
                    counts[place & 3, found[place], beside[place]] += 1
            else:
                for place in range(part.size):
                    counts[place & 3, found[place], 0] += 1


def _count_products(
    left: Floats, right: Floats, low: Any, width: Any, bins: Any, places: Places, counts: Integers
) -> None:
    """Counts left x right of every sample; rows of zeros, which dead units leave, are counted at once."""
    last = left.dtype.type(counts.shape[1] - 1)
    nothing = left.dtype.type(0)
    found = np.empty(1024, np.int32)
    zero = np.int32(min(max((nothing - low) / width * bins, nothing), last))
    for column in range(left.shape[1]):
        zeros = 0
        for row in range(left.shape[0]):
            factor = left[row, column]
            if factor == 0:
                zeros += 1
                continue
            for start in range(0, right.shape[1], 1024):
                part = right[row, start : start + 1024]
                for place in range(part.size):
                    found[place] = np.int32(min(max((factor * part[place] - low) / width * bins, nothing), last))
                if places.size:
                    beside = places[column, start : start + 1024]
                    for place in range(part.size):
                        counts[place & 3, found[place], beside[place]] += 1
                else:
                    for place in range(part.size):
                        counts[place & 3, found[place], 0] += 1
        if places.size:
            for place in range(right.shape[1]):
                counts[0, zero, places[column, place]] += zeros
        else:
            counts[0, zero, 0] += zeros * right.shape[1]


def _add_deviations(values: Floats, first: Floats, sums: Doubles, squares: Doubles) -> None:
    """See `add_deviations`; a few thousand columns at a time, whose sums stay in the cache."""
    for start in range(0, values.shape[1], 2048):
        stop = min(start + 2048, values.shape[1])
        for row in range(values.shape[0]):
            for column in range(start, stop):
                deviation = np.float64(values[row, column] - first[column])
                sums[column] += deviation
                squares[column] += deviation * deviation
