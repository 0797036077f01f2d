"""Computes parts of a batch at once, each in a thread, where that is faster and the network allows it.

Most operations of a small network are too short to be shared by threads: a ResNet-20 takes two thirds of the time when
two threads compute half of a batch each instead of half of every operation.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from ..kernels import keep_processors
from ..models import ForwardLook

LEAST_SAMPLES = 16
"""Samples of a part; smaller ones take a thread more time in Python, which runs in one thread at a time, than saved."""

LEAST_REUSE = 4.0
"""How often a sample uses a weight at least. Weights that each sample uses once are read from memory for every part."""

LEAST_PRODUCTS = 4e6
"""Multiplications of a layer for a part at least, some 0.2 ms: as long as Python takes for a layer and its gradient."""

Found = TypeVar("Found")

_BUSY = threading.Lock()


class Sharing:
    """Whether and how the batches of a model are computed in parts.

    Args:
        look: at a forward pass of it; None for a model that is not to be shared.
    """

    def __init__(self, look: ForwardLook | None) -> None:
        self._look = look

    def slices(self, samples: int) -> list[slice]:
        """The parts of a batch, in order; one where sharing it would not help, or the network does not allow it."""
        count = min(torch.get_num_threads(), samples // LEAST_SAMPLES)
        if count < 2 or not self._is_worth_it(samples // count):
            return [slice(0, samples)]
        bounds = [number * samples // count for number in range(count + 1)]
        return [slice(*bounds[number : number + 2]) for number in range(count)]

    def _is_worth_it(self, samples: int) -> bool:
        look = self._look
        if look is None or look.obstacle is not None:
            return False
        used_often = look.products >= LEAST_REUSE * look.weights
        return used_often and look.products * samples >= LEAST_PRODUCTS * look.layers


def at_once(work: Callable[[slice], Found], parts: Sequence[slice]) -> list[Found]:
    """Does some work on each part, in as many threads, which share the threads that PyTorch has here.

    One after the other where the threads are at work for another caller.

    Args:
        work: what does a part.
        parts: in order, two or more.

    Returns:
        What it found, in order.
    """
    if not _BUSY.acquire(blocking=False):
        return [work(part) for part in parts]
    try:
        begun = [_team(len(parts), torch.get_num_threads(), os.getpid()).submit(work, part) for part in parts]
        try:
            return [each.result() for each in begun]
        finally:
            wait(begun)  # nothing goes on after an error or Ctrl-C
    finally:
        _BUSY.release()


@functools.lru_cache(maxsize=1)
def _team(members: int, threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of Python with so many threads of PyTorch's together.

    A thread's number of PyTorch's threads holds for that thread alone, once it was asked for; the number for those that
    are new is the one that was set last, by whichever thread.
    """
    del process  # threads do not outlive a fork
    ready = threading.Barrier(members)

    def begin() -> None:
        torch.get_num_threads()
        torch.set_num_threads(max(1, threads // members))
        keep_processors()
        ready.wait()

    team = ThreadPoolExecutor(members, thread_name_prefix="gradscore", initializer=begin)
    wait([team.submit(ready.wait) for _ in range(members)])
    torch.set_num_threads(threads)
    return team
