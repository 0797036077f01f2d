"""Compiled loops over gradient elements, with the extra `fast` (Numba); PyTorch does the same in more passes."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from .loading import loops as load_loops

_loops = functools.partial(load_loops, "histogram_loops")


def count_bins(values: Tensor, bins: int, low: float, high: float, columns: Tensor | None, inner: int) -> Tensor | None:
    """Counts finite values in bins of equal width, whose edges are worked out in the type of the values.

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
    flat = values if columns is not None else values.reshape(1, -1)
    places = None if columns is None else columns.view(1, -1)
    return count_products(flat.new_ones(len(flat), 1), flat, bins, low, high, places, inner)


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
    loops = _loops()
    if loops is None or not _usable(left) or left.dtype != right.dtype:
        return None
    one, other = (each.detach().contiguous().numpy() for each in (left, right))
    places = np.zeros((one.shape[1], 0), np.int32) if columns is None else columns.numpy().reshape(one.shape[1], -1)
    counts = loops.count(one, other, bins, low, high, places, inner)
    return torch.from_numpy(counts).view(bins, inner)


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
    loops = _loops()
    if loops is None or not _usable(values):
        return False
    operands = (each.detach().contiguous().numpy() for each in (values, first))
    loops.add_deviations(*operands, sums.numpy(), squares.numpy())
    return True


def _usable(values: Tensor) -> bool:
    return values.dtype in (torch.float32, torch.float64) and values.device.type == "cpu"
