"""The loops of `kernels` over random signs; importing this module needs Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compile import compiled
from .regions import fork
from .signs import RUN
from .threads import share

HALF = 32

GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ONE, THIRTY, TWENTY_SEVEN, THIRTY_ONE, THIRTY_TWO = (np.uint64(bits) for bits in (1, 30, 27, 31, 32))

Floats = NDArray[Any]
Whole = NDArray[np.int64]


def _word(key: Any, place: int) -> Any:
    """Word `place` of SplitMix64 from the state `key`."""
    mixed = key + (np.uint64(place) + ONE) * GOLDEN
    mixed = (mixed ^ (mixed >> THIRTY)) * FIRST
    mixed = (mixed ^ (mixed >> TWENTY_SEVEN)) * SECOND
    return mixed ^ (mixed >> THIRTY_ONE)


word = compiled(_word)


def _write_signs(found: NDArray[np.float32], key: Any, first: int, begin: int, end: int) -> None:
    """Signs of elements `first` and following, one row (dim,) each; some rows."""
    dim = found.shape[1]
    words = -(-dim // RUN)
    for row in range(begin, end):
        for place in range(words):
            bits = word(key, (first + row) * words + place)
            for half in range(2):
                part = np.uint32(bits >> THIRTY_TWO) if half else np.uint32(bits)
                start = place * RUN + half * HALF
                signs = found[row, start : min(start + HALF, dim)]
                for bit in range(signs.size):
                    signs[bit] = np.float32(1) - np.float32(np.int32((part >> np.uint32(bit)) & np.uint32(1)) << 1)


write_some_signs = compiled(_write_signs)


def _add_runs(values: Floats, firsts: Whole, key: Any, dim: int, found: Floats, start: int, stop: int) -> None:
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


def _add_half(part: Floats, bits: Any, target: Floats) -> None:
    for bit in range(HALF):
        odd = np.int32((bits >> np.uint32(bit)) & np.uint32(1))
        target[bit] += part[bit] * part.dtype.type(1 - 2 * odd)


add_half = compiled(_add_half)
add_some_runs = compiled(_add_runs)


share_signs = compiled(lambda team, bounds, *arguments: fork(write_some_signs, team, bounds, arguments))
share_runs = compiled(lambda team, bounds, *arguments: fork(add_some_runs, team, bounds, arguments))


def write_signs(found: NDArray[np.float32], key: Any, first: int) -> None:
    """`_write_signs`, rows shared among threads."""
    share(found.size, len(found), share_signs, found, key, first)


def add_runs(values: Floats, firsts: Whole, key: Any, dim: int, found: Floats) -> None:
    """`_add_runs`, samples shared among threads."""
    share(values.size, len(values), share_runs, values, firsts, key, dim, found)
