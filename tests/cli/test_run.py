"""`run` does what extract, fit-meta and evaluate do one after the other."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradscore_cli.main import app

SAME = ("evaluation/metrics.json", "evaluation/scores.parquet", "features/in_dist.test/part-00000.parquet")


def run(folder: Path, out: Path, *options: str):
    return CliRunner().invoke(app, ["run", str(folder / "config.yaml"), "--out", str(out), "--trust-code", *options])


def test_gives_what_the_three_give(small_run: Path, tmp_path: Path) -> None:
    result = run(small_run, tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert {name: (tmp_path / "run" / name).read_bytes() == (small_run / name).read_bytes() for name in SAME} == (
        dict.fromkeys(SAME, True)
    )
    for wanted in ("run folder: ", "meta models: ", "report: "):
        assert wanted in result.stdout


def test_goes_on_after_an_interruption(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gradscore.evaluation.fit_run", interrupt)
        assert run(small_run, tmp_path / "run").exit_code == 130
    result = run(small_run, tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "this run is already complete: nothing to compute" in result.stdout
    assert (tmp_path / "run" / SAME[0]).read_bytes() == (small_run / SAME[0]).read_bytes()


def test_as_json(small_run: Path, tmp_path: Path) -> None:
    shutil.copytree(small_run, tmp_path / "run")
    found = json.loads(run(small_run, tmp_path / "run", "--json").stdout)
    assert found.keys() == {"extract", "fit_meta", "evaluate"}
    assert found["evaluate"]["passed"] is True


def test_settings_and_options(small_run: Path, tmp_path: Path) -> None:
    options = ("--set", "features.statistics=[l1]", "--batch-size", "25", "--tables", "--permuted-labels")
    result = run(small_run, tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    assert "permuted labels: passed" in result.stdout
    assert "misclassification, in_dist_only: in_dist.test" in result.stdout
