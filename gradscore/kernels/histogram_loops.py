"""The loops of `kernels` that count, and add up over samples; importing this module needs Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compile import compiled
from .regions import fork
from .threads import run_parts, share, threads

CHUNK = 1024
"""Elements whose bins are worked out together, in vector registers; a quarter or sixteen times as many took the same
time within 5 %."""

NEAR = 8
"""Bins side by side that are counted in vector registers, eight counters of eight bits in a word of 64; gradients of
one sample seldom need more."""

MOST = 255
"""What one of `NEAR` counters in 64 bits can hold."""

Floats = NDArray[Any]
Places = NDArray[np.int32]
Counts = NDArray[np.int64]
Words = NDArray[np.uint64]
Doubles = NDArray[np.float64]

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


def _count_tasks(left: Floats, right: Floats, axes: Axes, first: int, stop: int, counts: Counts) -> None:
    """Some of the tasks: one is a column of `left` times a chunk of the columns of `right`, for all samples.

    Columns keep their bin on the second axis from sample to sample, so their counts on the first can be gathered in
    vector registers: eight counters of eight bits for each. Where gradients are zero for all of a row, as dead units
    leave them, no product is made.
    """
    low, width, bins, exact, places, inner = axes
    chunks = -(-right.shape[1] // CHUNK)
    buffer, words, nowhere = np.empty(CHUNK, np.int32), np.zeros(CHUNK, np.uint64), np.zeros(CHUNK, np.int32)
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


def _count_parts(left: Floats, right: Floats, axes: Axes, counts: Counts, start: int, stop: int) -> None:
    """Some parts of all tasks, each with two rows of counters of its own."""
    tasks, parts = left.shape[1] * -(-right.shape[1] // CHUNK), counts.shape[0] // 2
    for part in range(start, stop):
        first, last = part * tasks // parts, (part + 1) * tasks // parts
        count_tasks(left, right, axes, first, last, counts[2 * part : 2 * part + 2])


count_parts = compiled(_count_parts)


share_counts = compiled(lambda team, bounds, *arguments: fork(count_parts, team, bounds, arguments))


def count(left: Floats, right: Floats, bins: int, low: float, high: float, places: Places, inner: int) -> Counts:
    """See `kernels.count_products`; `places` is (o, i), or (o, 0) for one axis."""
    kind = left.dtype.type
    width = kind(high - low)
    axes = kind(low), width, kind(bins), bool(np.frexp(width)[0] == 0.5), places, inner
    with threads(left.size * right.shape[1]) as parts:
        counts = np.zeros((2 * parts, bins * inner), np.int64)
        run_parts(parts, parts, share_counts, left, right, axes, counts)
    found: Counts = counts.sum(0)
    return found


def _add_some_deviations(values: Floats, first: Floats, sums: Doubles, squares: Doubles, start: int, stop: int) -> None:
    """Of some columns, a few thousand at a time, whose sums stay in the cache; four rows at a time."""
    whole = values.shape[0] // 4 * 4
    for begin in range(start, stop, CHUNK):
        end = min(begin + CHUNK, stop)
        centre, total, spread = first[begin:end], sums[begin:end], squares[begin:end]
        for row in range(0, whole, 4):
            one, two = values[row, begin:end], values[row + 1, begin:end]
            three, four = values[row + 2, begin:end], values[row + 3, begin:end]
            for place in range(centre.size):
                a, b = np.float64(one[place] - centre[place]), np.float64(two[place] - centre[place])
                c, d = np.float64(three[place] - centre[place]), np.float64(four[place] - centre[place])
                total[place] += (a + b) + (c + d)
                spread[place] += (a * a + b * b) + (c * c + d * d)
        for row in range(whole, values.shape[0]):
            one = values[row, begin:end]
            for place in range(centre.size):
                a = np.float64(one[place] - centre[place])
                total[place] += a
                spread[place] += a * a


add_some_deviations = compiled(_add_some_deviations)


share_deviations = compiled(lambda team, bounds, *arguments: fork(add_some_deviations, team, bounds, arguments))


def add_deviations(values: Floats, first: Floats, sums: Doubles, squares: Doubles) -> None:
    """Of all columns; arguments as in `_add_some_deviations`."""
    share(values.size, values.shape[1], share_deviations, values, first, sums, squares)
