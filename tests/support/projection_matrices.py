"""The matrix of a projection, written down from its definition with whole numbers of Python."""

import hashlib
from math import prod

import numpy as np

MASK = 2**64 - 1


def word(key, place):
    """The number after `place` others of SplitMix64 (Steele, Lea, Flood 2014) from the state `key`."""
    z = (key + (place + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed, *names):
    return int.from_bytes(hashlib.sha256("\n".join([str(seed), *names]).encode()).digest()[:8], "little")


def matrix(name, shape, dim, seed):
    """(dim, elements)."""
    state, found = key(seed, "sparse", name), np.zeros((dim, prod(shape)))
    for element in range(prod(shape)):
        run, inside = divmod(element, 64)
        place = ((word(state, 2 * run + 1) >> 32) * dim >> 32) + inside
        found[place % dim, element] = 1.0 - 2 * (word(state, 2 * run) >> inside & 1)
    return found
