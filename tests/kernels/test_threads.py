"""Parts of a loop on threads: each done once, on as many as PyTorch uses, and none where that is not safe."""

import sys
import threading

import numpy as np
import pytest
import torch

from gradscore.kernels import dispatch as team

pytest.importorskip("numba", reason="the extra `fast` is missing")
from gradscore.kernels import native  # needs Numba as well
from gradscore.kernels.native import as_pointer, carray, first_item, own_scratch, region

TEAM = native.start_team()

thread_of_system = native._call("pthread_self", native.WORD)


@region()
def note(memory):
    """Writes down which part each item was done in, by its bounds, on which thread, and how often."""
    words = carray(memory, (8,))
    firsts, lasts, counts, threads = (
        carray(as_pointer(words[4]), (words[0],), np.int64),
        carray(as_pointer(words[5]), (words[0],), np.int64),
        carray(as_pointer(words[6]), (words[0],), np.int64),
        carray(as_pointer(words[7]), (words[0],), np.int64),
    )
    start, stop = first_item(memory, 0), first_item(memory, 1)
    for item in range(start, stop):
        firsts[item], lasts[item] = start, stop
        counts[item] += 1
        threads[item] = thread_of_system()


@region()
def keep(memory):
    """Keeps the place of each item in memory of its thread, and says what is there when all are done."""
    words = carray(memory, (5,))
    found = carray(as_pointer(words[4]), (words[0],), np.int64)
    start, stop = first_item(memory, 0), first_item(memory, 1)
    kept = carray(as_pointer(own_scratch(memory)), (words[0],), np.int64)
    for item in range(start, stop):
        kept[item] = item
    for item in range(start, stop):
        found[item] = kept[item]


def addresses(arrays):
    return [each.ctypes.data for each in arrays]


needs_team = pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's OpenMP has another interface elsewhere")


@needs_team
def test_pytorchs_threads_are_found_where_it_carries_libgomp():
    assert TEAM is not None


@needs_team
@pytest.mark.parametrize(("parts", "items"), [(1, 5), (2, 10), (3, 10), (7, 10), (16, 16), (3, 2), (2, 0)])
def test_every_item_is_done_once_in_its_part(parts, items):
    """More parts than threads, and than items, among them."""
    firsts, lasts, counts, who = arrays = [np.zeros(items, np.int64) for _ in range(4)]
    team.run_on(parts, items, note, *addresses(arrays))
    bounds = [(part * items // parts, (part + 1) * items // parts) for part in range(parts)]
    assert counts.tolist() == [1] * items
    assert set(zip(firsts.tolist(), lasts.tolist(), strict=True)) == {each for each in bounds if each[0] < each[1]}
    assert parts > 1 or set(who.tolist()) == {threading.get_ident()}


@needs_team
def test_parts_are_done_by_several_threads():
    arrays = [np.zeros(2, np.int64) for _ in range(4)]
    team.run_on(2, 2, note, *addresses(arrays))
    assert len(set(arrays[3].tolist()) | {threading.get_ident()}) == 2


def test_one_thread_does_all_where_pytorch_has_no_team(monkeypatch):
    monkeypatch.setattr(native, "start_team", lambda: None)
    arrays = [np.zeros(5, np.int64) for _ in range(4)]
    team.run_on(3, 5, note, *addresses(arrays))
    assert [each.tolist() for each in arrays] == [[0] * 5, [5] * 5, [1] * 5, [threading.get_ident()] * 5]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_each_thread_has_memory_of_its_own(parts):
    found = np.zeros(3001, np.int64)
    team.run_on(parts, len(found), keep, found.ctypes.data, scratch=8 * len(found))
    np.testing.assert_array_equal(found, np.arange(len(found)))


@pytest.mark.parametrize("parts", [1, 3])
def test_too_little_memory_is_an_error(parts):
    with pytest.raises(MemoryError):
        team.run_on(parts, 3, keep, 0, scratch=1 << 58)


def threads_used(elements):
    with team.threads(elements) as count:
        return count


@pytest.mark.parametrize("number", [1, 2, 5])
def test_as_many_threads_as_pytorch_uses(number, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: number)
    assert threads_used(1 << 20) == number


def test_little_work_is_done_by_one_thread():
    assert threads_used(1000) == 1


def test_one_thread_at_a_time_has_the_team():
    with team.threads(1 << 20):
        assert threads_used(1 << 20) == 1


def test_a_forked_process_has_no_team(monkeypatch):
    monkeypatch.setattr(team.os, "getpid", lambda: -1)
    assert threads_used(1 << 20) == 1
