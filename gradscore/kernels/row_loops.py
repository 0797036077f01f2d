"""The loops of `kernels` over rows of elements; importing this module needs Numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    stay_apart,
    take_widest_vectors,
)
from .threads import share

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

ALL_BUT_SIGN = {4: int(np.iinfo(np.int32).max), 8: int(np.iinfo(np.int64).max)}
"""Of floating-point numbers with so many bytes, seen as integers."""

MOMENTS_BYTES = SUMS_BYTES = 5 * 8
"""Of the numbers that are left of a row."""

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


def _ordered(bits: Any, place: int, rest: Any) -> Any:
    """A floating-point number seen as an integer, as one of the same order; and back.

    All but the sign (`rest`) is turned over where it is negative. Integers compare in vector registers.
    """
    kind = bits.dtype.type
    return kind(bits[place] ^ (rest if bits[place] < 0 else kind(0)))


ordered = compiled(_ordered)


def _sum_rows(memory: Any, again: Any, rest: Any, rows: int, width: int, into: Any) -> None:
    """Largest, smallest, sum, squares, magnitudes of each row; `again` is `memory`, seen as integers."""
    stay_apart()
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
    stay_apart()
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
        found[row, 3] = power[0] * np.sqrt(squares) if farthest < np.inf else farthest
        found[row, 4] = magnitudes


sum_rows = Native("sum_rows", (FLOATS, INTEGERS, INTEGER, WORD, WORD, DOUBLES), _sum_rows, fastmath=ANY_ORDER)
take_float_moments = Native(
    "take_float_moments", (FLOATS, INTEGERS, INTEGER, WORD, WORD, WORD, DOUBLES), _take_moments, fastmath=ANY_ORDER
)
take_double_moments = Native(
    "take_double_moments", (DOUBLES, WORDS, WORD, WORD, WORD, WORD, DOUBLES), _take_moments, fastmath=ANY_ORDER
)


@region(sum_rows)
def _sum_some_rows(memory: Any) -> None:
    words = carray(memory, (9,))
    values, rest, width, found = words[5], np.int32(words[6]), words[7], words[8]
    start, stop = first_item(memory, 0), first_item(memory, 1)
    first = values + 4 * start * width
    sum_rows(first, first, rest, stop - start, width, found + start * SUMS_BYTES)


@region(take_float_moments, take_double_moments)
def _take_some_moments(memory: Any) -> None:
    """Of some rows of every matrix, whose addresses and columns are the last words."""
    words = carray(memory, (10,))
    size, rest, about_mean, matrices, found = words[5], words[6], words[7], words[8], words[9]
    table = carray(memory, (10 + 2 * matrices,))
    start, stop = first_item(memory, 0), first_item(memory, 1)
    for place in range(matrices):
        width = table[10 + 2 * place + 1]
        first = table[10 + 2 * place] + start * width * size
        into = found + (place * words[0] + start) * MOMENTS_BYTES
        if size == 4:
            take_float_moments(first, first, np.int32(rest), stop - start, width, about_mean, into)
        else:
            take_double_moments(first, first, rest, stop - start, width, about_mean, into)


@region(fastmath=ANY_ORDER)
def _multiply_rows(memory: Any) -> None:
    """Sums of (value - centre) * factor and of the factors of some rows; the centres go round."""
    words = carray(memory, (11,))
    rows, width, channels = words[0], words[6], words[8]
    values = carray(as_pointer(words[5]), (rows, width), np.float32)
    centres = carray(as_pointer(words[7]), (channels,), np.float32)
    factors = carray(as_pointer(words[9]), (rows, width), np.float32)
    found = carray(as_pointer(words[10]), (2, rows), np.float32)
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
def _sum_normed(memory: Any) -> None:
    """Sums over the rows t of some samples, of (value[t] - centre[t]) * scale[t] * factor[t] and of factor[t].

    The words are the addresses of values, (n, t, p), or (n, p, t) by columns, of centres and of scales, (n, t), of
    factors, (all samples * t, p), and of the sums, (2, n, p); then t, p, whether the values are by columns, and rows of
    factors from sample to sample and from t to t.
    """
    words = carray(memory, (15,))
    samples, tokens, width, by_columns = words[0], words[10], words[11], words[12] != 0
    apart = words[13], words[14]
    values = carray(as_pointer(words[5]), (samples, tokens, width), np.float32)
    columns = carray(as_pointer(words[5]), (samples, width, tokens), np.float32)
    centres = carray(as_pointer(words[6]), (samples, tokens), np.float32)
    scales = carray(as_pointer(words[7]), (samples, tokens), np.float32)
    factors = carray(as_pointer(words[8]), (samples * tokens, width), np.float32)
    found = carray(as_pointer(words[9]), (2, samples, width), np.float32)
    room = own_scratch(memory)
    total = carray(as_pointer(room), (2, width), np.float64)
    part = carray(as_pointer(room + 16 * width), (2, width), np.float32)
    lines = carray(as_pointer(room + 24 * width), (tokens, width), np.float32)
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


def sums_of_rows(memory: int, rows: int, width: int) -> Doubles:
    """See `kernels.row_sums`.

    Args:
        memory: address of the rows, float32.
        rows: how many.
        width: elements of each.
    """
    found = np.empty((rows, 5))
    share(rows * width, rows, _sum_some_rows, memory, ALL_BUT_SIGN[4], width, found.ctypes.data)
    return found


def moments_of_rows(matrices: Sequence[tuple[int, int]], rows: int, size: int, *, about_mean: bool) -> Doubles:
    """See `kernels.moments_of_all`.

    Args:
        matrices: address and elements of a row, of each.
        rows: of each.
        size: bytes of an element, 4 or 8.
        about_mean: see `kernels.moments_of_all`.
    """
    found = np.empty((len(matrices), rows, 5))
    settings = size, ALL_BUT_SIGN[size], int(about_mean), len(matrices), found.ctypes.data
    table = [number for matrix in matrices for number in matrix]
    share(rows * sum(width for _, width in matrices), rows, _take_some_moments, *settings, *table)
    return found


def multiply_rows(values: int, centres: int, factors: int, rows: int, width: int, channels: int) -> Floats:
    """See `kernels.centred_products`: addresses, and sizes; (2, rows)."""
    found = np.empty((2, rows), np.float32)
    share(rows * width, rows, _multiply_rows, values, width, centres, channels, factors, found.ctypes.data)
    return found


def sum_normed(
    addresses: Sequence[int], samples: int, tokens: int, width: int, *, by_columns: bool, apart: tuple[int, int]
) -> Floats:
    """See `kernels.normed_products` and `_sum_normed`.

    Args:
        addresses: of values, centres, scales and factors.
        samples: n.
        tokens: t.
        width: p.
        by_columns: values are.
        apart: rows of the factors from sample to sample and from t to t.
    """
    found = np.empty((2, samples, width), np.float32)
    settings = *addresses, found.ctypes.data, tokens, width, int(by_columns), *apart
    scratch = width * (24 + 4 * tokens * by_columns)
    share(samples * tokens * width, samples, _sum_normed, *settings, scratch=scratch)
    return found
