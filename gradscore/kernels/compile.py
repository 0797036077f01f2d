"""Compiles loops with the extra `fast` (Numba), and runs them on as many threads as PyTorch uses.

Compiled loops do not hold the interpreter's lock, so that ordinary threads do: they sleep while they wait, and a loop
is compiled once, where Numba's own threads want it compiled again for them, which takes seconds.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

PARALLEL_ELEMENTS = 1 << 19
"""Elements to add up from which a second thread is worth waking, which takes some 0.05 ms: as long as one thread takes
for this many."""

Loop = Callable[..., Any]

Part = Callable[[int, int, int], None]
"""Does part number p of some work: its items from one number to another."""

_TEAM = threading.Lock()
_PROCESS = os.getpid()


def compiled(loop: Loop, *, fastmath: Collection[str] = ()) -> Loop:
    """Compiles when first called; kept on disk for later processes where there is a place for it.

    Args:
        loop: a function of arrays and numbers, in the part of Python that Numba knows.
        fastmath: liberties of LLVM with floating-point numbers.

    Returns:
        The compiled function, which does not hold the interpreter's lock while it runs.
    """
    compile_it = partial(numba.njit, nogil=True, fastmath=set(fastmath))
    try:
        function: Loop = compile_it(cache=True)(loop)
    except RuntimeError:  # no folder that can be written
        function = compile_it()(loop)
    return function


def share(elements: int, items: int, part: Part) -> None:
    """Does some work on several threads where that is worth it and safe.

    Args:
        elements: how much it is; see `threads`.
        items: what it is made of.
        part: does a part of them.
    """
    with threads(elements) as parts:
        run_parts(parts, items, part)


def run_parts(parts: int, items: int, part: Part) -> None:
    """Does some work in a number of parts at once; inside `threads`, which says how many."""
    bounds = [number * items // parts for number in range(parts + 1)]
    others = [_helpers().submit(part, number, *bounds[number : number + 2]) for number in range(1, parts)]
    try:
        part(0, *bounds[:2])
    finally:
        wait(others)
    for other in others:
        other.result()


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gradscore")


def once_for_each_dtype(run: Loop) -> Loop:
    """Runs something once for each dtype of its first argument.

    A loop that is called by others is in their machine code too, optimised anew, where sums in any order come out
    otherwise in the last bits. The code that a process loads first serves them all. What is compiled here loads the
    loop before its callers, but a caller that comes from the cache on disk does not: to get the same bits in every
    process, run the loop on nothing before one of its callers.
    """
    seen: set[np.dtype[Any]] = set()

    def first(values: NDArray[Any], *arguments: Any) -> None:
        if values.dtype not in seen:
            run(values, *arguments)
            seen.add(values.dtype)

    return first


@contextmanager
def threads(elements: int) -> Iterator[int]:
    """How many threads to use for some work, as many as PyTorch does.

    One where another thread of this process has the others already, and in a process forked from one that may have had
    them, where they no longer exist.

    Args:
        elements: how many elements to add up would take as long.
    """
    wanted = torch.get_num_threads()
    if elements < PARALLEL_ELEMENTS or wanted < 2 or os.getpid() != _PROCESS or not _TEAM.acquire(blocking=False):
        yield 1
        return
    try:
        yield wanted
    finally:
        _TEAM.release()
