"""Computes parts of a batch at once, each in a thread with a copy of the network, where that is faster.

Most operations of a small network are too short to be shared by threads: a ResNet-20 takes two thirds of the time when
two threads compute half of a batch each instead of half of every operation.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ..kernels import keep_processors
from ..models import ForwardLook, copy_of, is_hooked, look_at_forward, memory_size, memory_state

LEAST_SAMPLES = 16
"""Samples of a part; smaller ones take a thread more time in Python, which runs in one thread at a time, than saved."""

LEAST_REUSE = 4.0
"""How often a sample uses a weight at least. Weights that each sample uses once are read from memory for every part."""

LEAST_PRODUCTS = 4e6
"""Multiplications of a layer for a part at least, some 0.2 ms: as long as Python takes for a layer and its gradient."""

MOST_MEMORY = 1 << 30
"""Bytes that the copies of the network may take together."""

START = 60.0
"""Seconds in which threads must have started."""

Worker = TypeVar("Worker")
Found = TypeVar("Found")


class NoThreadError(Exception):
    """There are no more threads to be had."""


class Sharing(Generic[Worker]):
    """The copies of a model, and which batches they share.

    Args:
        model: the model.
        make: makes what computes with a copy of it.
        allowed: False for a model that is not to be shared.
    """

    def __init__(self, model: nn.Module, make: Callable[[nn.Module], Worker], *, allowed: bool) -> None:
        self._model, self._make, self._allowed = model, make, allowed
        self._look: ForwardLook | None = None
        self._state: list[object] = []
        self._workers: list[Worker] = []

    def look(self, forward: Callable[[Worker], Tensor]) -> None:
        """Has a look at the network, the first time, where batches may be shared.

        Args:
            forward: what a forward pass of a few samples gives, by the worker of a copy.
        """
        if self._look is not None or not self._may_share():
            return
        self._look = self._looked(forward)
        if self._look is None or self._look.random:
            self._allowed = False

    def slices(self, samples: int, forward: Callable[[Worker], Tensor]) -> list[slice]:
        """The parts of a batch, in order; one where sharing it would not help, or cannot be done.

        Args:
            samples: of the batch.
            forward: as for `look`, if there was none yet.
        """
        count = min(torch.get_num_threads(), samples // LEAST_SAMPLES)
        if count < 2:
            return [slice(0, samples)]
        self.look(forward)
        if self._look is None or not self._may_share() or not self._is_worth_it(self._look, samples // count):
            return [slice(0, samples)]
        bounds = [number * samples // count for number in range(count + 1)]
        return [slice(*bounds[number : number + 2]) for number in range(count)]

    def workers(self, count: int) -> list[Worker]:
        """What computes with so many copies of the model as it is now; models may refuse with any exception."""
        state = memory_state(self._model)
        if state != self._state:
            self._workers, self._state = [], state
        self._workers += [self._make(copy_of(self._model)) for _ in range(len(self._workers), count)]
        return self._workers[:count]

    def _may_share(self) -> bool:
        return self._allowed and torch.get_num_threads() > 1 and not is_hooked(self._model) and not _has_modes()

    def _looked(self, forward: Callable[[Worker], Tensor]) -> ForwardLook | None:
        """A look at a copy; None where copies would be too large, or cannot be made or run."""
        if memory_size(self._model) * torch.get_num_threads() > MOST_MEMORY:
            return None
        try:
            copied = copy_of(self._model)
            with torch.no_grad():
                return look_at_forward(copied, lambda: forward(self._make(copied)))
        except Exception:  # noqa: BLE001  # models are anyone's code, and this one computes its batches as a whole
            return None

    @staticmethod
    def _is_worth_it(look: ForwardLook, samples: int) -> bool:
        used_often = look.products >= LEAST_REUSE * look.weights
        return used_often and look.products * samples >= LEAST_PRODUCTS * look.layers


@dataclass(frozen=True)
class _Team:
    """Threads of Python, and whose turn it is to use them."""

    threads: ThreadPoolExecutor
    turn: threading.Lock = field(default_factory=threading.Lock)


def at_once(works: Sequence[Callable[[], Found]]) -> list[Found]:
    """Does several things, in as many threads, which share the threads that PyTorch has here.

    Callers take turns.

    Args:
        works: two or more.

    Returns:
        What they found, in order.
    """
    return _done(works, _team(len(works), torch.get_num_threads(), os.getpid()))


def in_turn(works: Sequence[Callable[[], Found]]) -> list[Found]:
    """Does several things one after the other, each with as many threads of PyTorch's as `at_once` has for it.

    With another number of threads, libraries may round otherwise.

    Args:
        works: two or more.

    Returns:
        What they found, in order.
    """
    team = _team(len(works), torch.get_num_threads(), os.getpid())
    return _done([lambda: [work() for work in works]], team)[0]


def _done(works: Sequence[Callable[[], Found]], team: _Team) -> list[Found]:
    """What the threads of a team found, in order."""
    with team.turn:
        begun = [team.threads.submit(copy_context().run, work) for work in works]
        try:
            return [each.result() for each in begun]
        finally:
            wait(begun)  # nothing goes on after an error or Ctrl-C


@functools.lru_cache(maxsize=1)
def _team(members: int, threads: int, process: int) -> _Team:
    """Threads of Python with so many threads of PyTorch's together.

    A thread's number of PyTorch's threads holds for that thread alone, once it was asked for; the number for those that
    are new is the one that was set last, by whichever thread.
    """
    del process  # threads do not outlive a fork
    ready = threading.Barrier(members, timeout=START)

    def begin() -> None:
        torch.get_num_threads()
        torch.set_num_threads(max(1, threads // members))
        keep_processors()

    team = ThreadPoolExecutor(members, thread_name_prefix="gradscore", initializer=begin)
    try:
        for each in [team.submit(ready.wait) for _ in range(members)]:
            each.result()
    except BaseException as error:
        ready.abort()  # or those that wait for a thread that never starts would keep the process from ending
        team.shutdown(wait=False)
        if isinstance(error, RuntimeError):
            raise NoThreadError(str(error)) from error
        raise
    finally:
        torch.set_num_threads(threads)
    return _Team(team)


def _has_modes() -> bool:
    """Whether the caller has PyTorch do things in another way, which holds for its own thread alone."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())
