"""What `gradscore.kernels` has, as functions of tensors: each chooses a loop, or says that there is none.

In come tensors of per-sample gradients, or the factors of their products. Without Numba (extra `fast`), on an
accelerator and for other types than those named, functions return None and the caller goes the ordinary way; the values
differ in the last bits only.

Below them is on how many threads a loop runs, and how they are started: PyTorch's own threads, where they can be asked.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from .native import Native

RUN = 64
"""Elements that one random word has signs for: see `add_runs`."""

PARALLEL_ELEMENTS = 1 << 17
"""Elements to add up from which a second thread is worth it. With four times as many a perceptron, a ResNet-20 and a
ResNet-56 took 2 % longer; with a quarter the same, and threads that sleep take longer to wake than these elements do.
"""

CACHE_LINE = 64
"""Bytes that threads do not share."""

Doubles = NDArray[np.float64]

LARGEST, SMALLEST, TOTAL, SQUARES, MAGNITUDES = range(5)
"""Places on the last axis of sums over elements (..., 5): the largest and the smallest of them, their sum, and those of
their squares and of their magnitudes."""


@functools.cache
def loops(name: str) -> ModuleType | None:
    """A module of this package that has loops; None without Numba, which compiles them."""
    try:
        return import_module(f".{name}", __package__)
    except ImportError:
        return None


class RowMoments(NamedTuple):
    """Moments of elements, float64 arrays.

    Attributes:
        maximum: largest element.
        minimum: smallest element.
        mean: the mean.
        deviation: root of the sum of squared deviations from the mean, or from zero.
        magnitudes: sum of magnitudes.
    """

    maximum: Doubles
    minimum: Doubles
    mean: Doubles
    deviation: Doubles
    magnitudes: Doubles


@np.errstate(all="ignore")
def join_sums(sums: Doubles, axis: int) -> Doubles:
    """Sums over parts of the elements, which lie on an axis, as sums over all of them."""
    if sums.shape[axis] == 1:
        return sums.squeeze(axis)
    found: Doubles = sums.sum(axis)
    found[..., LARGEST], found[..., SMALLEST] = sums[..., LARGEST].max(axis), sums[..., SMALLEST].min(axis)
    return found


def row_sums(values: Tensor) -> Doubles | None:
    """Sums over the elements of every row.

    Args:
        values: (r, p) with p of at least one.

    Returns:
        (r, 5), added up in float32 over a few thousand elements at a time; None where there is no kernel for
        `values`: only for contiguous float32 on the CPU.
    """
    found = loops("row_loops")
    if found is None or not _is_float(values) or not values.is_contiguous():
        return None
    values = _lying(values)
    sums = np.empty((len(values), 5))
    share(values.numel(), len(values), found.sum_some_rows, values.data_ptr(), values.shape[1], sums.ctypes.data)
    return sums


def moments_of_all(matrices: Sequence[Tensor], *, about_mean: bool) -> RowMoments | None:
    """Moments of the elements of every row of some matrices, all in float64.

    Args:
        matrices: (n, p) with p of at least one, which may differ from matrix to matrix; at least one of them.
        about_mean: take deviations from the mean, not from zero.

    Returns:
        Arrays (matrices, n); squares are added up in a second pass and scaled so that they stay in range. None where
        there is no kernel: only for matrices of float32 or of float64 alone, on the CPU.
    """
    found = loops("row_loops")
    types = {(matrix.dtype, matrix.device.type) for matrix in matrices}
    if found is None or len(types) > 1 or not types <= {(torch.float32, "cpu"), (torch.float64, "cpu")}:
        return None
    lying = [_lying(matrix) for matrix in matrices]
    rows, size = len(lying[0]), lying[0].element_size()
    moments = np.empty((len(lying), rows, 5))
    settings = size, int(about_mean), len(lying), moments.ctypes.data
    table = [number for matrix in lying for number in (matrix.data_ptr(), matrix.shape[1])]
    share(sum(matrix.numel() for matrix in lying), rows, found.take_some_moments, *settings, *table)
    return RowMoments(*np.moveaxis(moments, 2, 0))


def centred_products(values: Tensor, centres: Tensor, factors: Tensor) -> Tensor | None:
    """For every sample and channel the sum of (value - centre) * factor, and that of the factors alone.

    Args:
        values: (n, c, *positions).
        centres: (c,).
        factors: of the shape of `values`.

    Returns:
        (2, n, c) of the dtype of `values`; None where there is no kernel: only for contiguous float32 on the CPU.
    """
    found = loops("row_loops")
    operands = (values, centres, factors)
    if found is None or not all(_is_float(each) and each.is_contiguous() for each in operands):
        return None
    samples, channels, *positions = values.shape
    lying = [_lying(each) for each in operands]
    rows, width, sums = samples * channels, prod(positions), np.empty((2, samples, channels), np.float32)
    addresses = [*(each.data_ptr() for each in lying), sums.ctypes.data]
    share(rows * width, rows, found.multiply_some_rows, *addresses, width, channels)
    return torch.from_numpy(sums)


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
    found = loops("row_loops")
    if found is None or not all(map(_is_float, (values, centres, scales, factors))):
        return None
    samples, tokens, width = values.shape
    # A network may hold (n, p, t), as patches come from a convolution, or (t, n, p), as attention wants them.
    by_columns = not values.is_contiguous() and values.transpose(1, 2).is_contiguous()
    tokens_first = not factors.is_contiguous() and factors.transpose(0, 1).is_contiguous()
    lying = [
        _lying(values.transpose(1, 2) if by_columns else values),
        *map(_lying, (centres, scales)),
        _lying(factors.transpose(0, 1) if tokens_first else factors),
    ]
    sums = np.empty((2, samples, width), np.float32)
    addresses = [*(each.data_ptr() for each in lying), sums.ctypes.data]
    apart = (1, samples) if tokens_first else (tokens, 1)  # rows of factors, from sample to sample and from t to t
    scratch = width * (24 + 4 * tokens * by_columns)
    settings = tokens, width, int(by_columns), *apart
    share(samples * tokens * width, samples, found.sum_normed, *addresses, *settings, scratch=scratch)
    return torch.from_numpy(sums)


def product_sums(left: Tensor, right: Tensor) -> Doubles | None:
    """`row_sums` of the elements of left[n] @ right[n].T, which are never written to memory.

    Args:
        left: (n, o, s).
        right: (n, i, s); no size is zero.

    Returns:
        (n, 5); None where there is no kernel: only for float32 on the CPU, where PyTorch carries MKL.
    """
    found = _product_loops(left, right)
    if found is None:
        return None
    sums: Doubles = found.sum_products(left.detach().resolve_neg(), right.detach().resolve_neg())
    return sums


class Sliding(TypedDict):
    """Settings of windows that slide over images.

    Attributes:
        kernel: window size.
        stride: step between windows.
        dilation: step inside a window.
        padding: zeros added on both sides.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]


