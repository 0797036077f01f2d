"""The threads of a command: how many there are, and what they do while they wait.

PyTorch, MKL and NumPy's linear algebra each keep a pool of threads. This is the only place that decides on them, before
any of these libraries is loaded, by environment variables that they read; compiled loops use as many as PyTorch does.
Processes that load data (`--workers`) compute with one thread each.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

WAITING = "OMP_WAIT_POLICY"
SPINNING = "GOMP_SPINCOUNT"

SPINS = "1000"
"""How often a thread of PyTorch's looks for work before it sleeps, some tens of microseconds in all: the next operation
mostly comes within them."""

NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What the libraries read to know how many threads to have."""


def wait_asleep() -> None:
    """Has threads spin for a moment and then sleep while they wait, unless the environment says otherwise.

    Threads that spin keep a processor from another program, or from the other pools of this one: of two extractions at
    once on two cores each took six times as long as alone. Threads that sleep at once take longer to wake than many
    operations last. docs/benchmarks.md has what was measured.
    """
    if WAITING not in os.environ:
        os.environ[WAITING] = "passive"
        os.environ.setdefault(SPINNING, SPINS)


def use_threads(number: int | None) -> int | None:
    """Sets the number of threads of all pools; None leaves the environment's, or one for each processor."""
    if number is not None:
        os.environ.update(dict.fromkeys(NUMBERS, str(number)))
        if "torch" in sys.modules:  # in a program that has loaded it, it no longer reads the environment
            sys.modules["torch"].set_num_threads(number)
    return number


ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        callback=use_threads,
        is_eager=True,
        help="Compute with so many threads, instead of one for each processor.",
        show_default=False,
    ),
]
