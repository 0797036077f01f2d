"""The loops of `kernels` that make products and reduce them at once; importing this module needs Numba.

A thread takes one sample after the other, and a few rows of its gradient at a time, so that what a product leaves
behind is read again while it is in the cache of that thread. Some gradients are transposed here, which no statistic
depends on. Of the images of convolutions only the horizontal shifts are copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .dispatch import Sliding, share
from .native import as_pointer, brgemm, carray, compiled, first_item, own_scratch, region, set_threads
from .row_loops import ANY_ORDER, SIGNLESS, sum_rows

BUFFER = 1 << 17
"""Elements of a gradient that are made at a time: half a mebibyte, half of a usual second cache. On six layer shapes a
half to eight times as many took the same time within 5 %."""

WIDE = 384
"""Columns of a gradient that are made at a time: wider products of MKL are slower. 768 x 3072 with 50 positions took
22 ms, and 25 ms in one piece; with 96 columns at a time, 2304 x 256 with 64 positions took 8.4 instead of 6.9 ms."""

POSITIONS = 8
"""Products to sum up that take as long as an element to add to the sums."""

WHOLE_WINDOW_ROWS = 32
"""Below so many rows, windows for all rows of the kernel are copied: wider products are faster. For a 3x3 kernel on 3
channels (9 rows) that took 0.47 instead of 0.69 ms; on 16 channels (48 rows), 0.64 instead of 0.59 ms."""

WINDOW_ELEMENTS = 1 << 18
"""Elements of such windows at most: a mebibyte, what a second cache holds. No more were needed on the shapes tried."""

CHANNEL_ELEMENTS = 1 << 15
"""Elements of the windows of channels that are copied together, so that small images share the work around them: an
eighth of a mebibyte, which the first and second cache hold."""

SIZE = 4
"""Bytes of an element."""

LINES = 16
"""Columns of a matrix that are transposed at a time, a line of the cache of each row: four in ten nanoseconds less an
element than a row at a time."""

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


@compiled
def join(found: Doubles, more: Doubles) -> None:
    """Takes sums over further elements into `found` (5,); see `kernels.row_sums`. NaN stays NaN."""
    for place in range(2, 5):
        found[place] += more[place]
    if np.isnan(found[4]):
        found[0] = found[1] = np.nan
    else:
        found[0], found[1] = max(found[0], more[0]), min(found[1], more[1])


@compiled
def parted(size: int, most: int) -> int:
    """The size of parts of `size`, all about equal, that are no larger than `most`."""
    pieces = -(-size // most)
    return -(-size // pieces)


@compiled
def turn(source: int, rows: int, columns: int, apart: int, target: int) -> None:
    """Transposes a matrix whose rows are `apart` elements from each other."""
    given = carray(as_pointer(source), ((rows - 1) * apart + columns,), np.float32)
    turned = carray(as_pointer(target), (rows * columns,), np.float32)
    for start in range(0, columns, LINES):
        for row in range(np.uintp(rows)):
            # Numba looks at every place with a sign whether it counts from the end, and copies one element at a time.
            first = row * np.uintp(apart)
            for column in range(np.uintp(start), np.uintp(min(start + LINES, columns))):
                turned[column * np.uintp(rows) + row] = given[first + column]


@compiled
def sum_product(
    sizes: tuple[int, int, int],
    left: tuple[int, int],
    right: tuple[int, int],
    buffer: int,
    capacity: int,
    found: Doubles,
) -> None:
    """Joins the sums over all elements of left @ right to `found`.

    Args:
        sizes: rows, columns, and the size that is summed over.
        left: address, and elements from row to row.
        right: likewise.
        buffer: address of memory for a part of the product.
        capacity: elements that it has.
        found: (5,).
    """
    height, width, inner = sizes
    wide = parted(width, WIDE)
    tall = parted(height, max(1, capacity // wide))
    sums = np.empty(5)
    for start in range(0, width, wide):
        columns = min(wide, width - start)
        for top in range(0, height, tall):
            rows = min(tall, height - top)
            above, beside = left[0] + SIZE * top * left[1], right[0] + SIZE * start
            brgemm(rows, columns, inner, left[1], right[1], columns, 0, above, beside, buffer, 0)
            sum_rows(buffer, buffer, SIGNLESS, 1, rows * columns, sums.ctypes.data)
            join(found, sums)


@compiled
def clear(found: Doubles) -> None:
    """Sums of no elements."""
    found[:, 0], found[:, 1], found[:, 2:] = -np.inf, np.inf, 0


@region(sum_rows)
def sum_some_products(memory: Any) -> None:
    """Some products: `turned` is -1 if the matrices on the left lie transposed, 1 if those on the right do."""
    words = carray(memory, (15,))
    sizes = words[4], words[5], words[6]
    left, apart, lines_apart = words[7], words[8], words[9]
    right, beside_apart, lines_beside = words[10], words[11], words[12]
    turned = words[13]
    found = carray(as_pointer(words[14]), (words[0], 5), np.float64)
    start, stop = first_item(memory, 0), first_item(memory, 1)
    buffer, capacity = own_scratch(memory), min(sizes[0] * sizes[1], BUFFER)
    lines = buffer + SIZE * capacity
    clear(found[start:stop])
    before = set_threads(np.int32(1))
    for row in range(start, stop):
        above = (left + SIZE * row * apart, lines_apart)
        beside = (right + SIZE * row * beside_apart, lines_beside)
        if turned < 0:
            turn(above[0], sizes[2], sizes[0], lines_apart, lines)
            above = (lines, sizes[2])
        if turned > 0:
            turn(beside[0], sizes[1], sizes[2], lines_beside, lines)
            beside = (lines, sizes[1])
        sum_product(sizes, above, beside, buffer, capacity, found[row])
    set_threads(before)


@compiled
def copy_lines(
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


@compiled
def reach(size: int, step: int, origin: int, limit: int) -> tuple[int, int]:
    """The x from 0 to `limit` for which x * step + origin is within 0 and `size`: the first, and how many."""
    first = max(0, -(origin // step))
    return first, max(0, min(limit, (size - 1 - origin) // step + 1) - first)


@compiled
def copy_windows(
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


@compiled
def used_rows(rows: int, kernel: tuple[int, int], steps: tuple[int, int], gaps: tuple[int, int]) -> int:
    """Rows of positions, vertical steps apart, that any window touches."""
    return (steps[0] * (rows - 1) + gaps[0] * (kernel[0] - 1)) // steps[0] + 1


@compiled
def window_sizes(
    channels: int, rows: int, columns: int, kernel: tuple[int, int], steps: tuple[int, int], gaps: tuple[int, int]
) -> tuple[bool, int, int, int]:
    """Whether the rows under each vertical tap are copied; products, rows of the matrices, and elements of a row."""
    taps, shifts = kernel
    positions = rows * columns
    whole = shifts * channels < WHOLE_WINDOW_ROWS and taps * shifts * channels * positions <= WINDOW_ELEMENTS
    products = 1 if whole else taps
    stretch = positions if whole else steps[0] * used_rows(rows, kernel, steps, gaps) * columns
    return whole, products, taps * shifts * channels // products, stretch


@region(sum_rows, fastmath=ANY_ORDER)
def sum_some_channels(memory: Any) -> None:
    """Some channels that are convolved each by itself: sums of rows' products; words as for `multiply_some_windows`."""
    words = carray(memory, (22,))
    rows, columns, height, width = words[9], words[10], words[12], words[13]
    kernel, steps = (words[14], words[15]), (words[16], words[17])
    gaps, padding = (words[18], words[19]), (words[20], words[21])
    positions, inner = rows * columns, kernel[0] * kernel[1]
    start, stop = first_item(memory, 0), first_item(memory, 1)
    gradients = carray(as_pointer(words[4]), (words[0] * positions,), np.float32)
    pixels = carray(as_pointer(words[5]), (words[0] * height * width,), np.float32)
    together = max(1, min(stop - start, CHANNEL_ELEMENTS // (inner * positions)))
    base = own_scratch(memory)
    windows = carray(as_pointer(base), (together * inner * positions,), np.float32)
    gradient = carray(as_pointer(base + SIZE * windows.size), (together, inner), np.float32)
    windows[:] = 0
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
        some = base + SIZE * windows.size
        sum_rows(some, some, SIGNLESS, count, inner, words[6] + 5 * 8 * first)


@region(sum_rows)
def multiply_some_windows(memory: Any) -> None:
    """Some samples: sums over their gradients, or the gradients.

    See `kernels.window_sums` and `kernels.write_window_products`. Copied are, for every horizontal tap, the rows that
    its windows touch, those a vertical step apart next to each other: all positions under a vertical tap are then one
    stretch of memory. Where the rows of that matrix are few, the stretches of all vertical taps are copied, so that one
    product does.
    """
    words = carray(memory, (22,))
    out, rows, columns, channels, height, width = words[8], words[9], words[10], words[11], words[12], words[13]
    kernel, steps = (words[14], words[15]), (words[16], words[17])
    gaps, padding = (words[18], words[19]), (words[20], words[21])
    positions = rows * columns
    whole, products, inner, stretch = window_sizes(channels, rows, columns, kernel, steps, gaps)
    pixels = carray(as_pointer(words[5]), (words[0] * channels * height * width,), np.float32)
    found = carray(as_pointer(words[6]), (words[0] if words[6] else 0, 5), np.float64)
    place = own_scratch(memory)
    windows = carray(as_pointer(place), (inner * stretch,), np.float32)
    lines = place + SIZE * inner * stretch
    buffer, capacity = lines + SIZE * positions * out, min(out * inner, BUFFER)
    start, stop = first_item(memory, 0), first_item(memory, 1)
    windows[:] = 0
    clear(found[start:stop])
    before = set_threads(np.int32(1))
    for row in range(start, stop):
        sizes = (row, channels, height, width)
        copy_windows(pixels, sizes, (rows, columns), kernel, steps, gaps, padding, whole, stretch, windows)
        turn(words[4] + SIZE * row * out * positions, out, positions, positions, lines)
        for tap in range(products):
            down = tap * gaps[0]
            offset = (
                0 if whole else (down % steps[0] * used_rows(rows, kernel, steps, gaps) + down // steps[0]) * columns
            )
            one = place + SIZE * offset
            if words[7] == 0:
                sum_product((inner, out, positions), (one, stretch), (lines, out), buffer, capacity, found[row])
            else:
                into = words[7] + SIZE * (row * products + tap) * inner * out
                brgemm(inner, out, positions, stretch, out, out, 0, one, lines, into, 0)
    set_threads(before)


def sum_products(left: Tensor, right: Tensor) -> Doubles:
    """See `kernels.product_sums`."""
    one, other = _with_lines(left), _with_lines(right)
    # A product wants lines of the left one over positions, and of the right one over columns of the result.
    if one[2] and (not other[2] or right.shape[1] < left.shape[1]):
        one, other = other, one
    turned = -1 if one[2] else 0 if other[2] else 1
    if turned > 0 and one[0].shape[1] < other[0].shape[1]:
        one, other = other, one
    (first, apart, _), (second, beside, _) = one, other
    count, out, positions = first.shape
    inner = second.shape[1]
    lines = positions * (out if turned < 0 else inner if turned > 0 else 0)
    found = np.empty((count, 5))
    share(
        count * out * inner * (1 + positions // POSITIONS),
        count,
        sum_some_products,
        *(out, inner, positions),
        *(first.data_ptr(), *apart),
        *(second.data_ptr(), *beside),
        turned,
        found.ctypes.data,
        scratch=SIZE * (min(out * inner, BUFFER) + lines),
    )
    return found


def _with_lines(matrices: Tensor) -> tuple[Tensor, tuple[int, int], bool]:
    """Matrices (n, rows, columns) in which the elements of rows or of columns lie side by side; copied unless they do.

    Returns:
        The matrices, elements from matrix to matrix and from line to line, and whether the lines are columns.
    """
    matrix, row, column = matrices.stride()
    rows, columns = matrices.shape[1:]
    by_rows = (column == 1 or columns == 1) and (row >= columns or rows == 1)
    by_columns = (row == 1 or rows == 1) and (column >= rows or columns == 1)
    if not (by_rows or by_columns):
        return _with_lines(matrices.contiguous())
    return matrices, (matrix, max(row, columns) if by_rows else max(column, rows)), not by_rows


def multiply_windows(left: Tensor, image: Tensor, sliding: Sliding, *, sums: int = 0, into: int = 0) -> None:
    """See `kernels.window_sums` and `kernels.write_window_products`.

    Args:
        left: contiguous (n, g, o, h, w).
        image: contiguous (n, g, i, H, W).
        sliding: how windows slide.
        sums: address of sums (n * g, 5); 0 for none.
        into: address of the gradients; 0 for none.
    """
    items, (out, rows, columns), channels = len(left) * left.shape[1], left.shape[2:], image.shape[2]
    kernel, steps, gaps = sliding["kernel"], sliding["stride"], sliding["dilation"]
    taps, positions = kernel[0] * kernel[1], rows * columns
    if sums and out == channels == 1:
        loop, together = sum_some_channels, max(1, min(items, CHANNEL_ELEMENTS // (taps * positions)))
        scratch = together * taps * (positions + 1)
    else:
        _, _, inner, stretch = window_sizes.py_func(channels, rows, columns, kernel, steps, gaps)
        loop, scratch = multiply_some_windows, inner * stretch + positions * out + min(out * inner, BUFFER)
    share(
        items * out * channels * taps * (1 + positions // POSITIONS),
        items,
        loop,
        *(left.data_ptr(), image.data_ptr(), sums, into),
        *(*left.shape[2:], *image.shape[2:], *kernel, *steps, *gaps, *sliding["padding"]),
        scratch=SIZE * scratch,
    )
