"""No option of a command writes over the files of a run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import cli

from gradscore.store import verify_run

CHECK = ("check", "{run}", "--expected")
COMMANDS: dict[str, tuple[str, ...]] = {
    "check --junit": (*CHECK, "missing.json", "--junit"),
    "check --update": ("check", "{run}", "--update", "--expected"),
    "bundle --out": ("bundle", "{run}", "--out"),
    "score --out": ("score", "missing.gradscore", "missing.png", "--out"),
    "inspect --out": ("inspect", "{run}", "--out"),
    "audit --out": ("audit", "{run}", "--trust-code", "--out"),
}
FILES = {
    "manifest": "manifest.json",
    "configuration": "config.yaml",
    "checksums": "SHA256SUMS",
    "results": "evaluation/metrics.json",
    "a folder of it": "features",
    "a new file among its own": "evaluation/more.csv",
}


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small_run, tmp_path / "run")


def invoke(run: Path, command: tuple[str, ...], target: Path):
    return cli(*(part.format(run=run) for part in command), target)


REFUSED = [  # every command, and every kind of file
    ("check --junit", "manifest"),
    ("check --junit", "checksums"),
    ("check --junit", "configuration"),
    ("check --update", "results"),
    ("bundle --out", "a new file among its own"),
    ("score --out", "manifest"),
    ("inspect --out", "a folder of it"),
    ("audit --out", "a folder of it"),
]


@pytest.mark.parametrize(("command", "file"), REFUSED)
def test_files_of_a_run_are_refused(run: Path, command: str, file: str) -> None:
    result = invoke(run, COMMANDS[command], run / FILES[file])
    assert (result.exit_code, "this is part of the run folder" in " ".join(result.stderr.split())) == (2, True)
    assert verify_run(run).damaged == []


NAMES: dict[str, Callable[[Path], Path]] = {
    "through another folder": lambda run: run / "meta" / ".." / "manifest.json",
    "through a link": lambda run: run.parent / "link" / "manifest.json",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_other_names_of_the_same_file_are_refused(run: Path, name: Callable[[Path], Path]) -> None:
    (run.parent / "link").symlink_to(run)
    assert invoke(run, COMMANDS["check --junit"], name(run)).exit_code == 2
    assert verify_run(run).damaged == []


def test_a_file_of_ones_own_in_a_run_folder_is_not_refused(run: Path) -> None:
    expected = run / "expected.json"
    assert invoke(run, COMMANDS["check --update"], expected).exit_code == 0
    assert invoke(run, ("check", "{run}", "--expected", str(expected), "--junit"), run / "check.xml").exit_code == 0
    assert (run / "check.xml").is_file()
