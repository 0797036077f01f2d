"""Shares compiled loops among threads, as many as PyTorch uses: PyTorch's own threads, where they can be asked.

Compiled loops do not hold the interpreter's lock, so that threads of Python can run them, and a loop is compiled once,
where Numba's own threads want it compiled again for them, which takes seconds. PyTorch's threads spin for some
milliseconds after each of its operations, and take the processor from any others that start meanwhile: gradients of
convolutions right after a backward pass took 6.6 ms on two threads of Python, as long as on one, and take 3.5 ms on
PyTorch's. They are reached through the function by which compilers start an OpenMP region.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import torch

PARALLEL_ELEMENTS = 1 << 19
"""Elements to add up from which a second thread is worth waking, which takes some 0.05 ms: as long as one thread takes
for this many."""

Part = Callable[[int, int, int], None]
"""Does part number p of some work: its items from one number to another."""

Numbered = Callable[[int], None]
"""Does the part of that number."""

NUMBERS = "omp_get_thread_num", "omp_get_num_threads"

_TEAM = threading.Lock()
_HERE = threading.local()
_PROCESS = os.getpid()
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


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

    def do(number: int) -> None:
        part(number, *bounds[number : number + 2])

    if parts == 1:
        do(0)
    else:
        (_on_pytorchs_threads() or _on_threads_of_python)(parts, do)


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
    elif _TEAM.acquire(blocking=False):
        try:
            yield wanted
        finally:
            _TEAM.release()
    else:
        yield 1


@functools.cache
def _on_pytorchs_threads() -> Callable[[int, Numbered], None] | None:
    """What has parts done by the OpenMP threads that PyTorch computes with; None where PyTorch has none of that kind.

    Source: `GOMP_parallel(function, its argument, number of threads, flags)` of GCC's libgomp, which LLVM's OpenMP has
    under the same name.
    """
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # The names are looked up in the libraries that PyTorch itself was linked with. With PyDLL the lock is kept.
        start = ctypes.CDLL(str(path)).GOMP_parallel
        own_number, size = (getattr(ctypes.PyDLL(str(path)), name) for name in NUMBERS)
    except (OSError, AttributeError):
        return None
    start.argtypes, start.restype = [_REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None

    def run(parts: int, do: Numbered) -> None:
        begun: list[int] = []
        failed: list[BaseException] = []

        def region(_: int | None) -> None:
            try:
                # There may be fewer threads than were asked for, inside a region of PyTorch's for one.
                for number in range(own_number(), parts, size()):
                    begun.append(number)
                    do(number)
            except BaseException as error:  # noqa: BLE001  ctypes would print and forget it
                failed.append(error)

        start(_REGION(region), None, parts, 0)
        if failed:
            raise failed[0]
        if len(begun) < parts:  # Ctrl-C, between the call and the first line of `region`
            raise KeyboardInterrupt

    return run


def _on_threads_of_python(parts: int, do: Numbered) -> None:
    others = [_helpers().submit(do, number) for number in range(1, parts)]
    try:
        do(0)
    finally:
        wait(others)
    for other in others:
        other.result()


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gradscore")
