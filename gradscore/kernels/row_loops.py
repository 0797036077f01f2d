"""The loops of `kernels` over rows; importing this module needs Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compile import compiled, once_for_each_dtype, stay_apart, take_widest_vectors
from .regions import fork
from .threads import share

CHUNK = 2048
"""Elements that are added up in float32 before they join a sum in float64, and that the cache keeps.

Sums of 262,144 numbers in [0, 1) come out 5e-9 off; with parts of 65,536 they were 1e-7 off and no faster, with parts
of 128 they took 1.7 times as long.
"""

FEW = 64
"""Rows that are added up in float32 before they join a sum in float64: as a rule that
rounds by eight times what one term does, the root of their number."""

FRACTION_BITS, BIAS = 52, 1023
"""Of float64: the bits below its exponent, and what an exponent of zero is written as."""

ANY_ORDER = {"reassoc", "contract", "nsz"}
"""Sums in any order, so that they run in vector registers; NaN and infinity keep their meaning."""

Floats = NDArray[Any]
Integers = NDArray[Any]
Doubles = NDArray[np.float64]


def _ordered(bits: Integers, place: int, rest: Any) -> Any:
    """A floating-point number seen as an integer, as one of the same order; and back.

    All but the sign (`rest`) is turned over where it is negative. Integers compare in vector registers.
    """
    kind = bits.dtype.type
    return kind(bits[place] ^ (rest if bits[place] < 0 else kind(0)))


ordered = compiled(_ordered)


def _sum_rows(values: Floats, bits: Integers, rest: Any, found: Doubles) -> None:
    """Largest, smallest, sum, squares, magnitudes of each row; `bits` is `values` seen as int32."""
    stay_apart()
    take_widest_vectors()
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


def _take_moments(values: Floats, bits: Integers, rest: Any, about_mean: bool, found: Doubles) -> None:
    """Largest, smallest, mean, spread, magnitudes of each row, in two passes."""
    stay_apart()
    take_widest_vectors()
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
        centre = mean if about_mean else 0.0
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


def _multiply_rows(values: Floats, centres: Floats, factors: Floats, found: Floats, start: int, stop: int) -> None:
    """Sums of (value - centre) * factor and of the factors of some rows; the centres go round."""
    stay_apart()
    for row in range(start, stop):
        centre = centres[row % centres.size]
        products = alone = 0.0
        for first in range(0, values.shape[1], CHUNK):
            part, factor = values[row, first : first + CHUNK], factors[row, first : first + CHUNK]
            p, a = np.float32(0), np.float32(0)
            for place in range(part.size):
                p += (part[place] - centre) * factor[place]
                a += factor[place]
            products += float(p)
            alone += float(a)
        found[0, row] = products
        found[1, row] = alone


def _sum_normed(
    values: Floats,
    by_columns: bool,
    centres: Floats,
    scales: Floats,
    factors: Floats,
    apart: tuple[int, int],
    found: Floats,
    first: int,
    stop: int,
) -> None:
    """Sums over the rows t of some samples, of (value[t] - centre[t]) * scale[t] * factor[t] and of factor[t].

    Args:
        values: (n, t, p), or (n, p, t) by columns.
        by_columns: which.
        centres: (n, t).
        scales: (n, t).
        factors: (all samples * t, p).
        apart: rows of these from sample to sample and from t to t.
        found: (2, n, p).
        first: the first sample.
        stop: the first that is left out.
    """
    stay_apart()
    tokens, width = centres.shape[1], found.shape[2]
    part, total = np.empty((2, width), np.float32), np.empty((2, width), np.float64)
    lines = np.empty((tokens if by_columns else 0, width), np.float32)
    for sample in range(first, stop):
        if by_columns:
            for place in range(np.uintp(width)):
                for row in range(np.uintp(tokens)):
                    lines[row, place] = values[sample, place, row]
        total[:] = 0
        for start in range(0, tokens, FEW):
            part[:] = 0
            for row in range(start, min(start + FEW, tokens)):
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


sum_all_rows = compiled(_sum_rows, fastmath=ANY_ORDER)
take_all_moments = compiled(_take_moments, fastmath=ANY_ORDER)
multiply_some_rows = compiled(_multiply_rows, fastmath=ANY_ORDER)
sum_some_normed = compiled(_sum_normed, fastmath=ANY_ORDER)


# Apart from the loops over all rows: those, inlined with the bounds of a caller, would have other last bits there.
def _sum_some_rows(values: Floats, bits: Integers, rest: Any, found: Doubles, start: int, stop: int) -> None:
    sum_all_rows(values[start:stop], bits[start:stop], rest, found[start:stop])


def _take_some_moments(
    values: Floats, bits: Integers, rest: Any, about_mean: bool, found: Doubles, start: int, stop: int
) -> None:
    take_all_moments(values[start:stop], bits[start:stop], rest, about_mean, found[start:stop])


sum_some_rows = compiled(_sum_some_rows)
take_some_moments = compiled(_take_some_moments)


share_sums = compiled(lambda team, bounds, *arguments: fork(sum_some_rows, team, bounds, arguments))
share_moments = compiled(lambda team, bounds, *arguments: fork(take_some_moments, team, bounds, arguments))
share_multiplied = compiled(lambda team, bounds, *arguments: fork(multiply_some_rows, team, bounds, arguments))
share_normed = compiled(lambda team, bounds, *arguments: fork(sum_some_normed, team, bounds, arguments))
own_sums_first = once_for_each_dtype(sum_all_rows)
own_moments_first = once_for_each_dtype(take_all_moments)
own_multiplied_first = once_for_each_dtype(multiply_some_rows)
own_normed_first = once_for_each_dtype(sum_some_normed)


def sum_rows(values: Floats, bits: Integers, rest: Any, found: Doubles) -> None:
    """All rows; arguments as in `_sum_rows`."""
    own_sums_first(values[:0], bits[:0], rest, found[:0])
    share(values.size, len(values), share_sums, values, bits, rest, found)


def take_moments(values: Floats, bits: Integers, rest: Any, about_mean: bool, found: Doubles) -> None:
    """All rows; arguments as in `_take_moments`."""
    own_moments_first(values[:0], bits[:0], rest, about_mean, found[:0])
    share(values.size, len(values), share_moments, values, bits, rest, about_mean, found)


def multiply_rows(values: Floats, centres: Floats, factors: Floats, found: Floats) -> None:
    """All rows; arguments as in `_multiply_rows`."""
    own_multiplied_first(values, centres, factors, found, 0, 0)
    share(values.size, len(values), share_multiplied, values, centres, factors, found)


def sum_normed(
    values: Floats,
    by_columns: bool,
    centres: Floats,
    scales: Floats,
    factors: Floats,
    apart: tuple[int, int],
    found: Floats,
) -> None:
    """All samples; arguments as in `_sum_normed`."""
    settings = (values, by_columns, centres, scales, factors, apart)
    own_normed_first(*settings, found, 0, 0)
    share(values.size, len(values), share_normed, *settings, found)
