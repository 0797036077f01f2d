"""The threads of a command, decided before any library that has some is loaded."""

import os
import subprocess
import sys

import pytest
import torch
from commands import cli

from gradscore_cli.options import NUMBERS, SPINNING, WAITING, use_threads

COMPUTING = [
    "audit",
    "bundle",
    "check",
    "compare",
    "doctor",
    "evaluate",
    "extract",
    "fit-meta",
    "inspect",
    "monitor",
    "project",
    "run",
    "score",
]

SHOWS = """
import os, sys
from gradscore_cli import main, options

@main.app.command("show")
def show(_threads: options.ThreadsOption = None) -> None:
    assert "torch" not in sys.modules
    print(os.environ["OMP_WAIT_POLICY"], os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OPENBLAS_NUM_THREADS"))
    if "OMP_NUM_THREADS" in os.environ:
        import torch
        print(torch.get_num_threads())

main.main()
"""


def shown(*arguments: str, **environment: str) -> list[str]:
    """Waiting policy, spins, NumPy's threads and, with a number of them, PyTorch's, as a command finds them."""
    clean = {name: value for name, value in os.environ.items() if name not in (WAITING, SPINNING, *NUMBERS)}
    done = subprocess.run(
        [sys.executable, "-c", SHOWS, "show", *arguments], capture_output=True, text=True, env=clean | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_threads_spin_for_a_moment_and_then_sleep_while_they_wait() -> None:
    assert shown()[:2] == ["passive", "1000"]


@pytest.mark.slow
def test_the_environment_may_say_otherwise() -> None:
    assert shown(OMP_WAIT_POLICY="active")[:2] == ["active", "None"]
    assert shown(GOMP_SPINCOUNT="7")[:2] == ["passive", "7"]


@pytest.mark.slow
def test_all_pools_have_the_number_that_is_asked_for() -> None:
    assert shown("--threads", "1", OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2")[2:] == ["1", "1"]


@pytest.mark.slow
def test_without_the_option_the_environment_decides() -> None:
    assert shown(OMP_NUM_THREADS="1")[3] == "1"


@pytest.mark.parametrize("command", COMPUTING)
def test_every_command_that_computes_has_the_option(command: str) -> None:
    result = cli(command, "--threads", "0")
    assert result.exit_code == 2
    assert "--threads" in result.output


def test_a_program_that_has_loaded_pytorch_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NUMBERS:
        monkeypatch.setenv(name, "1")
    before = torch.get_num_threads()
    try:
        use_threads(before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
