"""The loops of `kernels` over rows and single elements; importing this module needs Numba.

What reduces rows, counts elements in bins, adds up their deviations over samples, and gives them random signs. The
words of a region come after `native.WORDS_AHEAD` others; `dispatch` puts them together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dispatch import RUN, Doubles
from .native import (
    DOUBLES,
    FLOATS,
    INTEGER,
    INTEGERS,
    WORD,
    WORDS,
    Native,
    as_pointer,
    carray,
    compiled,
    first_item,
    own_scratch,
    region,
    take_widest_vectors,
)

CHUNK = 2048
"""Elements that are added up in float32 before they join a sum in float64, and that the cache keeps.

Sums of 262,144 numbers in [0, 1) come out 5e-9 off; with parts of 65,536 they were 1e-7 off and no faster, with parts
of 128 they took 1.7 times as long.
"""

ROWS_TOGETHER = 64
"""Rows that are added up in float32 before they join a sum in float64: as a rule that
rounds by eight times what one term does, the root of their number."""

FRACTION_BITS, BIAS = 52, 1023
"""Of float64: the bits below its exponent, and what an exponent of zero is written as."""

ANY_ORDER = {"reassoc", "contract", "nsz"}
"""Sums in any order, so that they run in vector registers; NaN and infinity keep their meaning."""

SIGNLESS, WIDE_SIGNLESS = np.int32(np.iinfo(np.int32).max), np.int64(np.iinfo(np.int64).max)
"""All bits but the sign of float32 and float64, seen as integers."""

ROW_BYTES = 5 * 8
"""Of the numbers that are left of a row."""

Floats = NDArray[Any]
Places = NDArray[np.int32]
Counts = NDArray[np.int64]
Words = NDArray[np.uint64]


@compiled
def ordered(bits: Any, place: int, rest: Any) -> Any:
    """A floating-point number seen as an integer, as one of the same order; and back.

    All but the sign (`rest`) is turned over where it is negative. Integers compare in vector registers.
    """
    kind = bits.dtype.type
    return kind(bits[place] ^ (rest if bits[place] < 0 else kind(0)))


def _sum_rows(memory: Any, again: Any, rest: Any, rows: int, width: int, into: Any) -> None:
    """Largest, smallest, sum, squares, magnitudes of each row; `again` is `memory`, seen as integers."""
    take_widest_vectors()
    values, bits, found = carray(memory, (rows, width)), carray(again, (rows, width)), carray(into, (rows, 5))
    ends = np.empty(2, bits.dtype)
    for row in range(values.shape[0]):
        total = squares = magnitudes = 0.0
        largest, smallest = values[row, 0], values[row, 0]
        for first in range(0, values.shape[1], CHUNK):
            part, seen = values[row, first : first + CHUNK], bits[row, first : first + CHUNK]
            s, q, m = np.float32(0), np.float32(0), np.float32(0)
            most = least = ordered(seen, 0, rest)
            for place in range(part.size):
                x = part[place]
                s += x
                q += x * x
                m += abs(x)
                key = ordered(seen, place, rest)
                most, least = max(most, key), min(least, key)
            total += float(s)
            squares += float(q)
            magnitudes += float(m)
            ends[0], ends[1] = most, least
            ends[0], ends[1] = ordered(ends, 0, rest), ordered(ends, 1, rest)
            high, low = ends.view(values.dtype)
            largest, smallest = max(largest, high), min(smallest, low)
        found[row, 0] = np.nan if np.isnan(magnitudes) else largest
        found[row, 1] = np.nan if np.isnan(magnitudes) else smallest
        found[row, 2] = total
        found[row, 3] = squares
        found[row, 4] = magnitudes


def _take_moments(memory: Any, again: Any, rest: Any, rows: int, width: int, about_mean: int, into: Any) -> None:
    """Largest, smallest, mean, root of squares, magnitudes of each row, in two passes; `again` as in `_sum_rows`."""
    take_widest_vectors()
    values, bits, found = carray(memory, (rows, width)), carray(again, (rows, width)), carray(into, (rows, 5))
    ends, power = np.empty(2, bits.dtype), np.empty(2, np.float64)
    power_bits = power.view(np.int64)
    for row in range(values.shape[0]):
        total = magnitudes = 0.0
        largest, smallest = values[row, 0], values[row, 0]
        for first in range(0, values.shape[1], CHUNK):
            part, seen = values[row, first : first + CHUNK], bits[row, first : first + CHUNK]
            s = m = 0.0
            most = least = ordered(seen, 0, rest)
            for place in range(part.size):
                x = np.float64(part[place])
                s += x
                m += abs(x)
                key = ordered(seen, place, rest)
                most, least = max(most, key), min(least, key)
            total += s
            magnitudes += m
            ends[0], ends[1] = most, least
            ends[0], ends[1] = ordered(ends, 0, rest), ordered(ends, 1, rest)
            high, low = ends.view(values.dtype)
            largest, smallest = max(largest, high), min(smallest, low)
        mean = total / values.shape[1]
        centre = mean if about_mean != 0 else 0.0
        farthest = max(abs(largest - centre), abs(smallest - centre)) if abs(centre) < np.inf else np.nan
        squares = 0.0
        # Scaled by a power of two: multiplying by its inverse is exact, and dividing took twice as long as all else.
        power[0] = farthest
        exponent = min(max(power_bits[0] >> FRACTION_BITS, 1), 2 * BIAS - 1)
        power_bits[0], power_bits[1] = exponent << FRACTION_BITS, (2 * BIAS - exponent) << FRACTION_BITS
        inverse = power[1]
        if farthest > 0 and farthest < np.inf:
            for place in range(values.shape[1]):
                x = (np.float64(values[row, place]) - centre) * inverse
                squares += x * x
        unknown = np.isnan(magnitudes)
        found[row, 0] = np.nan if unknown else largest
        found[row, 1] = np.nan if unknown else smallest
        found[row, 2] = mean
        # Comparisons pass NaN by: among zeros alone it would be none of the squares.
        deviation = power[0] * np.sqrt(squares) if farthest < np.inf else farthest
        found[row, 3] = np.nan if unknown else deviation
        found[row, 4] = magnitudes


sum_rows = Native("sum_rows", (FLOATS, INTEGERS, INTEGER, WORD, WORD, DOUBLES), _sum_rows, fastmath=ANY_ORDER)
take_float_moments = Native(
    "take_float_moments", (FLOATS, INTEGERS, INTEGER, WORD, WORD, WORD, DOUBLES), _take_moments, fastmath=ANY_ORDER
)
take_double_moments = Native(
    "take_double_moments", (DOUBLES, WORDS, WORD, WORD, WORD, WORD, DOUBLES), _take_moments, fastmath=ANY_ORDER
)


@region(sum_rows)
def sum_some_rows(memory: Any) -> None:
    """Words: the address of the rows, the elements of one, and where sums (rows, 5) go."""
    words = carray(memory, (7,))
    values, width, found = words[4], words[5], words[6]
    start, stop = first_item(memory, 0), first_item(memory, 1)
    first = values + 4 * start * width
    sum_rows(first, first, SIGNLESS, stop - start, width, found + start * ROW_BYTES)


@region(take_float_moments, take_double_moments)
def take_some_moments(memory: Any) -> None:
    """Words: bytes of an element, deviations from the mean, matrices, where moments go; address and columns of each."""
    words = carray(memory, (8,))
    size, about_mean, matrices, found = words[4], words[5], words[6], words[7]
    table = carray(memory, (8 + 2 * matrices,))
    start, stop = first_item(memory, 0), first_item(memory, 1)
    for place in range(matrices):
        width = table[8 + 2 * place + 1]
        first = table[8 + 2 * place] + start * width * size
        into = found + (place * words[0] + start) * ROW_BYTES
        if size == 4:
            take_float_moments(first, first, SIGNLESS, stop - start, width, about_mean, into)
        else:
            take_double_moments(first, first, WIDE_SIGNLESS, stop - start, width, about_mean, into)


@region(fastmath=ANY_ORDER)
def multiply_some_rows(memory: Any) -> None:
    """Sums of (value - centre) * factor and of the factors of some rows; the centres go round.

    Words: the addresses of values, centres, factors and sums (2, rows); the elements of a row, and the centres.
    """
    words = carray(memory, (10,))
    rows, width, channels = words[0], words[8], words[9]
    values = carray(as_pointer(words[4]), (rows, width), np.float32)
    centres = carray(as_pointer(words[5]), (channels,), np.float32)
    factors = carray(as_pointer(words[6]), (rows, width), np.float32)
    found = carray(as_pointer(words[7]), (2, rows), np.float32)
    for row in range(first_item(memory, 0), first_item(memory, 1)):
        centre = centres[row % channels]
        products = alone = 0.0
        for first in range(0, width, CHUNK):
            part, factor = values[row, first : first + CHUNK], factors[row, first : first + CHUNK]
            p, a = np.float32(0), np.float32(0)
            for place in range(part.size):
                p += (part[place] - centre) * factor[place]
                a += factor[place]
            products += float(p)
            alone += float(a)
        found[0, row] = products
        found[1, row] = alone


@region(fastmath=ANY_ORDER)
def sum_normed(memory: Any) -> None:
    """Sums over the rows t of some samples, of (value[t] - centre[t]) * scale[t] * factor[t] and of factor[t].

    Words: the addresses of values, (n, t, p), or (n, p, t) by columns, of centres and of scales, (n, t), of
    factors, (all samples * t, p), and of the sums, (2, n, p); then t, p, whether the values are by columns, and rows of
    factors from sample to sample and from t to t.
    """
    words = carray(memory, (14,))
    samples, tokens, width, by_columns = words[0], words[9], words[10], words[11] != 0
    apart = words[12], words[13]
    values = carray(as_pointer(words[4]), (samples, tokens, width), np.float32)
    columns = carray(as_pointer(words[4]), (samples, width, tokens), np.float32)
    centres = carray(as_pointer(words[5]), (samples, tokens), np.float32)
    scales = carray(as_pointer(words[6]), (samples, tokens), np.float32)
    factors = carray(as_pointer(words[7]), (samples * tokens, width), np.float32)
    found = carray(as_pointer(words[8]), (2, samples, width), np.float32)
    scratch_at = own_scratch(memory)
    total = carray(as_pointer(scratch_at), (2, width), np.float64)
    part = carray(as_pointer(scratch_at + 16 * width), (2, width), np.float32)
    lines = carray(as_pointer(scratch_at + 24 * width), (tokens, width), np.float32)
    for sample in range(first_item(memory, 0), first_item(memory, 1)):
        if by_columns:
            for place in range(np.uintp(width)):
                for row in range(np.uintp(tokens)):
                    lines[row, place] = columns[sample, place, row]
        total[:] = 0
        for start in range(0, tokens, ROWS_TOGETHER):
            part[:] = 0
            for row in range(start, min(start + ROWS_TOGETHER, tokens)):
                value = lines[row] if by_columns else values[sample, row]
                factor = factors[sample * apart[0] + row * apart[1]]
                centre, scale = centres[sample, row], scales[sample, row]
                for place in range(width):
                    part[0, place] += (value[place] - centre) * scale * factor[place]
                    part[1, place] += factor[place]
            for kind in range(2):
                for place in range(width):
                    total[kind, place] += part[kind, place]
        for kind in range(2):
            for place in range(width):
                found[kind, sample, place] = total[kind, place]


# Counts in bins.

BINS = 1024
"""Elements whose bins are worked out together, in vector registers; a quarter or sixteen times as many took the same
time within 5 %."""

NEAR = 8
"""Bins side by side that are counted in vector registers, eight counters of eight bits in a word of 64; gradients of
one sample seldom need more."""

MOST = 255
"""What one of `NEAR` counters in 64 bits can hold."""

Axes = tuple[Any, Any, Any, bool, Places, int]
"""Of a histogram: least value, width of all bins together, their number, these of the type of the values; whether the
width is a power of two; the bin on the second axis of each element, and how many bins that axis has, 1 for none."""


@compiled
def find_bins(factor: Any, values: Floats, low: Any, width: Any, bins: Any, exact: bool, found: Places) -> None:
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


@compiled
def ends(found: Places, limits: Places) -> None:
    """Least and most, into `limits` (2,)."""
    least = most = found[0]
    for place in range(found.size):
        bin_ = found[place]
        least = bin_ if bin_ < least else least
        most = bin_ if bin_ > most else most
    limits[0], limits[1] = least, most


@compiled
def scatter(found: Places, beside: Places, inner: int, counts: Counts) -> None:
    """One by one, in two rows of counters, so that equal values wait less for one another."""
    for place in range(found.size):
        counts[place & 1, np.uint32(found[place] * inner + beside[place])] += 1


@compiled
def pack(found: Places, base: int, packed: Words) -> None:
    """Counts bins from `base` on, in eight counters of eight bits for each column."""
    for place in range(found.size):
        packed[place] += np.uint64(1) << (np.uint64(found[place] - base) << np.uint64(3))


@compiled
def unpack(packed: Words, base: int, beside: Places, inner: int, counts: Counts) -> None:
    """Adds what `pack` counted to `counts`, and clears it."""
    for place in range(beside.size):
        word = packed[place]
        for slot in range(NEAR):
            some = np.int64((word >> np.uint64(8 * slot)) & np.uint64(MOST))
            if some:
                counts[0, (base + slot) * inner + beside[place]] += some
        packed[place] = 0


@compiled
def count_tasks(left: Floats, right: Floats, axes: Axes, first: int, stop: int, counts: Counts, scratch: int) -> None:
    """Some of the tasks: one is a column of `left` times a chunk of the columns of `right`, for all samples.

    Columns keep their bin on the second axis from sample to sample, so their counts on the first can be gathered in
    vector registers: eight counters of eight bits for each. Where gradients are zero for all of a row, as dead units
    leave them, no product is made.
    """
    low, width, bins, exact, places, inner = axes
    chunks = -(-right.shape[1] // BINS)
    words = carray(as_pointer(scratch), (BINS,), np.uint64)
    buffer = carray(as_pointer(scratch + 8 * BINS), (BINS,), np.int32)
    nowhere = carray(as_pointer(scratch + 12 * BINS), (BINS,), np.int32)
    words[:], nowhere[:] = 0, 0
    find_bins(left.dtype.type(0), right[0, :1], low, width, bins, exact, buffer[:1])
    zero = buffer[0]
    base = max(0, min(zero - NEAR // 2, counts.shape[1] // inner - NEAR))
    packs = inner == 1 or left.shape[0] >= NEAR
    limits = np.empty(2, np.int32)
    waiting = 0
    for task in range(first, stop):
        column, start = task // chunks, task % chunks * BINS
        end = min(start + BINS, right.shape[1])
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
                waiting += 1
                if waiting == MOST:
                    unpack(words, base, beside if inner > 1 else nowhere, inner, counts)
                    waiting = 0
            else:
                scatter(found, beside, inner, counts)
        if waiting and inner > 1:
            unpack(words, base, beside, inner, counts)
            waiting = 0
        if zeros:
            for place in range(found.size):
                counts[0, zero * inner + beside[place]] += zeros
    unpack(words, base, nowhere, inner, counts)


@compiled
def count_parts(left: Floats, right: Floats, axes: Axes, counts: Counts, start: int, stop: int, scratch: int) -> None:
    """Some parts of all tasks, each with two rows of counters of its own."""
    tasks, parts = left.shape[1] * -(-right.shape[1] // BINS), counts.shape[0] // 2
    for part in range(start, stop):
        first, last = part * tasks // parts, (part + 1) * tasks // parts
        count_tasks(left, right, axes, first, last, counts[2 * part : 2 * part + 2], scratch)


@region()
def count_bins(memory: Any) -> None:
    """Some parts of all tasks, each with two rows of counters of its own.

    Words: bytes of an element; the addresses of `left` and `right`; samples and columns of either; the address of the
    least value, the width and the number of bins; whether the width is a power of two; the address and columns of the
    bins on the second axis, and how many that has; the address of the counters.
    """
    words = carray(memory, (16,))
    rows, out, width, inner = words[7], words[8], words[9], words[14]
    places = carray(as_pointer(words[12]), (out, words[13]), np.int32)
    start, stop, scratch, exact = first_item(memory, 0), first_item(memory, 1), own_scratch(memory), words[11] != 0
    if words[4] == 4:
        axis = carray(as_pointer(words[10]), (3,), np.float32)
        axes = axis[0], axis[1], axis[2], exact, places, inner
        counts = carray(as_pointer(words[15]), (2 * words[0], np.int64(axis[2]) * inner), np.int64)
        left = carray(as_pointer(words[5]), (rows, out), np.float32)
        right = carray(as_pointer(words[6]), (rows, width), np.float32)
        count_parts(left, right, axes, counts, start, stop, scratch)
    else:
        wide_axis = carray(as_pointer(words[10]), (3,), np.float64)
        wide_axes = wide_axis[0], wide_axis[1], wide_axis[2], exact, places, inner
        counts = carray(as_pointer(words[15]), (2 * words[0], np.int64(wide_axis[2]) * inner), np.int64)
        wide_left = carray(as_pointer(words[5]), (rows, out), np.float64)
        wide_right = carray(as_pointer(words[6]), (rows, width), np.float64)
        count_parts(wide_left, wide_right, wide_axes, counts, start, stop, scratch)


# Deviations over samples.


@compiled
def add_some_deviations(values: Floats, first: Floats, sums: Doubles, squares: Doubles, start: int, stop: int) -> None:
    """Of some columns, a few thousand at a time, whose sums stay in the cache; four rows at a time."""
    whole = values.shape[0] // 4 * 4
    for begin in range(start, stop, BINS):
        end = min(begin + BINS, stop)
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


@region()
def add_deviations(memory: Any) -> None:
    """Of some columns. Words: bytes of an element, rows; the addresses of values, first row, sums and squares."""
    words = carray(memory, (10,))
    columns, rows = words[0], words[5]
    start, stop = first_item(memory, 0), first_item(memory, 1)
    sums = carray(as_pointer(words[8]), (columns,), np.float64)
    squares = carray(as_pointer(words[9]), (columns,), np.float64)
    if words[4] == 4:
        values = carray(as_pointer(words[6]), (rows, columns), np.float32)
        first = carray(as_pointer(words[7]), (columns,), np.float32)
        add_some_deviations(values, first, sums, squares, start, stop)
    else:
        wide = carray(as_pointer(words[6]), (rows, columns), np.float64)
        wide_first = carray(as_pointer(words[7]), (columns,), np.float64)
        add_some_deviations(wide, wide_first, sums, squares, start, stop)


# Random signs.

HALF = RUN // 2
GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ONE, THIRTY, TWENTY_SEVEN, THIRTY_ONE, THIRTY_TWO = (np.uint64(bits) for bits in (1, 30, 27, 31, 32))


@compiled
def word(key: Any, place: int) -> Any:
    """Word `place` of SplitMix64 from the state `key`."""
    mixed = key + (np.uint64(place) + ONE) * GOLDEN
    mixed = (mixed ^ (mixed >> THIRTY)) * FIRST
    mixed = (mixed ^ (mixed >> TWENTY_SEVEN)) * SECOND
    return mixed ^ (mixed >> THIRTY_ONE)


@compiled
def add_half(part: Floats, bits: Any, target: Floats) -> None:
    """Adds half a run of elements, each with the sign that its bit says."""
    for bit in range(HALF):
        odd = np.int32((bits >> np.uint32(bit)) & np.uint32(1))
        target[bit] += part[bit] * part.dtype.type(1 - 2 * odd)


@compiled
def add_some_runs(values: Floats, firsts: Counts, key: Any, dim: int, found: Floats, start: int, stop: int) -> None:
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


@region()
def add_runs(memory: Any) -> None:
    """Of some samples.

    Words: bytes of an element, parts of a sample and their elements, key, places; addresses of values, firsts, sums.
    """
    words = carray(memory, (12,))
    samples, uses, width, key, dim = words[0], words[5], words[6], np.uint64(words[7]), words[8]
    firsts = carray(as_pointer(words[10]), (samples, uses), np.int64)
    start, stop = first_item(memory, 0), first_item(memory, 1)
    if words[4] == 4:
        values = carray(as_pointer(words[9]), (samples, uses, width), np.float32)
        found = carray(as_pointer(words[11]), (samples, dim + RUN), np.float32)
        add_some_runs(values, firsts, key, dim, found, start, stop)
    else:
        wide = carray(as_pointer(words[9]), (samples, uses, width), np.float64)
        wide_found = carray(as_pointer(words[11]), (samples, dim + RUN), np.float64)
        add_some_runs(wide, firsts, key, dim, wide_found, start, stop)
