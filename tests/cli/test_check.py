"""`gradscore check`: exit codes, files, and what a job on GitHub sees."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradscore_cli.main import app


def check(run: Path, baseline: Path, *arguments: object, env: dict[str, str] | None = None) -> Result:
    given = ["check", str(run), "--baseline", str(baseline), *map(str, arguments)]
    return CliRunner().invoke(app, given, env={"GITHUB_ACTIONS": "", "GITHUB_STEP_SUMMARY": "", **(env or {})})


@pytest.fixture
def baseline(small_run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    margins = ["accuracy=0.1", "auroc=0.2", "false_alarm=0.1", "detection=0.4"]
    result = check(small_run, path, "--update", *[word for margin in margins for word in ("--margin", margin)])
    assert result.exit_code == 0
    assert f"new baseline: {path}" in result.stdout.replace("\n", "")
    return path


def spoiled(baseline: Path) -> Path:
    """A baseline with an accuracy that no run reaches."""
    content = json.loads(baseline.read_text())
    samples = content["splits"]["in_dist.test"]
    samples["correct"] = "1" * (len(samples["correct"]) - 2) + "00"
    baseline.write_text(json.dumps(content))
    return baseline


def test_passes(small_run, baseline) -> None:
    result = check(small_run, baseline)
    assert result.exit_code == 0
    assert "run: passed (8 passed, 1 for information)" in result.stdout


def test_fails_and_says_why(small_run, baseline) -> None:
    result = check(small_run, spoiled(baseline))
    assert result.exit_code == 1
    assert "accuracy of the classifier: " in result.stdout
    assert "a drop of more than 0.1" in result.stdout


def test_inconclusive(small_run, baseline) -> None:
    content = json.loads(baseline.read_text())
    content["model"]["weights_sha256"] = "of another model"
    baseline.write_text(json.dumps(content))
    result = check(small_run, baseline, "--margin", "false_alarm=0", "--margin", "detection=0")
    assert result.exit_code == 3
    assert (
        "samples cannot tell whether it is a rise of more than 0; in four of five cases they would have shown a rise of"
        in result.stdout
    )


def test_update_shows_the_difference_then_writes(small_run, baseline) -> None:
    before = spoiled(baseline).read_text()
    result = check(small_run, baseline, "--update", "--margin", "auroc=0.15")
    assert result.exit_code == 0
    assert "a drop of more than 0.1" in result.stdout
    assert baseline.read_text() != before
    assert json.loads(baseline.read_text())["policy"]["auroc"] == 0.15
    assert check(small_run, baseline).exit_code == 0


def test_files_for_machines(small_run, baseline, tmp_path: Path) -> None:
    files = {"--junit": tmp_path / "a.xml", "--markdown": tmp_path / "a.md", "--json": tmp_path / "a.json"}
    check(small_run, baseline, *[word for pair in files.items() for word in pair])
    assert files["--junit"].read_text().startswith("<?xml")
    assert files["--markdown"].read_text().startswith("## ✅")
    assert json.loads(files["--json"].read_text())["exit_code"] == 0


def test_on_github(small_run, baseline, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    result = check(small_run, spoiled(baseline), env=env)
    assert "::error title=gradscore check::accuracy" in result.stdout
    assert summary.read_text().startswith("before\n## ❌")


UNUSABLE = {
    "no baseline": (lambda run, baseline: baseline.unlink(), (), "there is no baseline"),
    "no run": (lambda run, baseline: shutil.rmtree(run), (), "not a run folder"),
    "no evaluation": (lambda run, baseline: shutil.rmtree(run / "evaluation"), (), "gradscore evaluate"),
    "an unknown margin": (lambda run, baseline: None, ("--margin", "speed=1"), "--margin speed=1: wanted NAME=VALUE"),
    "a margin that is no number": (lambda run, baseline: None, ("--margin", "auroc=x"), "--margin auroc=x"),
    "a margin out of range": (lambda run, baseline: None, ("--margin", "auroc=2"), "less than 1"),
}


@pytest.mark.parametrize(("change", "arguments", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_input(small_run, baseline, tmp_path: Path, change, arguments: tuple[str, ...], message: str) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    change(run, baseline)
    result = check(run, baseline, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


CLASHES = {
    "JSON onto the baseline": (["--json", "baseline.json"], "--json .*file of --baseline"),
    "JUnit onto the baseline": (["--junit", "sub/../baseline.json"], "--junit .*file of --baseline"),
    "Markdown onto the baseline": (["--markdown", "link.json"], "--markdown .*file of --baseline"),
    "JSON onto JUnit": (["--json", "x", "--junit", "x"], "--json .*file of --junit"),
}


@pytest.mark.parametrize(("arguments", "message"), CLASHES.values(), ids=CLASHES)
def test_no_output_replaces_another_file_of_the_command(small_run, baseline, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(baseline.parent)
    Path("sub").mkdir()
    Path("link.json").symlink_to(baseline)
    before = baseline.read_text()
    result = check(small_run, baseline, *arguments)
    assert result.exit_code == 2
    assert re.search(message, result.stderr.replace("\n", " "))
    assert baseline.read_text() == before
    assert not Path("x").exists()


TARGETS = {"a folder": ("folder", "got a folder"), "below a file": ("net.py/x", "net.py is a file, wanted a folder")}


@pytest.mark.parametrize("option", ["--junit", "--markdown", "--json"])
@pytest.mark.parametrize(("name", "message"), TARGETS.values(), ids=TARGETS)
def test_what_cannot_be_written_is_said_before_any_verdict(
    small_run, baseline, tmp_path: Path, option: str, name: str, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "net.py").touch()
    result = check(small_run, baseline, option, tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
