"""Compiles loops with the extra `fast` (Numba), and runs them on as many threads as PyTorch uses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

PARALLEL_ELEMENTS = 1 << 16
"""Elements from which a second thread is worth waking.

Row sums on two threads instead of one took 0.020 instead of 0.009 ms for a quarter of this, as long for twice, and two
thirds of the time for sixteen times this; products and histograms do more for each element.
"""

Loop = Callable[..., Any]

MOST_THREADS: int = vars(numba.config)["NUMBA_NUM_THREADS"]
"""Numba's team cannot be larger."""

_TEAM = threading.Lock()
_PROCESS = os.getpid()


def compiled(loop: Loop, *, fastmath: Collection[str] = (), parallel: bool = False) -> Loop:
    """Compiles when first called; kept on disk for later processes where there is a place for it.

    Args:
        loop: a function of arrays and numbers, in the part of Python that Numba knows.
        fastmath: liberties of LLVM with floating-point numbers.
        parallel: run `numba.prange` on threads.

    Returns:
        The compiled function, which does not hold the interpreter's lock while it runs.
    """
    compile_it = partial(numba.njit, nogil=True, fastmath=set(fastmath), parallel=parallel)
    try:
        function: Loop = compile_it(cache=True)(loop)
    except RuntimeError:  # no folder that can be written
        function = compile_it()(loop)
    return function


def shared(loop: Loop, in_parts: Loop) -> Loop:
    """Runs a loop on several threads where that is worth it and safe.

    Args:
        loop: compiled; its first argument is the array that it runs over.
        in_parts: compiled with `parallel`; does the same, and takes the number of parts before the arguments.

    Returns:
        A function that takes the arguments of `loop`.
    """
    own_code_first = once_for_each_dtype(lambda values, *arguments: loop(values[:0], *arguments))

    def run(values: NDArray[Any], *arguments: Any) -> None:
        with threads(values.size) as count:
            if count > 1:
                own_code_first(values, *arguments)
                in_parts(count, values, *arguments)
            else:
                loop(values, *arguments)

    return run


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
    """How many threads to use for a loop, at most as many as PyTorch does.

    One where another thread of this process has Numba's team already, which not every threading layer of Numba bears,
    and in a process forked from one that may have used it, where the team no longer exists.
    """
    ordinary = torch.get_num_threads()
    wanted = min(ordinary, MOST_THREADS)
    if elements < PARALLEL_ELEMENTS or wanted < 2 or os.getpid() != _PROCESS or not _TEAM.acquire(blocking=False):
        yield 1
        return
    before = numba.get_num_threads()
    if torch.get_num_threads() != ordinary:
        # Where the two share OpenMP, making Numba's team changes the number of threads that PyTorch uses.
        torch.set_num_threads(ordinary)
    try:
        numba.set_num_threads(wanted)
        yield wanted
    finally:
        numba.set_num_threads(before)
        _TEAM.release()
