from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradscore_cli.main import app

NET = """
import torch
from torch import nn

def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def coupled():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10))
"""
CONFIG = """
model: {source: "python:net.py:linear", checkpoint: null, num_classes: 10}
data:
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 12}}
    test: {source: "sklearn:digits", select: {start: 20, stop: 90}}
extract: {device: cpu}
run: run
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return file


def doctor(config: Path, *options: str):
    return CliRunner().invoke(app, ["doctor", str(config), "--trust-code", *options])


def test_fit_to_be_scored(config_file: Path, tmp_path: Path) -> None:
    result = doctor(config_file)
    assert result.exit_code == 0, result.stderr
    assert "warning: random weights: model.checkpoint is null" in result.stdout
    assert "on 70 inputs" in result.stdout
    assert "note: coverage: 2 by rule" in result.stdout
    assert result.stdout.endswith("fit to be scored\n")
    assert not (tmp_path / "run").exists()


def test_coverage_of_every_parameter(config_file: Path) -> None:
    assert doctor(config_file, "--coverage").stdout.startswith("1.weight: rule\n1.bias: rule\n")


def test_fewer_samples(config_file: Path) -> None:
    assert "on 9 inputs" in doctor(config_file, "--samples", "9").stdout


MEANINGLESS = {
    "accuracy": ("model.declared_accuracy=0.97", "problem: accuracy: 0."),
    "coupled samples": ("model.source=python:net.py:coupled", "problem: coupled samples: "),
}


@pytest.mark.parametrize(("setting", "expected"), MEANINGLESS.values(), ids=MEANINGLESS)
def test_meaningless(config_file: Path, setting: str, expected: str) -> None:
    result = doctor(config_file, "--set", setting)
    assert result.exit_code == 2
    assert expected in result.stdout
    assert "scores of this model would be meaningless" in result.stderr
    assert "fit to be scored" not in result.stdout


UNUSABLE = {
    "loss": ("features.losses=[hinge]", "error: features.losses.0: no loss 'hinge'"),
    "pattern": ("features.parameters=[conv*]", "error: features.parameters.0: 'conv*' matches no parameter"),
    "data": ("data.in_dist.test.source=folder:nowhere", "error: "),
}


@pytest.mark.parametrize(("setting", "expected"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_input(config_file: Path, setting: str, expected: str) -> None:
    result = doctor(config_file, "--set", setting)
    assert result.exit_code == 2
    assert result.stderr.startswith(expected)


def test_unreadable_samples(config_file: Path, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (8, 8), number * 60).save(tmp_path / "images" / name / f"{number}.png")
    (tmp_path / "images" / "a" / "1.png").write_bytes(b"no image")
    result = doctor(config_file, "--set", "data.in_dist.test={source: 'folder:images'}")
    assert "warning: samples: 1 of 6 cannot be used: a/1.png" in result.stdout, result.stdout + result.stderr
