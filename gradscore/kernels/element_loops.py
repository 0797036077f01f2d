"""The loops of `kernels` over single elements; importing this module needs Numba.

What counts elements in bins, adds up their deviations over samples, and gives them random signs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dispatch import RUN
from .native import as_pointer, carray, compiled, first_item, own_scratch, region
from .threads import run_parts, share, threads

CHUNK = 1024
"""Elements whose bins are worked out together, in vector registers; a quarter or sixteen times as many took the same
time within 5 %."""

HALF = RUN // 2

NEAR = 8
"""Bins side by side that are counted in vector registers, eight counters of eight bits in a word of 64; gradients of
one sample seldom need more."""

MOST = 255
"""What one of `NEAR` counters in 64 bits can hold."""

GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ONE, THIRTY, TWENTY_SEVEN, THIRTY_ONE, THIRTY_TWO = (np.uint64(bits) for bits in (1, 30, 27, 31, 32))

Floats = NDArray[Any]
Places = NDArray[np.int32]
Counts = NDArray[np.int64]
Words = NDArray[np.uint64]
Doubles = NDArray[np.float64]
Whole = NDArray[np.int64]

Axes = tuple[Any, Any, Any, bool, Places, int]
"""Of a histogram: least value, width of all bins together, their number, these of the type of the values; whether the
width is a power of two; the bin on the second axis of each element, and how many bins that axis has, 1 for none."""


def _find_bins(factor: Any, values: Floats, low: Any, width: Any, bins: Any, exact: bool, found: Places) -> None:
    """The bin of each factor * value; multiplying by the inverse of a power of two (`exact`) is dividing by it."""
    kind = values.dtype.type
    nothing, last, inverse = kind(0), kind(bins - kind(1)), kind(kind(1) / width)
    if exact:
        for place in range(values.size):
            at = (factor * values[place] - low) * inverse * bins
            at = at if at > nothing else nothing  # max() and min() would branch
            found[place] = np.int32(at if at < last else last)
    else:
        for place in range(values.size):
            at = (factor * values[place] - low) / width * bins
            at = at if at > nothing else nothing
            found[place] = np.int32(at if at < last else last)


find_bins = compiled(_find_bins)


def _ends(found: Places, limits: Places) -> None:
    """Least and most, into `limits` (2,)."""
    least = most = found[0]
    for place in range(found.size):
        bin_ = found[place]
        least = bin_ if bin_ < least else least
        most = bin_ if bin_ > most else most
    limits[0], limits[1] = least, most


ends = compiled(_ends)


def _scatter(found: Places, beside: Places, inner: int, counts: Counts) -> None:
    """One by one, in two rows of counters, so that equal values wait less for one another."""
    for place in range(found.size):
        counts[place & 1, np.uint32(found[place] * inner + beside[place])] += 1


scatter = compiled(_scatter)


def _pack(found: Places, base: int, packed: Words) -> None:
    for place in range(found.size):
        packed[place] += np.uint64(1) << (np.uint64(found[place] - base) << np.uint64(3))


pack = compiled(_pack)


def _unpack(packed: Words, base: int, beside: Places, inner: int, counts: Counts) -> None:
    for place in range(beside.size):
        word = packed[place]
        for slot in range(NEAR):
            some = np.int64((word >> np.uint64(8 * slot)) & np.uint64(MOST))
            if some:
                counts[0, (base + slot) * inner + beside[place]] += some
        packed[place] = 0


unpack = compiled(_unpack)


def _count_tasks(left: Floats, right: Floats, axes: Axes, first: int, stop: int, counts: Counts, scratch: int) -> None:
    """Some of the tasks: one is a column of `left` times a chunk of the columns of `right`, for all samples.

    Columns keep their bin on the second axis from sample to sample, so their counts on the first can be gathered in
    vector registers: eight counters of eight bits for each. Where gradients are zero for all of a row, as dead units
    leave them, no product is made.
    """
    low, width, bins, exact, places, inner = axes
    chunks = -(-right.shape[1] // CHUNK)
    words = carray(as_pointer(scratch), (CHUNK,), np.uint64)
    buffer = carray(as_pointer(scratch + 8 * CHUNK), (CHUNK,), np.int32)
    nowhere = carray(as_pointer(scratch + 12 * CHUNK), (CHUNK,), np.int32)
    words[:], nowhere[:] = 0, 0
    find_bins(left.dtype.type(0), right[0, :1], low, width, bins, exact, buffer[:1])
    zero = buffer[0]
    base = max(0, min(zero - NEAR // 2, counts.shape[1] // inner - NEAR))
    packs = inner == 1 or left.shape[0] >= NEAR
    limits = np.empty(2, np.int32)
    taken = 0
    for task in range(first, stop):
        column, start = task // chunks, task % chunks * CHUNK
        end = min(start + CHUNK, right.shape[1])
        found, packed = buffer[: end - start], words[: end - start]
        beside = places[column, start:end] if inner > 1 else nowhere[: end - start]
        zeros = 0
        for row in range(left.shape[0]):
            factor = left[row, column]
            if factor == 0:
                zeros += 1
                continue
            find_bins(factor, right[row, start:end], low, width, bins, exact, found)
            ends(found, limits)
            if packs and limits[0] >= base and limits[1] < base + NEAR:
                pack(found, base, packed)
                taken += 1
                if taken == MOST:
                    unpack(words, base, beside if inner > 1 else nowhere, inner, counts)
                    taken = 0
            else:
                scatter(found, beside, inner, counts)
        if taken and inner > 1:
            unpack(words, base, beside, inner, counts)
            taken = 0
        if zeros:
            for place in range(found.size):
                counts[0, zero * inner + beside[place]] += zeros
    unpack(words, base, nowhere, inner, counts)


count_tasks = compiled(_count_tasks)


def _count_parts(left: Floats, right: Floats, axes: Axes, counts: Counts, start: int, stop: int, scratch: int) -> None:
    """Some parts of all tasks, each with two rows of counters of its own."""
    tasks, parts = left.shape[1] * -(-right.shape[1] // CHUNK), counts.shape[0] // 2
    for part in range(start, stop):
        first, last = part * tasks // parts, (part + 1) * tasks // parts
        count_tasks(left, right, axes, first, last, counts[2 * part : 2 * part + 2], scratch)


count_parts = compiled(_count_parts)


@region()
def _count(memory: Any) -> None:
    """Some parts of all tasks of `count`."""
    words = carray(memory, (17,))
    rows, out, width, inner = words[8], words[9], words[10], words[15]
    places = carray(as_pointer(words[13]), (out, words[14]), np.int32)
    start, stop, scratch, exact = first_item(memory, 0), first_item(memory, 1), own_scratch(memory), words[12] != 0
    if words[5] == 4:
        axis = carray(as_pointer(words[11]), (3,), np.float32)
        counts = carray(as_pointer(words[16]), (2 * words[0], np.int64(axis[2]) * inner), np.int64)
        left, right = (
            carray(as_pointer(words[6]), (rows, out), np.float32),
            carray(as_pointer(words[7]), (rows, width), np.float32),
        )
        count_parts(left, right, (axis[0], axis[1], axis[2], exact, places, inner), counts, start, stop, scratch)
    else:
        wide_axis = carray(as_pointer(words[11]), (3,), np.float64)
        counts = carray(as_pointer(words[16]), (2 * words[0], np.int64(wide_axis[2]) * inner), np.int64)
        wide_left, wide_right = (
            carray(as_pointer(words[6]), (rows, out), np.float64),
            carray(as_pointer(words[7]), (rows, width), np.float64),
        )
        count_parts(
            wide_left,
            wide_right,
            (wide_axis[0], wide_axis[1], wide_axis[2], exact, places, inner),
            counts,
            start,
            stop,
            scratch,
        )


def count(left: Floats, right: Floats, bins: int, low: float, high: float, places: Places, inner: int) -> Counts:
    """See `kernels.count_products`; `places` is (o, i), or (o, 0) for one axis."""
    kind = left.dtype.type
    width = kind(high - low)
    axis = np.array([kind(low), width, kind(bins)])
    settings = *left.shape, right.shape[1], axis.ctypes.data, int(np.frexp(width)[0] == 0.5)
    with threads(left.size * right.shape[1]) as parts:
        counts = np.zeros((2 * parts, bins * inner), np.int64)
        addresses = left.ctypes.data, right.ctypes.data
        second = places.ctypes.data, places.shape[1], inner
        words = left.itemsize, *addresses, *settings, *second, counts.ctypes.data
        run_parts(parts, parts, _count, *words, scratch=16 * CHUNK)
    found: Counts = counts.sum(0)
    return found


def _add_some_deviations(values: Floats, first: Floats, sums: Doubles, squares: Doubles, start: int, stop: int) -> None:
    """Of some columns, a few thousand at a time, whose sums stay in the cache; four rows at a time."""
    whole = values.shape[0] // 4 * 4
    for begin in range(start, stop, CHUNK):
        end = min(begin + CHUNK, stop)
        centre, total, square = first[begin:end], sums[begin:end], squares[begin:end]
        for row in range(0, whole, 4):
            one, two = values[row, begin:end], values[row + 1, begin:end]
            three, four = values[row + 2, begin:end], values[row + 3, begin:end]
            for place in range(centre.size):
                a, b = np.float64(one[place] - centre[place]), np.float64(two[place] - centre[place])
                c, d = np.float64(three[place] - centre[place]), np.float64(four[place] - centre[place])
                total[place] += (a + b) + (c + d)
                square[place] += (a * a + b * b) + (c * c + d * d)
        for row in range(whole, values.shape[0]):
            one = values[row, begin:end]
            for place in range(centre.size):
                a = np.float64(one[place] - centre[place])
                total[place] += a
                square[place] += a * a


add_some_deviations = compiled(_add_some_deviations)


@region()
def _add_deviations(memory: Any) -> None:
    """Of some columns."""
    words = carray(memory, (12,))
    rows, columns = words[8], words[0]
    start, stop = first_item(memory, 0), first_item(memory, 1)
    sums = carray(as_pointer(words[9]), (columns,), np.float64)
    squares = carray(as_pointer(words[10]), (columns,), np.float64)
    if words[5] == 4:
        values, first = (
            carray(as_pointer(words[6]), (rows, columns), np.float32),
            carray(as_pointer(words[7]), (columns,), np.float32),
        )
        add_some_deviations(values, first, sums, squares, start, stop)
    else:
        wide, wide_first = (
            carray(as_pointer(words[6]), (rows, columns), np.float64),
            carray(as_pointer(words[7]), (columns,), np.float64),
        )
        add_some_deviations(wide, wide_first, sums, squares, start, stop)


def add_deviations(values: Floats, first: Floats, sums: Doubles, squares: Doubles) -> None:
    """Of all columns; arguments as in `_add_some_deviations`."""
    addresses = values.ctypes.data, first.ctypes.data, len(values), sums.ctypes.data, squares.ctypes.data
    share(values.size, values.shape[1], _add_deviations, values.itemsize, *addresses)


def _word(key: Any, place: int) -> Any:
    """Word `place` of SplitMix64 from the state `key`."""
    mixed = key + (np.uint64(place) + ONE) * GOLDEN
    mixed = (mixed ^ (mixed >> THIRTY)) * FIRST
    mixed = (mixed ^ (mixed >> TWENTY_SEVEN)) * SECOND
    return mixed ^ (mixed >> THIRTY_ONE)


word = compiled(_word)


@region()
def _write_signs(memory: Any) -> None:
    """Of some elements, one row (dim,) each."""
    words = carray(memory, (9,))
    dim, key, first = words[6], np.uint64(words[7]), words[8]
    found = carray(as_pointer(words[5]), (words[0], dim), np.float32)
    count = -(-dim // RUN)
    for row in range(first_item(memory, 0), first_item(memory, 1)):
        for place in range(count):
            bits = word(key, (first + row) * count + place)
            for half in range(2):
                part = np.uint32(bits >> THIRTY_TWO) if half else np.uint32(bits)
                start = place * RUN + half * HALF
                signs = found[row, start : min(start + HALF, dim)]
                for bit in range(signs.size):
                    signs[bit] = np.float32(1) - np.float32(np.int32((part >> np.uint32(bit)) & np.uint32(1)) << 1)


def write_signs(found: NDArray[np.float32], key: int, first: int) -> None:
    """Signs of elements `first` and following, one row (dim,) each."""
    share(found.size, len(found), _write_signs, found.ctypes.data, found.shape[1], key, first)


def _add_half(part: Floats, bits: Any, target: Floats) -> None:
    for bit in range(HALF):
        odd = np.int32((bits >> np.uint32(bit)) & np.uint32(1))
        target[bit] += part[bit] * part.dtype.type(1 - 2 * odd)


add_half = compiled(_add_half)


def _add_some_runs(values: Floats, firsts: Whole, key: Any, dim: int, found: Floats, start: int, stop: int) -> None:
    """Adds runs of elements, each with a sign, to `found` (n, dim + `RUN`) from a random place on; some samples."""
    for sample in range(start, stop):
        for use in range(values.shape[1]):
            line, end = values[sample, use], firsts[sample, use] + values.shape[2]
            element = firsts[sample, use]
            while element < end:
                run, skipped = element // RUN, element % RUN
                bits = word(key, 2 * run)
                place = int(((word(key, 2 * run + 1) >> THIRTY_TWO) * np.uint64(dim)) >> THIRTY_TWO)
                count = min(RUN - skipped, end - element)
                part = line[element - firsts[sample, use] :][:count]
                target = found[sample, place + skipped :][:count]
                if count == RUN:
                    add_half(part[:HALF], np.uint32(bits), target[:HALF])
                    add_half(part[HALF:], np.uint32(bits >> THIRTY_TWO), target[HALF:])
                else:
                    for bit in range(count):
                        odd = (bits >> np.uint64(skipped + bit)) & ONE
                        target[bit] += -part[bit] if odd else part[bit]
                element += count


add_some_runs = compiled(_add_some_runs)


@region()
def _add_runs(memory: Any) -> None:
    """Of some samples."""
    words = carray(memory, (13,))
    samples, uses, width, key, dim = words[0], words[9], words[10], np.uint64(words[11]), words[12]
    firsts = carray(as_pointer(words[7]), (samples, uses), np.int64)
    start, stop = first_item(memory, 0), first_item(memory, 1)
    if words[5] == 4:
        values = carray(as_pointer(words[6]), (samples, uses, width), np.float32)
        found = carray(as_pointer(words[8]), (samples, dim + RUN), np.float32)
        add_some_runs(values, firsts, key, dim, found, start, stop)
    else:
        wide = carray(as_pointer(words[6]), (samples, uses, width), np.float64)
        wide_found = carray(as_pointer(words[8]), (samples, dim + RUN), np.float64)
        add_some_runs(wide, firsts, key, dim, wide_found, start, stop)


def add_runs(values: Floats, firsts: Whole, key: int, dim: int, found: Floats) -> None:
    """Adds runs of elements, each with a sign, to `found` (n, dim + `RUN`); samples are shared among threads."""
    addresses = values.ctypes.data, firsts.ctypes.data, found.ctypes.data
    share(values.size, len(values), _add_runs, values.itemsize, *addresses, *values.shape[1:], key, dim)
