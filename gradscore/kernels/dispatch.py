"""Compiled loops over rows, with the extra `fast` (Numba): one pass over a block where PyTorch takes five.

Without Numba, on an accelerator and for other dtypes than those named, the functions return None and the caller goes
the ordinary way; the values differ in the last bits only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .loading import loops as load_loops

_loops = functools.partial(load_loops, "row_loops")

Doubles = NDArray[np.float64]


def row_sums(values: Tensor) -> Doubles | None:
    """Largest and smallest element, sum, sum of squares and sum of magnitudes of every row.

    Args:
        values: (r, p) with p of at least one.

    Returns:
        (r, 5) float64, added up in float32 over a few thousand elements at a time; None where there is no kernel for
        `values`: only for contiguous float32 on the CPU.
    """
    loops = _loops()
    if loops is None or not _usable(values):
        return None
    found = np.empty((len(values), 5))
    loops.sum_rows(*_seen_twice(values.detach().numpy()), found)
    return found


def row_moments(values: Tensor, *, about_mean: bool) -> Doubles | None:
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
    return found


def moments_of_all(matrices: Sequence[Tensor], *, about_mean: bool) -> Doubles | None:
    """As `row_moments`, of the rows of several matrices at once.

    Args:
        matrices: (n, p) with p of at least one, which may differ from matrix to matrix; at least one of them.
        about_mean: as for `row_moments`.

    Returns:
        (matrices, n, 5) float64; None where there is no kernel: only for matrices of float32 or of float64 alone, on
        the CPU.
    """
    loops = _loops()
    types = {(matrix.dtype, matrix.device.type) for matrix in matrices}
    if loops is None or len(types) > 1 or not types <= {(torch.float32, "cpu"), (torch.float64, "cpu")}:
        return None
    from . import matrix_loops

    lying = [matrix.detach().contiguous() for matrix in matrices]
    found = np.empty((len(lying), len(lying[0]), 5))
    table = np.array([(matrix.data_ptr(), matrix.shape[1]) for matrix in lying], np.int64)
    matrix_loops.take_all(lying[0][:0].numpy().reshape(0), table, about_mean, found)
    return found


def centred_products(values: Tensor, centres: Tensor, factors: Tensor) -> Tensor | None:
    """For every sample and channel the sum of (value - centre) * factor, and that of the factors alone.

    Args:
        values: (n, c, *positions).
        centres: (c,).
        factors: of the shape of `values`.

    Returns:
        (2, n, c) of the dtype of `values`; None where there is no kernel: only for contiguous float32 on the CPU.
    """
    loops = _loops()
    operands = (values, centres, factors)
    if loops is None or not all(map(_usable, operands)):
        return None
    samples, channels, *positions = values.shape
    rows, means, others = (each.detach().numpy() for each in operands)
    found = np.empty((2, samples * channels), dtype=np.float32)
    shape = samples * channels, prod(positions)
    loops.multiply_rows(rows.reshape(shape), means, others.reshape(shape), found)
    return torch.from_numpy(found.reshape(2, samples, channels))


def product_sums(left: Tensor, right: Tensor) -> Doubles | None:
    """The same as `row_sums` of the elements of left[n] @ right[n].T, which are never written to memory.

    Args:
        left: (n, o, s).
        right: (n, i, s); no size is zero.

    Returns:
        (n, 5) as `row_sums`; None where there is no kernel: only for float32 on the CPU, where PyTorch carries MKL.
    """
    loops = _product_loops("product_loops", left, right)
    if loops is None:
        return None
    sizes = (left.shape[1], right.shape[1], left.shape[2])
    matrices = (_in_memory(loops, each.detach()) for each in (left, right))
    found: Doubles = loops.sum_products(*matrices, len(left), sizes)
    return found


class Sliding(TypedDict):
    """How windows slide: the settings of `window_sums`."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]


