"""The loops of `kernels` that make products and reduce them at once; importing this module needs Numba.

A thread takes one sample after the other, and a few rows of its gradient at a time, so that what a product leaves
behind is read again while it is in the cache of that thread. Some gradients are transposed here, which no statistic
depends on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .compile import compiled, once_for_each_dtype
from .mkl import SCRATCH, Functions, addresses, call_with_int, multiply
from .row_loops import ANY_ORDER, sum_some_rows
from .threads import share

BUFFER = 1 << 17
"""Elements of a gradient that are made at a time: half a mebibyte, half of a usual second cache. On six layer shapes a
half to eight times as many took the same time within 5 %."""

WIDE = 384
"""Columns of a gradient that are made at a time: wider products of MKL are slower. 768 x 3072 with 50 positions took
22 ms, and 25 ms in one piece; with 96 columns at a time, 2304 x 256 with 64 positions took 8.4 instead of 6.9 ms."""

FEW_ROWS = 32
"""Below so many rows, windows for all rows of the kernel are copied: wider products are faster. For a 3x3 kernel on 3
channels (9 rows) that took 0.47 instead of 0.69 ms; on 16 channels (48 rows), 0.64 instead of 0.59 ms."""

WINDOWS = 1 << 18
"""Elements of such windows at most: a mebibyte, what a second cache holds. No more were needed on the shapes tried."""

LINES = 16
"""Columns of a matrix that are transposed at a time, a line of the cache of each row: four in ten nanoseconds less an
element than a row at a time."""

TOGETHER = 1 << 15
"""Elements of the windows of channels that are copied together, so that small images share the work around them: an
eighth of a mebibyte, which the first and second cache hold."""

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


def _turn(source: Floats, corner: int, apart: int, shape: tuple[int, int], target: Floats) -> None:
    """Transposes a matrix of rows `apart` elements from each other, the first from `corner` on, into `target`."""
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
            sum_some_rows(values, values.view(np.int32), ALL_BUT_SIGN, sums)
            join(found, sums[0])


sum_product = compiled(_sum_product)


def _start(found: Doubles) -> None:
    found[:, 0], found[:, 1], found[:, 2:] = -np.inf, np.inf, 0


begin = compiled(_start)


def _sum_products(
    functions: Functions,
    sizes: tuple[int, int, int],
    left: Floats,
    one: tuple[int, int],
    right: Floats,
    other: tuple[int, int],
    turned: int,
    start: int,
    stop: int,
    found: Doubles,
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
        start: the first product.
        stop: the first that is left out.
        found: (all, 5).
    """
    before = call_with_int(functions[1], np.int32(1))
    scratch = np.empty(SCRATCH, np.int64)
    buffer = np.empty(min(sizes[0] * sizes[1], BUFFER), np.float32)
    lines = np.empty(sizes[2] * (sizes[0] if turned < 0 else sizes[1] if turned > 0 else 0), np.float32)
    begin(found[start:stop])
    for row in range(start, stop):
        above = (left.ctypes.data + SIZE * row * one[0], one[1])
        beside = (right.ctypes.data + SIZE * row * other[0], other[1])
        if turned < 0:
            turn(left, row * one[0], one[1], (sizes[2], sizes[0]), lines)
            above = (lines.ctypes.data, sizes[2])
        if turned > 0:
            turn(right, row * other[0], other[1], (sizes[1], sizes[2]), lines)
            beside = (lines.ctypes.data, sizes[1])
        sum_product(functions, sizes, above, beside, buffer, scratch, found[row])
    call_with_int(functions[1], np.int32(before))


sum_some_products = compiled(_sum_products)


own_code_first = once_for_each_dtype(lambda none, found: sum_some_rows(none, none.view(np.int32), ALL_BUT_SIGN, found))


