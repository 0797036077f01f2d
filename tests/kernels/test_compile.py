"""Loops that are kept on disk, and what makes them outdated."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gradscore

pytest.importorskip("numba", reason="the extra `fast` is missing")

LOADED = """
import torch
from gradscore import kernels
from gradscore.kernels import matrix_loops

kernels.moments_of_all([torch.ones(2, 3)], about_mean=True)
found = matrix_loops.share_all.stats
print(sum(found.cache_hits.values()), sum(found.cache_misses.values()))
"""


def test_a_change_of_what_a_loop_calls_compiles_it_anew(tmp_path: Path) -> None:
    """Rows are in a file, and what goes over the rows of many matrices in another."""
    shutil.copytree(Path(gradscore.__file__).parent, tmp_path / "gradscore", ignore=shutil.ignore_patterns("*.nb?"))

    def hits_and_misses() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-P", "-c", LOADED]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert [hits_and_misses(), hits_and_misses()] == ["0 1\n", "1 0\n"]
    with (tmp_path / "gradscore" / "kernels" / "row_loops.py").open("a") as file:
        file.write("\n")
    assert [hits_and_misses(), hits_and_misses()] == ["0 1\n", "1 0\n"]
