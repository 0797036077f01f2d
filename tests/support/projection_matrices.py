"""The matrices of projections, written down from their definition with whole numbers of Python."""

import hashlib
from math import isqrt, prod

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


def signs(state, rows, columns):
    """(rows, columns): row r has the bits of words of its own, lowest first; a set bit is -1."""
    each = -(-columns // 64)
    return np.array(
        [[1.0 - 2 * (word(state, r * each + c // 64) >> (c % 64) & 1) for c in range(columns)] for r in range(rows)]
    )


def rademacher(name, shape, dim, seed):
    return signs(key(seed, "rademacher", name), prod(shape), dim).T / np.sqrt(dim)


def sparse(name, shape, dim, seed):
    state, found = key(seed, "sparse", name), np.zeros((dim, prod(shape)))
    for element in range(prod(shape)):
        run, inside = divmod(element, 64)
        place = ((word(state, 2 * run + 1) >> 32) * dim >> 32) + inside
        found[place % dim, element] = 1.0 - 2 * (word(state, 2 * run) >> inside & 1)
    return found


def factored(name, shape, dim, seed):
    height, width = (shape[0], prod(shape[1:])) if shape else (1, 1)
    if height == 1 or width == 1:
        return sparse(name, shape, dim, seed)
    root = isqrt(dim)
    tall, wide = root, min(width, dim // root)
    if height <= root:
        tall, wide = height, min(width, dim // height)
    elif width <= root:
        tall, wide = min(height, dim // width), width
    sides = []
    for side, rows, size in (("left", tall, height), ("right", wide, width)):
        state = key(seed, f"factored {side}", name)
        whole = rows == size
        sides.append(np.diag(signs(state, 1, size)[0]) if whole else signs(state, rows, size) / np.sqrt(rows))
    place = (word(key(seed, "factored place", name), 0) >> 32) * dim >> 32
    found = np.zeros((dim, height * width))
    found[(place + np.arange(tall * wide)) % dim] = np.kron(*sides)
    return found


MATRICES = {"rademacher": rademacher, "sparse": sparse, "factored": factored}