def _addresses() -> Functions:
    """Those of `mkl.addresses`, which are there, and the reduction of products ready."""
    functions = addresses()
    assert functions is not None
    own_code_first(np.empty((0, 1), np.float32), np.empty((0, 5)))
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
    functions = _addresses()
    found = np.empty((count, 5))
    out, inner, positions = sizes
    # A product wants lines of the left one over positions, and of the right one over columns of the result.
    if left.by_columns and (not right.by_columns or inner < out):
        left, right, out, inner = right, left, inner, out
    turned = -1 if left.by_columns else 0 if right.by_columns else 1
    if turned > 0 and out < inner:
        left, right, out, inner = right, left, inner, out
    settings = (functions, (out, inner, positions), left.memory, left.steps, right.memory, right.steps, turned)

    def part(_number: int, start: int, stop: int) -> None:
        sum_some_products(*settings, start, stop, found)

    share(count * out * inner * (1 + positions // POSITIONS), count, part)
    return found


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
    for shift in range(shifts):
        origin = shift * gaps[1] - padding[1]
        first, count = reach(width, steps[1], origin, columns)
        for part in range(taps if whole else planes):
            above, lines = part * gaps[0] - padding[0], rows
            if not whole:
                above, lines = part - padding[0], used
            top, lines = reach(height, planes, above, lines)
            for channel in range(channels):
                plane = (row * channels + channel) * height * width
                at = ((part * shifts + shift) * channels + channel) * stretch
                if not whole:
                    at = ((shift * channels + channel) * planes + part) * used * columns
                copy_lines(
                    pixels,
                    plane + first * steps[1] + origin + (top * planes + above) * width,
                    (planes * width, steps[1]),
                    windows,
                    at + top * columns + first,
                    columns,
                    (lines, count),
                )


copy_windows = compiled(_copy_windows)


def _sum_channels(
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
    """As `_sum_windows` of channels (start to stop) that are convolved each by itself: sums of two rows' products."""
    rows, columns = left.shape[3:]
    height, width = image.shape[3:]
    positions, inner = rows * columns, kernel[0] * kernel[1]
    together = max(1, min(stop - start, TOGETHER // (inner * positions)))
    windows = np.zeros(together * inner * positions, np.float32)
    gradient = np.empty((together, inner), np.float32)
    gradients, pixels = left.reshape(-1), image.reshape(-1)
    for first in range(start, stop, together):
        count = min(together, stop - first)
        if count < together:
            windows[:] = 0
        planes = pixels[first * height * width : (first + count) * height * width]
        sizes = (0, count, height, width)
        copy_windows(planes, sizes, (rows, columns), kernel, steps, gaps, padding, True, positions, windows)
        for channel in range(count):
            at = np.uintp((first + channel) * positions)
            for tap in range(inner):
                line = np.uintp((tap * count + channel) * positions)
                total = np.float32(0)
                for place in range(np.uintp(positions)):
                    total += gradients[at + place] * windows[line + place]
                gradient[channel, tap] = total
        some = gradient[:count]
        sum_some_rows(some, some.view(np.int32), ALL_BUT_SIGN, found[first : first + count])


sum_some_channels = compiled(_sum_channels, fastmath=ANY_ORDER)


def _sum_windows(
    functions: Functions,
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
    pixels, gradients = image.reshape(-1), left.reshape(-1)
    lines = np.empty(positions * out, np.float32)
    for row in range(start, stop):
        sizes = (row, channels, height, width)
        copy_windows(pixels, sizes, (rows, columns), kernel, steps, gaps, padding, whole, stretch, windows)
        turn(gradients, row * out * positions, positions, (out, positions), lines)
        for tap in range(1 if whole else taps):
            down = tap * gaps[0]
            offset = 0 if whole else (down % steps[0] * used + down // steps[0]) * columns
            one = (windows.ctypes.data + SIZE * offset, stretch)
            other = (lines.ctypes.data, out)
            sum_product(functions, (inner, out, positions), one, other, buffer, scratch, found[row])
    call_with_int(functions[1], np.int32(before))


sum_some_windows = compiled(_sum_windows)


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
    settings = (left, image, kernel, steps, gaps, padding)
    positions = left.shape[3] * left.shape[4]

    def part(_number: int, start: int, stop: int) -> None:
        if left.shape[2] == image.shape[2] == 1:
            sum_some_channels(*settings, start, stop, found)
        else:
            sum_some_windows(functions, *settings, start, stop, found)

    elements = len(found) * left.shape[2] * image.shape[2] * kernel[0] * kernel[1]
    share(elements * (1 + positions // POSITIONS), len(found), part)
    return found
