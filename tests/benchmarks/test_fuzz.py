"""Damaged files of every kind end in success or a GradscoreError; benchmarks/fuzz.py does the same by the thousand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fuzz_targets import TARGETS
from fuzzing import fuzz

pytestmark = pytest.mark.slow

CASES = 60


@pytest.mark.usefixtures("small_bundle")
@pytest.mark.parametrize("kind", TARGETS)
def test_damaged_files(tmp_path: Path, small_run: Path, kind: str) -> None:
    found = fuzz(TARGETS[kind], tmp_path, small_run, cases=CASES, seed=7)
    assert len(found) == CASES
    assert [case for case in found if case.outcome not in ("accepted", "refused")] == []
    assert "refused" in {case.outcome for case in found}


@pytest.mark.usefixtures("small_bundle")
@pytest.mark.parametrize("kind", TARGETS)
def test_whole_files_are_accepted(tmp_path: Path, small_run: Path, kind: str) -> None:
    TARGETS[kind].make(tmp_path, small_run)
    for path in tmp_path.rglob("*.*"):
        TARGETS[kind].read(path)
