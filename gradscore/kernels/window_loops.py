"""The loops of `kernels` that make weight gradients of convolutions; importing this module needs Numba.

As in `product_loops`, a thread takes one sample after the other. Only the horizontal shifts of its image are copied.
"""

from __future__ import annotations

import numpy as np

from .compile import compiled, once_for_each_dtype, stay_apart
from .mkl import SCRATCH, Functions, call_with_int, multiply
from .product_loops import ALL_BUT_SIGN, BUFFER, POSITIONS, SIZE, Doubles, Floats, clear, ready, sum_product, turn
from .regions import fork
from .row_loops import ANY_ORDER, sum_all_rows
from .threads import share

FEW_ROWS = 32
"""Below so many rows, windows for all rows of the kernel are copied: wider products are faster. For a 3x3 kernel on 3
channels (9 rows) that took 0.47 instead of 0.69 ms; on 16 channels (48 rows), 0.64 instead of 0.59 ms."""

WINDOWS = 1 << 18
"""Elements of such windows at most: a mebibyte, what a second cache holds. No more were needed on the shapes tried."""

TOGETHER = 1 << 15
"""Elements of the windows of channels that are copied together, so that small images share the work around them: an
eighth of a mebibyte, which the first and second cache hold."""

NOWHERE = np.empty(0, np.float32)


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
    found: Doubles,
    start: int,
    stop: int,
) -> None:
    """As `_multiply_windows`, of channels (start to stop) that are convolved each by itself: sums of rows' products."""
    stay_apart()
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
        sum_all_rows(some, some.view(np.int32), ALL_BUT_SIGN, found[first : first + count])


sum_some_channels = compiled(_sum_channels, fastmath=ANY_ORDER)


def _multiply_windows(
    functions: Functions,
    left: Floats,
    image: Floats,
    kernel: tuple[int, int],
    steps: tuple[int, int],
    gaps: tuple[int, int],
    padding: tuple[int, int],
    found: Doubles,
    into: Floats,
    start: int,
    stop: int,
) -> None:
    """Some samples: sums over their gradients in `found`, or the gradients in `into` unless that is empty.

    See `kernels.window_sums` and `kernels.write_window_products`. Copied are, for every horizontal tap, the rows that
    its windows touch, those a vertical step apart next to each other: all positions under a vertical tap are then one
    stretch of memory. Where the rows of that matrix are few, the stretches of all vertical taps are copied, so that one
    product does.
    """
    out, rows, columns = left.shape[2:]
    channels, height, width = image.shape[2:]
    taps, shifts = kernel
    positions = rows * columns
    used = (steps[0] * (rows - 1) + gaps[0] * (taps - 1)) // steps[0] + 1
    whole = shifts * channels < FEW_ROWS and taps * shifts * channels * positions <= WINDOWS
    products = 1 if whole else taps
    inner = taps * shifts * channels // products
    stretch = positions if whole else steps[0] * used * columns
    windows = np.zeros(inner * stretch, np.float32)
    buffer = np.empty(min(out * inner, BUFFER), np.float32)
    scratch = np.empty(SCRATCH, np.int64)
    clear(found[start:stop])
    pixels, gradients = image.reshape(-1), left.reshape(-1)
    lines = np.empty(positions * out, np.float32)
    before = call_with_int(functions[1], np.int32(1))  # after the arrays: see product_loops
    for row in range(start, stop):
        sizes = (row, channels, height, width)
        copy_windows(pixels, sizes, (rows, columns), kernel, steps, gaps, padding, whole, stretch, windows)
        turn(functions, gradients, row * out * positions, positions, (out, positions), lines)
        for tap in range(products):
            down = tap * gaps[0]
            offset = 0 if whole else (down % steps[0] * used + down // steps[0]) * columns
            one = (windows.ctypes.data + SIZE * offset, stretch)
            other = (lines.ctypes.data, out)
            if into.size == 0:
                sum_product(functions, (inner, out, positions), one, other, buffer, scratch, found[row])
            else:
                place = (row * products + tap) * inner * out
                multiply(functions, (inner, out, positions), one, other, into.ctypes.data + SIZE * place, scratch)
    call_with_int(functions[1], np.int32(before))


multiply_some_windows = compiled(_multiply_windows)


own_channels_first = once_for_each_dtype(sum_some_channels)
share_channels = compiled(lambda team, bounds, *arguments: fork(sum_some_channels, team, bounds, arguments))
share_windows = compiled(lambda team, bounds, *arguments: fork(multiply_some_windows, team, bounds, arguments))


def sum_windows(
    left: Floats,
    image: Floats,
    kernel: tuple[int, int],
    steps: tuple[int, int],
    gaps: tuple[int, int],
    padding: tuple[int, int],
) -> Doubles:
    """See `kernels.window_sums`; both are contiguous."""
    functions = ready()
    found = np.empty((left.shape[0] * left.shape[1], 5))
    settings = (left, image, kernel, steps, gaps, padding)
    work = _work(left, image, kernel)
    if left.shape[2] == image.shape[2] == 1:
        own_channels_first(*settings, found, 0, 0)
        share(work, len(found), share_channels, *settings, found)
    else:
        share(work, len(found), share_windows, functions, *settings, found, NOWHERE)
    return found


def write_windows(
    left: Floats,
    image: Floats,
    kernel: tuple[int, int],
    steps: tuple[int, int],
    gaps: tuple[int, int],
    padding: tuple[int, int],
    into: Floats,
) -> None:
    """See `kernels.write_window_products`; all are contiguous."""
    settings = (ready(), left, image, kernel, steps, gaps, padding)
    rows = left.shape[0] * left.shape[1]
    share(_work(left, image, kernel), rows, share_windows, *settings, np.empty((0, 5)), into.reshape(-1))


def _work(left: Floats, image: Floats, kernel: tuple[int, int]) -> int:
    """How many elements to add up would take as long as all gradients; see `threads`."""
    samples, groups, out, rows, columns = map(int, left.shape)
    elements = samples * groups * out * int(image.shape[2]) * kernel[0] * kernel[1]
    return elements * (1 + rows * columns // POSITIONS)
