"""Two samples, one of each class: every command does its work, or says what is missing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import cli
from safetensors.torch import save_file

NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
"""
CONFIG = """
model: {source: "python:net.py:net", checkpoint: net.safetensors, num_classes: 2}
preprocessing: {channels: 1, resize: [8, 8], mean: [0.5], std: [0.5]}
data:
  auxiliary: []
  in_dist:
    fit: {source: "npz:fit.npz"}
    test: {source: "npz:test.npz"}
  ood:
    - {source: "synthetic:gaussian_noise", name: noise}
features: {losses: [uniform], statistics: [max, l1], penultimate: true}
extract: {device: cpu}
run: run
"""
COMMANDS = {
    "doctor": ["doctor", "config.yaml", "--trust-code"],
    "extract": ["extract", "config.yaml", "--trust-code"],
    "fit-meta": ["fit-meta", "run"],
    "evaluate": ["evaluate", "run"],
    "a new expected": ["check", "run", "--expected", "expected.json", "--update"],
    "check": ["check", "run", "--expected", "expected.json"],
    "bundle": ["bundle", "run", "--trust-code", "--alpha", "0.7"],
    "score": ["score", "scorer.gradscore", "test.npz", "--trust-code", "--explain"],
    "inspect": ["inspect", "run", "--trust-code"],
    "inspect right and wrong": ["inspect", "run", "--by", "correct", "--trust-code"],
    "verify": ["verify", "run"],
}
USUAL = dict.fromkeys(COMMANDS, 0) | {"evaluate": 3}  # two samples say nothing of a score
NO_THRESHOLD = {"bundle": 2, "score": 2}
OTHERS = {name: code for name, code in USUAL.items() if name != "inspect"}  # which looks at no labels
CASES = {
    "one wrong": ([0, 0], USUAL | NO_THRESHOLD),
    "none wrong": ([0, 1], OTHERS),
    "none right": ([1, 0], OTHERS | NO_THRESHOLD),
}


def prepare(folder: Path, labels: list[int]) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "config.yaml").write_text(CONFIG)
    weights = torch.tensor([-1.0, 1.0])[:, None].repeat(1, 64)  # the second class is the brighter one
    save_file({"1.weight": weights, "1.bias": torch.zeros(2)}, folder / "net.safetensors")
    generator = np.random.default_rng(0)
    for name in ("fit", "test"):
        images = np.array([60, 190])[:, None, None, None] + generator.integers(-20, 21, size=(2, 8, 8, 1))
        np.savez(folder / f"{name}.npz", images=images.astype(np.uint8), labels=np.array(labels))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("labels", "codes"), CASES.values(), ids=CASES)
def test_every_command_with_two_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: list[int], codes: dict[str, int]
) -> None:
    prepare(tmp_path, labels)
    monkeypatch.chdir(tmp_path)
    results = {name: cli(*COMMANDS[name]) for name in codes}
    assert {name: result.exit_code for name, result in results.items()} == codes
    assert all("error: " in result.stderr for result in results.values() if result.exit_code == 2)
