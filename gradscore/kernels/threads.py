"""On how many threads a compiled loop runs, and starting them: PyTorch's own threads, where they can be asked."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from .native import Native

PARALLEL_ELEMENTS = 1 << 17
"""Elements to add up from which a second thread is worth it. With four times as many a perceptron, a ResNet-20 and a
ResNet-56 took 2 % longer; with a quarter the same, and threads that sleep take longer to wake than these elements do.
"""

CACHE_LINE = 64
"""Bytes that threads do not share."""

_TURN = threading.Lock()
_THREAD = threading.local()
_PROCESS = os.getpid()


def share(elements: int, items: int, loop: Native, *words: int, scratch: int = 0) -> None:
    """Does some work on several threads where that is worth it and safe.

    Args:
        elements: how much it is; see `threads`.
        items: what it is made of.
        loop: a `native.region`, which does parts of them.
        words: what it wants: numbers, and addresses of arrays.
        scratch: bytes that each thread needs for intermediate results.

    Raises:
        MemoryError: they are not to be had.
    """
    with threads(elements) as parts:
        run_parts(parts, items, loop, *words, scratch=scratch)


def run_parts(parts: int, items: int, loop: Native, *words: int, scratch: int = 0) -> None:
    """As `share`, with as many threads as there are parts; inside `threads`, which says how many."""
    memory = ctypes.c_int64 * (5 + len(words))
    apart = -(-scratch // CACHE_LINE) * CACHE_LINE
    room = np.empty(parts * apart, np.uint8)
    words = (room.ctypes.data, apart, *words)
    if parts == 1:
        loop(memory(items, 0, 1, *words))
        return
    from .native import start_team

    start = start_team()
    if start is not None:
        start(loop.address, memory(items, -1, 0, *words), parts, 0)
    else:
        others = [_helpers().submit(loop, memory(items, part, parts, *words)) for part in range(1, parts)]
        loop(memory(items, 0, parts, *words))
        for each in others:
            each.result()


def keep_processors() -> None:
    """Says that no other thread uses the processors that this one's threads are meant for."""
    _THREAD.keeps_processors = True


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
    elif getattr(_THREAD, "keeps_processors", False):
        yield wanted
    elif _TURN.acquire(blocking=False):
        try:
            yield wanted
        finally:
            _TURN.release()
    else:
        yield 1


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gradscore")