def window_sums(
    left: Tensor,
    image: Tensor,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
) -> Doubles | None:
    """The same as `row_sums` of per-sample weight gradients of a convolution, which are never written to memory.

    Args:
        left: (n, g, o, h, w): gradients at the positions, by groups of channels.
        image: (n, g, i, H, W): what the windows slide over, before padding; no size of either is zero.
        kernel: window size.
        stride: step between windows.
        dilation: step inside a window.
        padding: zeros added on both sides.

    Returns:
        (n * g, 5) as `row_sums`; None as for `product_sums`.
    """
    loops = _product_loops("window_loops", left, image)
    if loops is None:
        return None
    operands = (each.detach().contiguous().numpy() for each in (left, image))
    found: Doubles = loops.sum_windows(*operands, kernel, stride, dilation, padding)
    return found


def write_window_products(
    left: Tensor,
    image: Tensor,
    into: Tensor,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    """Writes out per-sample weight gradients of a convolution; only for operands that `has_products`.

    Args:
        left: see `window_sums`.
        image: see `window_sums`.
        into: (n, g, *kernel, i, o), contiguous, where they go.
        kernel: see `window_sums`.
        stride: see `window_sums`.
        dilation: see `window_sums`.
        padding: see `window_sums`.
    """
    loops = _product_loops("window_loops", left, image)
    assert loops is not None
    operands = (each.detach().contiguous().numpy() for each in (left, image))
    loops.write_windows(*operands, kernel, stride, dilation, padding, into.numpy())


def has_products(*operands: Tensor) -> bool:
    """Whether there are kernels that multiply these: see `product_sums`."""
    return _product_loops("product_loops", *operands) is not None


def _product_loops(name: str, *operands: Tensor) -> ModuleType | None:
    if _loops() is None or not all(map(_is_float, operands)):
        return None
    from . import mkl

    return load_loops(name) if mkl.addresses() else None


def _in_memory(loops: ModuleType, matrices: Tensor) -> Any:
    """`product_loops.Matrices`; they are copied unless the elements of rows or of columns lie side by side."""
    matrix, row, column = matrices.stride()
    rows, columns = matrices.shape[1:]
    by_rows = (column == 1 or columns == 1) and (row >= columns or rows == 1)
    by_columns = (row == 1 or rows == 1) and (column >= rows or columns == 1)
    if not (by_rows or by_columns):
        return _in_memory(loops, matrices.contiguous())
    apart = max(row, columns) if by_rows else max(column, rows)
    span = (len(matrices) - 1) * matrix + (rows - 1) * row + (columns - 1) * column + 1
    return loops.Matrices(matrices.as_strided((span,), (1,)).numpy(), (matrix, apart), not by_rows)


def normed_products(values: Tensor, centres: Tensor, scales: Tensor, factors: Tensor) -> Tensor | None:
    """For every sample the sums over its rows of (value - centre) * scale * factor and of the factors, by columns.

    Args:
        values: (n, t, p).
        centres: (n, t).
        scales: (n, t).
        factors: (n, t, p).

    Returns:
        (2, n, p) of the dtype of `values`; None where there is no kernel: only for float32 on the CPU.
    """
    loops = _loops()
    operands = (values, centres, scales, factors)
    if loops is None or not all(map(_is_float, operands)):
        return None
    samples, tokens, width = values.shape
    # A network may hold (n, p, t), as patches come from a convolution, or (t, n, p), as attention wants them.
    by_columns = not values.is_contiguous() and values.transpose(1, 2).is_contiguous()
    tokens_first = not factors.is_contiguous() and factors.transpose(0, 1).is_contiguous()
    lines = (factors.transpose(0, 1) if tokens_first else factors.contiguous()).reshape(-1, width)
    found = np.empty((2, samples, width), dtype=np.float32)
    loops.sum_normed(
        (values.transpose(1, 2) if by_columns else values.contiguous()).detach().numpy(),
        by_columns,
        *(each.detach().contiguous().numpy() for each in (centres, scales, lines)),
        (1, samples) if tokens_first else (tokens, 1),
        found,
    )
    return torch.from_numpy(found)


def _usable(values: Tensor) -> bool:
    return _is_float(values) and values.is_contiguous()


def _is_float(values: Tensor) -> bool:
    return values.dtype == torch.float32 and values.device.type == "cpu"


def _seen_twice(values: NDArray[Any]) -> tuple[Any, ...]:
    """Floating-point numbers, the same seen as integers, and what `loops` needs to compare those."""
    kind = np.dtype(f"i{values.itemsize}").type
    return values, values.view(kind), kind(np.iinfo(kind).max)
