"""Random signs, and sums of elements with random signs, in one pass (extra `fast`, Numba).

The random words are those of SplitMix64: word i of a key is the i-th number that the generator gives from the state
`key`, so that any of them can be had without those before it.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from .loading import loops as load_loops

_loops = functools.partial(load_loops, "sign_loops")

RUN = 64
"""Elements that one random word has signs for."""


def sign_rows(key: int, *, first: int, count: int, dim: int) -> Tensor | None:
    """Random signs, `dim` for each element.

    Args:
        key: of the random words, below 2**64.
        first: the first element.
        count: how many elements.
        dim: signs of an element; element e has those of words e * W to e * W + W - 1, W = dim / 64 rounded up.

    Returns:
        (count, dim) float32, -1 where a bit is set and 1 elsewhere, lowest bit first; None without Numba.
    """
    loops = _loops()
    if loops is None:
        return None
    found = np.empty((count, dim), dtype=np.float32)
    loops.write_signs(found, np.uint64(key), first)
    return torch.from_numpy(found)


def add_runs(values: Tensor, firsts: Tensor, *, key: int, dim: int, found: Tensor) -> bool:
    """Adds elements with random signs to places that are random for each run of `RUN` elements.

    Run r, elements 64 r to 64 r + 63, goes to places from `start` on, where `start` is the upper half of word 2 r + 1
    times `dim`, shifted by 32 bits; bit b of word 2 r is the sign of its element b.

    Args:
        values: (n, t, p): t parts of the elements of each of n samples.
        firsts: (n, t) int64, which element each part begins with.
        key: of the random words, below 2**64.
        dim: number of places that a run may begin at.
        found: (n, dim + RUN), what is added to.

    Returns:
        False, and nothing is added, where there is no kernel: only for contiguous float32 and float64 on the CPU.
    """
    loops = _loops()
    if loops is None or not _usable(values) or not _usable(found) or values.dtype != found.dtype:
        return False
    loops.add_runs(values.detach().numpy(), firsts.contiguous().numpy(), np.uint64(key), dim, found.numpy())
    return True


def _usable(values: Tensor) -> bool:
    floating = values.dtype in (torch.float32, torch.float64)
    return values.device.type == "cpu" and floating and values.is_contiguous()
