"""Shares compiled loops among threads, as many as PyTorch uses: PyTorch's own threads, where they can be asked.

PyTorch's threads spin for some milliseconds after each of its operations, and take the processor from any others that
start meanwhile: gradients of convolutions right after a backward pass took 6.6 ms on two threads of Python, as long as
on one, and take 3.5 ms on PyTorch's. They are reached through the function by which compilers start an OpenMP region.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch

from .exports import addresses_of

PARALLEL_ELEMENTS = 1 << 17
"""Elements to add up from which a second thread is worth it. With four times as many a perceptron, a ResNet-20 and a
ResNet-56 took 2 % longer; with a quarter the same, and threads that sleep take longer to wake than these elements do.
"""

Team = tuple[int, int, int]
"""Where functions of OpenMP lie in memory: `GOMP_parallel`, `omp_get_thread_num`, `omp_get_num_threads`."""

NOBODY: Team = 0, 0, 0

Bounds = tuple[int, int, int, int]
"""The number of parts, the first one to do, the first one that is left out, and the number of items."""

Run = Callable[..., bool]
"""Compiled code that does parts of some work, team and bounds first, by `regions.fork`; whether memory ran out."""

OPENMP = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"

_TURN = threading.Lock()
_HERE = threading.local()
_PROCESS = os.getpid()


def share(elements: int, items: int, run: Run, *arguments: object) -> None:
    """Does some work on several threads where that is worth it and safe.

    Args:
        elements: how much it is; see `threads`.
        items: what it is made of.
        run: does parts of them.
        arguments: what it wants besides.

    Raises:
        MemoryError: there was not enough for a part.
    """
    with threads(elements) as parts:
        run_parts(parts, items, run, *arguments)


def run_parts(parts: int, items: int, run: Run, *arguments: object) -> None:
    """As `share`, with as many threads as there are parts; inside `threads`, which says how many."""
    team = _team()
    if parts == 1 or team:
        failed = run(team or NOBODY, (parts, 0, parts, items), *arguments)
    else:
        failed = _on_threads_of_python(parts, lambda part: run(NOBODY, (parts, part, part + 1, items), *arguments))
    if failed:
        raise MemoryError("a compiled loop over gradients did not get the memory that it needs; use smaller batches")


def keep_processors() -> None:
    """Says that no other thread uses the processors that this one's threads are meant for."""
    _HERE.keeps_processors = True


@contextmanager
def threads(elements: int) -> Iterator[int]:
    """How many threads to use for some work, as many as PyTorch does.

    One where another thread of this process has the others already and this one keeps none for itself, and in a
    process forked from one that may have had them, where they no longer exist.

    Args:
        elements: how many elements to add up would take as long.
    """
    wanted = torch.get_num_threads()
    if elements < PARALLEL_ELEMENTS or wanted < 2 or os.getpid() != _PROCESS:
        yield 1
    elif getattr(_HERE, "keeps_processors", False):
        yield wanted
    elif _TURN.acquire(blocking=False):
        try:
            yield wanted
        finally:
            _TURN.release()
    else:
        yield 1


@functools.cache
def _team() -> Team | None:
    """What starts the OpenMP threads that PyTorch computes with; None where PyTorch has none of that kind.

    Source: `GOMP_parallel(function, its argument, number of threads, flags)` of GCC's libgomp, which LLVM's OpenMP has
    under the same name.
    """
    found = addresses_of(*OPENMP)
    if found is None:
        return None
    start, number, size = found
    return start, number, size


def _on_threads_of_python(parts: int, do: Callable[[int], bool]) -> bool:
    others = [_helpers().submit(do, number) for number in range(1, parts)]
    try:
        failed = do(0)
    finally:
        wait(others)
    return any([failed, *(other.result() for other in others)])


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gradscore")
