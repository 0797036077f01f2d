"""Parts of a loop on threads: each done once, on as many as PyTorch uses, and none where that is not safe."""

import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch

from gradscore.kernels import threads as team

ON_PYTORCHS = team._on_pytorchs_threads()
RUNNERS = {"threads of Python": team._on_threads_of_python} | ({"PyTorch's": ON_PYTORCHS} if ON_PYTORCHS else {})


@pytest.fixture(params=RUNNERS.values(), ids=RUNNERS)
def runner(request):
    return request.param


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's OpenMP has another interface elsewhere")
def test_pytorchs_threads_are_found_where_it_carries_libgomp():
    assert ON_PYTORCHS is not None


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_every_part_is_done_once(runner, parts):
    """More parts than threads among them."""
    done = []
    runner(parts, done.append)
    assert Counter(done) == Counter(range(parts))


def test_parts_are_done_at_once(runner):
    both = threading.Barrier(2, timeout=30)
    runner(2, lambda _: both.wait())
    assert not both.broken


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_a_part_raises_is_raised(runner, number, error):
    def part(mine):
        if mine == number:
            raise error(f"part {mine}")

    with pytest.raises(error, match=f"part {number}"):
        runner(2, part)


def test_a_part_has_its_share(monkeypatch, runner):
    monkeypatch.setattr(team, "_on_pytorchs_threads", lambda: runner)
    shares = []
    team.run_parts(3, 10, lambda *share: shares.append(share))
    assert sorted(shares) == [(0, 0, 3), (1, 3, 6), (2, 6, 10)]


@pytest.mark.skipif(ON_PYTORCHS is None, reason="there are none to be asked")
def test_a_part_that_an_interrupt_kept_from_beginning_is_not_passed_over(monkeypatch):
    """ctypes prints and forgets what is raised before a callback's first line."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(team, "_REGION", lambda region, real=team._REGION: real(interrupted))
    done = []
    with pytest.raises(KeyboardInterrupt):
        ON_PYTORCHS(2, done.append)
    assert (done, len(seen)) == ([], 2)


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
