"""The loops of `kernels` that make products and reduce them at once; importing this module needs Numba.

A thread takes one sample after the other, and a few rows of its gradient at a time, so that what a product leaves
behind is read again while it is in the cache of that thread. Some gradients are transposed here, which no statistic
depends on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .compile import compiled
from .mkl import SCRATCH, Functions, addresses, call_with_int, call_with_six, multiply
from .regions import fork
from .row_loops import own_sums_first, sum_all_rows
from .threads import share

BUFFER = 1 << 17
"""Elements of a gradient that are made at a time: half a mebibyte, half of a usual second cache. On six layer shapes a
half to eight times as many took the same time within 5 %."""

WIDE = 384
"""Columns of a gradient that are made at a time: wider products of MKL are slower. 768 x 3072 with 50 positions took
22 ms, and 25 ms in one piece; with 96 columns at a time, 2304 x 256 with 64 positions took 8.4 instead of 6.9 ms."""

LINES = 16
"""Columns of a matrix that are transposed at a time, a line of the cache of each row: four in ten nanoseconds less an
element than a row at a time."""

POSITIONS = 8
"""Products to sum up that take as long as an element to add to the sums."""

SIZE = 4
"""Bytes of an element."""

ALL_BUT_SIGN = np.int32(np.iinfo(np.int32).max)

Whole = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def _join(found: Doubles, more: Doubles) -> None:
    """Takes sums over further elements into `found` (5,); see `kernels.row_sums`. NaN stays NaN."""
    for place in range(2, 5):
        found[place] += more[place]
    if np.isnan(found[4]):
        found[0] = found[1] = np.nan
    else:
        found[0], found[1] = max(found[0], more[0]), min(found[1], more[1])


join = compiled(_join)


def _parted(size: int, most: int) -> int:
    """The size of parts of `size`, all about equal, that are no larger than `most`."""
    pieces = -(-size // most)
    return -(-size // pieces)


parted = compiled(_parted)


def _turn(
    functions: Functions, source: Floats, corner: int, apart: int, shape: tuple[int, int], target: Floats
) -> None:
    """Transposes a matrix of rows `apart` elements from each other, the first from `corner` on, into `target`."""
    if functions[3] != 0:
        places = (source.ctypes.data + SIZE * corner, target.ctypes.data)
        call_with_six(functions[3], (shape[0], shape[1], np.int64(places[0]), apart, np.int64(places[1]), shape[0]))
        return
    rows, columns = np.uintp(shape[0]), shape[1]
    for start in range(0, columns, LINES):
        for row in range(rows):
            # Numba looks at every place with a sign whether it counts from the end, and copies one element at a time.
            first = np.uintp(corner) + row * np.uintp(apart)
            for column in range(np.uintp(start), np.uintp(min(start + LINES, columns))):
                target[column * rows + row] = source[first + column]


turn = compiled(_turn)


def _sum_product(
    functions: Functions,
    sizes: tuple[int, int, int],
    left: tuple[int, int],
    right: tuple[int, int],
    buffer: Floats,
    scratch: Whole,
    found: Doubles,
) -> None:
    """Joins the sums over all elements of left @ right to `found`; arguments as in `mkl.multiply`."""
    height, width, inner = sizes
    wide = parted(width, WIDE)
    tall = parted(height, max(1, buffer.size // wide))
    sums = np.empty((1, 5))
    for start in range(0, width, wide):
        columns = min(wide, width - start)
        beside = (right[0] + SIZE * start, right[1])
        for top in range(0, height, tall):
            rows = min(tall, height - top)
            above = (left[0] + SIZE * top * left[1], left[1])
            multiply(functions, (rows, columns, inner), above, beside, buffer.ctypes.data, scratch)
            values = buffer[: rows * columns].reshape(1, -1)
            sum_all_rows(values, values.view(np.int32), ALL_BUT_SIGN, sums)
            join(found, sums[0])


sum_product = compiled(_sum_product)


def _clear(found: Doubles) -> None:
    found[:, 0], found[:, 1], found[:, 2:] = -np.inf, np.inf, 0


clear = compiled(_clear)


def _sum_products(
    functions: Functions,
    sizes: tuple[int, int, int],
    left: Floats,
    one: tuple[int, int],
    right: Floats,
    other: tuple[int, int],
    turned: int,
    found: Doubles,
    start: int,
    stop: int,
) -> None:
    """Some products.

    Args:
        functions: as `mkl.addresses` has them.
        sizes: rows, columns, and the size that is summed over.
        left: the matrices on the left as they lie in memory.
        one: elements from matrix to matrix of these, and from line to line.
        right: the matrices on the right.
        other: the same of these.
        turned: -1 if the matrices on the left lie transposed, 1 if those on the right do.
        found: (all, 5).
        start: the first product.
        stop: the first that is left out.
    """
    scratch = np.empty(SCRATCH, np.int64)
    buffer = np.empty(min(sizes[0] * sizes[1], BUFFER), np.float32)
    lines = np.empty(sizes[2] * (sizes[0] if turned < 0 else sizes[1] if turned > 0 else 0), np.float32)
    clear(found[start:stop])
    before = call_with_int(functions[1], np.int32(1))  # after the large arrays: without one, it would stay
    for row in range(start, stop):
        above = (left.ctypes.data + SIZE * row * one[0], one[1])
        beside = (right.ctypes.data + SIZE * row * other[0], other[1])
        if turned < 0:
            turn(functions, left, row * one[0], one[1], (sizes[2], sizes[0]), lines)
            above = (lines.ctypes.data, sizes[2])
        if turned > 0:
            turn(functions, right, row * other[0], other[1], (sizes[1], sizes[2]), lines)
            beside = (lines.ctypes.data, sizes[1])
        sum_product(functions, sizes, above, beside, buffer, scratch, found[row])
    call_with_int(functions[1], np.int32(before))


sum_some_products = compiled(_sum_products)


share_products = compiled(lambda team, bounds, *arguments: fork(sum_some_products, team, bounds, arguments))


def ready() -> Functions:
    """Those of `mkl.addresses`, which are there, and the reduction of products ready."""
    functions = addresses()
    assert functions is not None
    own_sums_first(np.empty((0, 1), np.float32), np.empty((0, 1), np.int32), ALL_BUT_SIGN, np.empty((0, 5)))
    return functions


@dataclass(frozen=True)
class Matrices:
    """Matrices (n, rows, columns) as they lie in memory.

    Attributes:
        memory: from their first element on.
        steps: elements from matrix to matrix, and from line to line.
        by_columns: a line is a column, not a row.
    """

    memory: Floats
    steps: tuple[int, int]
    by_columns: bool


def sum_products(left: Matrices, right: Matrices, count: int, sizes: tuple[int, int, int]) -> Doubles:
    """See `kernels.product_sums`; `sizes` are o, i and s."""
    functions = ready()
    found = np.empty((count, 5))
    out, inner, positions = sizes
    # A product wants lines of the left one over positions, and of the right one over columns of the result.
    if left.by_columns and (not right.by_columns or inner < out):
        left, right, out, inner = right, left, inner, out
    turned = -1 if left.by_columns else 0 if right.by_columns else 1
    if turned > 0 and out < inner:
        left, right, out, inner = right, left, inner, out
    settings = (functions, (out, inner, positions), left.memory, left.steps, right.memory, right.steps, turned)
    share(count * out * inner * (1 + positions // POSITIONS), count, share_products, *settings, found)
    return found
