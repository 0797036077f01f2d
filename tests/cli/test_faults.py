"""Disks, permissions and clocks that do not play along: the right result, or a message and nothing half-written."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import cli

from gradscore.store import CHECKSUMS, RunFolder, verify_run

pytestmark = pytest.mark.slow

CAMPAIGN = Path(__file__).parent.parent.parent / "benchmarks" / "faults.py"
COMMANDS = {
    "extract": lambda run: ["extract", str(run / "config.yaml"), "--out", str(run), "--trust-code"],
    "fit-meta": lambda run: ["fit-meta", str(run)],
    "evaluate": lambda run: ["evaluate", str(run)],
}
ERRORS = {"full disk": errno.ENOSPC, "no permission": errno.EACCES, "broken disk": errno.EIO}


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small_run, tmp_path / "ein schöner 実行")


def invoke(name: str, run: Path):
    return cli(*COMMANDS[name](run))


def contents(run: Path) -> dict[str, bytes]:
    files = (path for path in run.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def refuse(number: int) -> Callable[..., None]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_write_that_fails_is_an_error_and_the_same_command_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, number: int
) -> None:
    before = contents(run)
    with monkeypatch.context() as patched:
        patched.setattr(place, refuse(number))
        result = invoke(name, run)
    assert (result.exit_code, os.strerror(number) in result.stderr) == (2, True), result.stderr
    left = contents(run)
    assert {name: content for name, content in before.items() if left.get(name, content) != content} == {}
    assert [name for name in left if name.endswith(".tmp")] == []
    assert invoke(name, run).exit_code == 0
    assert verify_run(run).damaged == []


@pytest.mark.parametrize("name", ["fit-meta", "evaluate"])
def test_a_read_that_fails_midway(run: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = contents(run)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read", refuse(errno.EIO))
    result = invoke(name, run)
    assert result.exit_code == 2
    assert "part-00000.parquet: this shard is damaged" in result.stderr
    assert contents(run) == before


def test_files_from_the_future(run: Path) -> None:
    for path in run.rglob("*"):
        os.utime(path, (4e9, 4e9))
    before = (run / "evaluation/metrics.json").read_bytes()
    assert [invoke(name, run).exit_code for name in COMMANDS] == [0, 0, 0]
    assert (run / "evaluation/metrics.json").read_bytes() == before
    assert cli("verify", run).exit_code == 0


SURROUNDINGS = {
    "no home, locale C": {"HOME": "/dev/null/home", "LC_ALL": "C"},
    "a home that cannot be written": {"HOME": "/proc", "LC_ALL": "tr_TR.UTF-8"},
}


@pytest.mark.parametrize("changes", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_surroundings_do_not_matter(run: Path, small_run: Path, changes: dict[str, str]) -> None:
    shutil.rmtree(run / "meta")
    for name in ("fit-meta", "evaluate"):
        command = [sys.executable, "-m", "gradscore", *COMMANDS[name](run)]
        ended = subprocess.run(command, env=os.environ | changes, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr
    assert RunFolder(run).read("in_dist.test").equals(RunFolder(small_run).read("in_dist.test"))
    assert (run / "evaluation/scores.parquet").read_bytes() == (small_run / "evaluation/scores.parquet").read_bytes()


def test_nothing_is_lost(tmp_path: Path) -> None:
    """The campaign of docs/evidence.md, with each fault at work once."""
    command = [sys.executable, str(CAMPAIGN), "--times", "1", "--commands", "extract", "fit-meta"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^- `kill -9`: `extract` 1/\d+, `fit-meta` 1/\d+$", ended.stdout, re.MULTILINE), ended.stdout
