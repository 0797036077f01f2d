"""Parts of a loop on threads: each done once, on as many as PyTorch uses, and none where that is not safe."""

import ctypes
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from gradscore.kernels import threads as team

numba = pytest.importorskip("numba", reason="the extra `fast` is missing")
from gradscore.kernels.regions import fork  # noqa: E402  # needs Numba as well

TEAM = team._team()
TEAMS = {"threads of Python": None} | ({"PyTorch's": TEAM} if TEAM else {})

who = ctypes.CDLL(None).pthread_self
who.argtypes, who.restype = [], ctypes.c_ulong


def _note(firsts, lasts, counts, start, stop):
    """Writes down which part each item was done in, by its bounds, and how often."""
    for item in range(start, stop):
        firsts[item], lasts[item] = start, stop
        counts[item] += 1


def _name(names, start, stop):
    for item in range(start, stop):
        names[item] = who()


def _demand(sizes, start, stop):
    for item in range(start, stop):
        sizes[item] = np.empty(sizes[item]).size


note, name, demand = (numba.njit(nogil=True)(loop) for loop in (_note, _name, _demand))
share_notes = numba.njit(nogil=True)(lambda team, bounds, *arguments: fork(note, team, bounds, arguments))
share_names = numba.njit(nogil=True)(lambda team, bounds, *arguments: fork(name, team, bounds, arguments))
share_demands = numba.njit(nogil=True)(lambda team, bounds, *arguments: fork(demand, team, bounds, arguments))


@pytest.fixture(params=TEAMS.values(), ids=TEAMS)
def runner(request, monkeypatch):
    monkeypatch.setattr(team, "_team", lambda: request.param)


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's OpenMP has another interface elsewhere")
def test_pytorchs_threads_are_found_where_it_carries_libgomp():
    assert TEAM is not None


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize(("parts", "items"), [(1, 5), (2, 10), (3, 10), (7, 10), (16, 16), (3, 2), (2, 0)])
def test_every_item_is_done_once_in_its_part(parts, items):
    """More parts than threads, and than items, among them."""
    firsts, lasts, counts = (np.zeros(items, np.int64) for _ in range(3))
    team.run_parts(parts, items, share_notes, firsts, lasts, counts)
    bounds = [(part * items // parts, (part + 1) * items // parts) for part in range(parts)]
    assert counts.tolist() == [1] * items
    assert set(zip(firsts.tolist(), lasts.tolist(), strict=True)) == {each for each in bounds if each[0] < each[1]}


@pytest.mark.usefixtures("runner")
def test_parts_are_done_by_several_threads():
    threads = set()
    for _ in range(200):  # a thread of Python may have done its part before the next one starts
        names = np.zeros(2, np.uint64)
        team.run_parts(2, 2, share_names, names)
        threads |= set(names.tolist())
    assert len(threads) >= 2
    assert threading.get_ident() in threads


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("item", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_part_without_memory_is_an_error(parts, item):
    sizes = np.array([1, 1, 1])
    sizes[item] = 1 << 58
    with pytest.raises(MemoryError, match="smaller batches"):
        team.run_parts(parts, 3, share_demands, sizes)


@pytest.mark.usefixtures("runner")
def test_loops_do_not_hold_the_lock():
    """Nor wait for it: a thread of Python goes on meanwhile."""
    counts = [np.zeros(1 << 22, np.int64) for _ in range(3)]
    seen = []
    beside = threading.Thread(target=lambda: seen.extend(range(1000)))
    beside.start()
    for _ in range(20):
        team.run_parts(2, len(counts[0]), share_notes, *counts)
    beside.join()
    assert (len(seen), int(counts[2].min())) == (1000, 20)


def threads_used(elements):
    with team.threads(elements) as count:
        return count


@pytest.mark.parametrize("number", [1, 2, 5])
def test_as_many_threads_as_pytorch_uses(number, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: number)
    assert threads_used(1 << 20) == number


KEEPS_THREADS = """
import torch
from gradscore import kernels
from gradscore.kernels import threads

threads.PARALLEL_ELEMENTS = 0
for number in (1, 2):
    torch.set_num_threads(number)
    kernels.row_sums(torch.ones(8, 20000))
    print(torch.get_num_threads())
"""


def test_the_number_of_pytorchs_threads_stays():
    done = subprocess.run([sys.executable, "-c", KEEPS_THREADS], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n2\n", "")


def test_little_work_is_done_by_one_thread():
    assert threads_used(1000) == 1


def test_one_thread_at_a_time_has_the_team():
    with team.threads(1 << 20):
        assert threads_used(1 << 20) == 1


def test_a_forked_process_has_no_team(monkeypatch):
    monkeypatch.setattr(team.os, "getpid", lambda: -1)
    assert threads_used(1 << 20) == 1