def window_sums(left: Tensor, image: Tensor, **sliding: Unpack[Sliding]) -> Doubles | None:
    """`row_sums` of per-sample weight gradients of a convolution, which are never written to memory.

    Args:
        left: (n, g, o, h, w): gradients at the positions, by groups of channels.
        image: (n, g, i, H, W): what the windows slide over, before padding; no size of either is zero.
        **sliding: see `Sliding`.

    Returns:
        (n * g, 5); None as for `product_sums`.
    """
    found = _product_loops(left, image)
    if found is None:
        return None
    sums = np.empty((left.shape[0] * left.shape[1], 5))
    found.multiply_windows(_lying(left), _lying(image), sliding, sums=sums.ctypes.data)
    return sums


def write_window_products(left: Tensor, image: Tensor, into: Tensor, **sliding: Unpack[Sliding]) -> None:
    """Writes out per-sample weight gradients of a convolution; only for operands that `has_products`.

    Args:
        left: see `window_sums`.
        image: see `window_sums`.
        into: (n, g, *kernel, i, o), contiguous, where they go.
        **sliding: see `Sliding`.
    """
    found = _product_loops(left, image)
    assert found is not None
    found.multiply_windows(_lying(left), _lying(image), sliding, into=into.data_ptr())


def has_products(*operands: Tensor) -> bool:
    """Whether there are kernels that multiply these: see `product_sums`."""
    return _product_loops(*operands) is not None


def _product_loops(*operands: Tensor) -> ModuleType | None:
    if loops("row_loops") is None or not all(map(_is_float, operands)):
        return None
    native = loops("native")
    return loops("product_loops") if native is not None and native.has_products() else None


def count_products(
    left: Tensor, right: Tensor, bins: int, low: float, high: float, columns: Tensor | None, inner: int
) -> Tensor | None:
    """Counts the elements of outer products in bins of equal width, without writing them out.

    Edges are worked out in the type of the elements.

    Args:
        left: (n, o).
        right: (n, i); all products are finite.
        bins: number of bins; the outermost take what lies beyond.
        low: lower end of the first bin.
        high: upper end of the last bin.
        columns: (o * i,) int32 bin of every element on a second axis; None for one axis.
        inner: number of bins of the second axis, 1 without one.

    Returns:
        (bins, inner) int64 counts. None where there is no kernel: without Numba, off the CPU, and for other dtypes than
        float32 and float64.
    """
    found = loops("row_loops")
    if found is None or not _is_real(left) or left.dtype != right.dtype:
        return None
    one, other = (_lying(each).numpy() for each in (left, right))
    kind = one.dtype.type
    width = kind(high - low)
    axis = np.array([kind(low), width, kind(bins)])
    second = (0, 0) if columns is None else (columns.data_ptr(), other.shape[1])
    settings = one.itemsize, one.ctypes.data, other.ctypes.data, *one.shape, other.shape[1], axis.ctypes.data
    with threads(one.size * other.shape[1]) as parts:
        counts = np.zeros((2 * parts, bins * inner), np.int64)
        words = *settings, int(np.frexp(width)[0] == 0.5), *second, inner, counts.ctypes.data
        run_on(parts, parts, found.count_bins, *words, scratch=16 * found.BINS)
    return torch.from_numpy(counts.sum(0)).view(bins, inner)


