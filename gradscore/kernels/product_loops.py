"""The loops of `kernels` that make products and reduce them at once; importing this module needs Numba.

A thread takes one sample after the other, and a few columns of its gradient at a time, so that what a product leaves
behind is read again while it is in the cache of that thread. Gradients are laid out by columns here, which the order of
no statistic depends on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from .compile import compiled, once_for_each_dtype, threads
from .mkl import AS_IT_IS, SCRATCH, TRANSPOSED, addresses, call_with_int, multiply
from .row_loops import sum_some_rows

BUFFER = 1 << 17
"""Elements of a gradient that are made at a time: half a mebibyte, half of a usual second cache. On six layer shapes a
half to eight times as many took the same time within 5 %."""

TALL = 384
"""Rows of a gradient that are made at a time: tall products are slower. 3072 x 768 with 50 positions took 22 ms, and
25 ms in one piece; with 96 rows at a time, 256 x 2304 with 64 positions took 8.4 instead of 6.9 ms."""

FEW_ROWS = 32
"""Below so many rows, windows for all rows of the kernel are copied: wider products are faster. For a 3x3 kernel on 3
channels (9 rows) that took 0.47 instead of 0.69 ms; on 16 channels (48 rows), 0.64 instead of 0.59 ms."""

WINDOWS = 1 << 18
"""Elements of such windows at most: a mebibyte, what a second cache holds. No more were needed on the shapes tried."""

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


def _sum_product(
    product: int,
    flags: tuple[Any, Any],
    sizes: tuple[int, int, int],
    left: tuple[int, int],
    right: tuple[int, int],
    buffer: Floats,
    scratch: Whole,
    found: Doubles,
) -> None:
    """Joins the sums over all elements of left @ right to `found`; arguments as in `mkl.multiply`."""
    height, width, inner = sizes
    tall = parted(height, TALL)
    wide = parted(width, max(1, buffer.size // tall))
    sums = np.empty((1, 5))
    for top in range(0, height, tall):
        rows = min(tall, height - top)
        above = left[0] + SIZE * (top * left[1] if flags[0] == TRANSPOSED else top)
        for start in range(0, width, wide):
            columns = min(wide, width - start)
            beside = right[0] + SIZE * (start if flags[1] == TRANSPOSED else start * right[1])
            multiply(
                product,
                flags,
                (rows, columns, inner),
                (above, left[1]),
                (beside, right[1]),
                buffer.ctypes.data,
                scratch,
            )
            values = buffer[: rows * columns].reshape(1, -1)
            sum_some_rows(values, values.view(np.int32), ALL_BUT_SIGN, sums)
            join(found, sums[0])


sum_product = compiled(_sum_product)


def _start(found: Doubles) -> None:
    found[:, 0], found[:, 1], found[:, 2:] = -np.inf, np.inf, 0


begin = compiled(_start)


def _sum_products(
    functions: tuple[int, int],
    flags: tuple[Any, Any],
    sizes: tuple[int, int, int],
    left: tuple[int, int, int],
    right: tuple[int, int, int],
    start: int,
    stop: int,
    found: Doubles,
) -> None:
    """Some products; `left` and `right` are address, elements from matrix to matrix and from column to column."""
    before = call_with_int(functions[1], np.int32(1))
    scratch = np.empty(SCRATCH, np.int64)
    buffer = np.empty(min(sizes[0] * sizes[1], BUFFER), np.float32)
    begin(found[start:stop])
    for row in range(start, stop):
        one = (left[0] + SIZE * row * left[1], left[2])
        other = (right[0] + SIZE * row * right[1], right[2])
        sum_product(functions[0], flags, sizes, one, other, buffer, scratch, found[row])
    call_with_int(functions[1], np.int32(before))


sum_some_products = compiled(_sum_products)


def _sum_product_parts(
    parts: int, functions: Any, flags: Any, sizes: Any, left: Any, right: Any, found: Doubles
) -> None:
    for part in prange(parts):
        start, stop = part * len(found) // parts, (part + 1) * len(found) // parts
        sum_some_products(functions, flags, sizes, left, right, start, stop, found)


sum_product_parts = compiled(_sum_product_parts, parallel=True)


own_code_first = once_for_each_dtype(lambda none, found: sum_some_rows(none, none.view(np.int32), ALL_BUT_SIGN, found))


def _addresses() -> tuple[int, int]:
    """Those of `mkl.addresses`, which are there, and the reduction of products ready."""
    functions = addresses()
    assert functions is not None
    own_code_first(np.empty((0, 1), np.float32), np.empty((0, 5)))
    return functions


def sum_products(left: Floats, right: Floats) -> Doubles:
    """See `kernels.product_sums`; one of the two last axes of both has a stride of one element."""
    functions = _addresses()
    found = np.empty((len(left), 5))
    (transposed, one), (flipped, other) = _by_columns(left), _by_columns(right.transpose(0, 2, 1))
    flags = (TRANSPOSED if transposed else AS_IT_IS, TRANSPOSED if flipped else AS_IT_IS)
    sizes = (left.shape[1], right.shape[1], left.shape[2])
    with threads(len(left) * sizes[0] * sizes[1]) as parts:
        if parts > 1:
            sum_product_parts(parts, functions, flags, sizes, one, other, found)
        else:
            sum_some_products(functions, flags, sizes, one, other, 0, len(found), found)
    return found


def _by_columns(matrices: Floats) -> tuple[bool, tuple[int, int, int]]:
    """Whether (n, rows, columns) lie transposed in memory; address, and elements from matrix to matrix and on."""
    matrix, row, column = (stride // SIZE for stride in matrices.strides)
    rows, columns = matrices.shape[1:]
    if row == 1 or rows == 1:
        return False, (matrices.ctypes.data, matrix, max(column, rows) if columns > 1 else rows)
    return True, (matrices.ctypes.data, matrix, max(row, columns))


def _copy_lines(
    pixels: Floats, corner: int, steps: tuple[int, int], windows: Floats, place: int, apart: int, size: tuple[int, int]
) -> None:
    """Copies lines of pixels.

    Args:
        pixels: of all images.
        corner: the first pixel.
        steps: elements from line to line and from pixel to pixel.
        windows: where they go.
        place: of the first pixel there.
        apart: elements from line to line there.
        size: lines, and pixels of each.
    """
    lines, count = size
    if count <= 0:
        return
    for line in range(lines):
        # Numba looks at every place with a sign whether it counts from the end, and copies one element at a time.
        source, target = np.uintp(corner + line * steps[0]), np.uintp(place + line * apart)
        if steps[1] == 1:
            for x in range(np.uintp(count)):
                windows[target + x] = pixels[source + x]
        else:
            step = np.uintp(steps[1])
            for x in range(np.uintp(count)):
                windows[target + x] = pixels[source + x * step]


copy_lines = compiled(_copy_lines)


def _reach(size: int, step: int, origin: int, limit: int) -> tuple[int, int]:
    """The x from 0 to `limit` for which x * step + origin is within 0 and `size`: the first, and how many."""
    first = max(0, -(origin // step))
    return first, max(0, min(limit, (size - 1 - origin) // step + 1) - first)


reach = compiled(_reach)


def _copy_windows(
    pixels: Floats,
    image: tuple[int, int, int, int],
    shape: tuple[int, int],
    kernel: tuple[int, int],
    steps: tuple[int, int],
    gaps: tuple[int, int],
    padding: tuple[int, int],
    whole: bool,
    stretch: int,
    windows: Floats,
) -> None:
    """Copies the rows that windows touch, of one sample, for every horizontal tap.

    Args:
        pixels: of all images.
        image: number of the sample, and its channels, height and width.
        shape: rows and columns of positions.
        kernel: taps, vertical and horizontal.
        steps: between windows.
        gaps: between taps.
        padding: around the image.
        whole: copy the rows under each vertical tap; otherwise those that are a vertical step apart, once.
        stretch: elements for each tap and channel.
        windows: where they go; what lies beyond the image is zero there and stays so.
    """
    row, channels, height, width = image
    rows, columns = shape
    taps, shifts = kernel
    planes = steps[0]
    used = stretch // (planes * columns)
    for channel in range(channels):
        plane = (row * channels + channel) * height * width
        for shift in range(shifts):
            origin = shift * gaps[1] - padding[1]
            first, count = reach(width, steps[1], origin, columns)
            corner = plane + first * steps[1] + origin
            for part in range(taps if whole else planes):
                at = ((part * shifts + shift) * channels + channel) * stretch
                above, lines = part * gaps[0] - padding[0], rows
                if not whole:
                    at = ((shift * channels + channel) * planes + part) * used * columns
                    above, lines = part - padding[0], used
                top, lines = reach(height, planes, above, lines)
                copy_lines(
                    pixels,
                    corner + (top * planes + above) * width,
                    (planes * width, steps[1]),
                    windows,
                    at + top * columns + first,
                    columns,
                    (lines, count),
                )


copy_windows = compiled(_copy_windows)


def _sum_windows(
    functions: tuple[int, int],
    left: Floats,
    image: Floats,
    kernel: tuple[int, int],
    steps: tuple[int, int],
    gaps: tuple[int, int],
    padding: tuple[int, int],
    start: int,
    stop: int,
    found: Doubles,
) -> None:
    """Some samples; see `kernels.window_sums`.

    Copied are, for every horizontal tap, the rows that its windows touch, those a vertical step apart next to each
    other: all positions under a vertical tap are then one stretch of memory. Where the rows of that matrix are few,
    the stretches of all vertical taps are copied, so that one product does.
    """
    before = call_with_int(functions[1], np.int32(1))
    out, rows, columns = left.shape[2:]
    channels, height, width = image.shape[2:]
    taps, shifts = kernel
    positions = rows * columns
    used = (steps[0] * (rows - 1) + gaps[0] * (taps - 1)) // steps[0] + 1
    whole = shifts * channels < FEW_ROWS and taps * shifts * channels * positions <= WINDOWS
    inner = shifts * channels * (taps if whole else 1)
    stretch = positions if whole else steps[0] * used * columns
    windows = np.zeros(inner * stretch, np.float32)
    buffer = np.empty(min(out * inner, BUFFER), np.float32)
    scratch = np.empty(SCRATCH, np.int64)
    begin(found[start:stop])
    pixels = image.reshape(-1)
    for row in range(start, stop):
        sizes = (row, channels, height, width)
        copy_windows(pixels, sizes, (rows, columns), kernel, steps, gaps, padding, whole, stretch, windows)
        one = (left.ctypes.data + SIZE * row * out * positions, positions)
        for tap in range(1 if whole else taps):
            down = tap * gaps[0]
            offset = 0 if whole else (down % steps[0] * used + down // steps[0]) * columns
            other = (windows.ctypes.data + SIZE * offset, stretch)
            flags, product = (TRANSPOSED, AS_IT_IS), (out, inner, positions)
            sum_product(functions[0], flags, product, one, other, buffer, scratch, found[row])
    call_with_int(functions[1], np.int32(before))


sum_some_windows = compiled(_sum_windows)


def _sum_window_parts(
    parts: int,
    functions: Any,
    left: Floats,
    image: Floats,
    kernel: Any,
    steps: Any,
    gaps: Any,
    padding: Any,
    found: Doubles,
) -> None:
    for part in prange(parts):
        start, stop = part * len(found) // parts, (part + 1) * len(found) // parts
        sum_some_windows(functions, left, image, kernel, steps, gaps, padding, start, stop, found)


sum_window_parts = compiled(_sum_window_parts, parallel=True)


def sum_windows(
    left: Floats,
    image: Floats,
    kernel: tuple[int, int],
    steps: tuple[int, int],
    gaps: tuple[int, int],
    padding: tuple[int, int],
) -> Doubles:
    """See `kernels.window_sums`; both are contiguous."""
    functions = _addresses()
    found = np.empty((left.shape[0] * left.shape[1], 5))
    settings = (functions, left, image, kernel, steps, gaps, padding)
    with threads(len(found) * left.shape[2] * image.shape[2] * kernel[0] * kernel[1]) as parts:
        if parts > 1:
            sum_window_parts(parts, *settings, found)
        else:
            sum_some_windows(*settings, 0, len(found), found)
    return found