def add_deviations(values: Tensor, first: Tensor, sums: Tensor, squares: Tensor) -> bool:
    """Adds up, over rows and in float64, deviations from `first` and their squares.

    Args:
        values: (n, p).
        first: (p,) of the same dtype.
        sums: (p,) float64, changed in place.
        squares: (p,) float64, changed in place.

    Returns:
        False, with nothing changed, where there is no kernel; see `count_products`.
    """
    found = loops("row_loops")
    if found is None or not _is_real(values):
        return False
    one, centre = _lying(values), _lying(first)
    addresses = [each.data_ptr() for each in (one, centre, sums, squares)]
    share(values.numel(), values.shape[1], found.add_deviations, one.element_size(), len(one), *addresses)
    return True


def add_runs(values: Tensor, firsts: Tensor, *, key: int, dim: int, found: Tensor) -> bool:
    """Adds elements with random signs to places that are random for each run of `RUN` elements.

    Run r, elements 64 r to 64 r + 63, goes to places from `start` on, where `start` is the upper half of word 2 r + 1
    times `dim`, shifted by 32 bits; bit b of word 2 r is the sign of its element b.

    Args:
        values: (n, t, p): t parts of the elements of each of n samples.
        firsts: (n, t) int64, which element each part begins with.
        key: of the random words, below 2**64: word i is the i-th number that SplitMix64 gives from the state `key`.
        dim: number of places that a run may begin at.
        found: (n, dim + RUN), what is added to.

    Returns:
        False, and nothing is added, where there is no kernel: only for contiguous float32 and float64 on the CPU.
    """
    loop = loops("row_loops")
    usable = all(_is_real(each) and each.is_contiguous() for each in (values, found))
    if loop is None or not usable or values.dtype != found.dtype:
        return False
    lying, places = _lying(values), firsts.contiguous()
    settings = values.element_size(), *values.shape[1:], key, dim
    share(values.numel(), len(values), loop.add_runs, *settings, lying.data_ptr(), places.data_ptr(), found.data_ptr())
    return True


def _lying(values: Tensor) -> Tensor:
    """With its elements in memory as they are meant, one after the other."""
    return values.detach().resolve_neg().contiguous()


def _is_float(values: Tensor) -> bool:
    return values.dtype == torch.float32 and values.device.type == "cpu"


def _is_real(values: Tensor) -> bool:
    return values.dtype in (torch.float32, torch.float64) and values.device.type == "cpu"


# Threads.

_TURN = threading.Lock()
_PROCESS = os.getpid()


def share(elements: int, items: int, loop: Native, *words: int, scratch: int = 0) -> None:
    """Does some work on several threads where that is worth it and safe.

    Args:
        elements: how much it is; see `threads`.
        items: what it is made of.
        loop: a `native.region`, which does parts of them.
        words: what it wants: numbers, and addresses of arrays.
        scratch: bytes that each thread needs for intermediate results.

    Raises:
        MemoryError: they are not to be had.
    """
    with threads(elements) as count:
        run_on(count, items, loop, *words, scratch=scratch)


def run_on(count: int, items: int, loop: Native, *words: int, scratch: int = 0) -> None:
    """As `share`, on so many threads; inside `threads`, which says how many."""
    from .native import start_team

    memory = ctypes.c_int64 * (4 + len(words))
    apart = -(-scratch // CACHE_LINE) * CACHE_LINE
    buffers = np.empty(count * apart, np.uint8)
    words = (buffers.ctypes.data, apart, *words)
    start = start_team() if count > 1 else None
    if start is None:
        loop(memory(items, 1, *words))
    else:
        start(loop.address, memory(items, 0, *words), count, 0)


@contextmanager
def threads(elements: int) -> Iterator[int]:
    """Number of threads to use for some work, as many as PyTorch does.

    One where another thread of this process has the others already, and in a process forked from one that may have had
    them, where they no longer exist.

    Args:
        elements: how many elements to add up would take as long.
    """
    wanted = torch.get_num_threads()
    if elements < PARALLEL_ELEMENTS or wanted < 2 or os.getpid() != _PROCESS:
        yield 1
    elif _TURN.acquire(blocking=False):
        try:
            yield wanted
        finally:
            _TURN.release()
    else:
        yield 1
