"""Networks that misbehave once they are used: every command ends with 2, one message, and nothing half-written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import cli
from sklearn.datasets import load_digits

from gradscore.evaluation import fit_run
from gradscore.pipeline import extract
from gradscore.store import RunFolder

NET = """
import os

import torch
from torch import nn


def failing(error):
    raise error


class Odd(BaseException):
    pass


ODD = {
    "nothing": lambda net, x, logits: None,
    "whole numbers": lambda net, x, logits: logits.long(),
    "a sparse tensor": lambda net, x, logits: logits.to_sparse(),
    "an exception of iterators": lambda net, x, logits: failing(StopIteration("no more")),
    "an attribute that is missing": lambda net, x, logits: logits.nowhere,
    "no memory": lambda net, x, logits: failing(MemoryError()),
    "no memory of the device": lambda net, x, logits: failing(torch.OutOfMemoryError("out of memory")),
    "a broken pipe": lambda net, x, logits: failing(BrokenPipeError()),
    "no exception at all": lambda net, x, logits: failing(Odd("odd")),
    "changed inputs": lambda net, x, logits: (x.zero_(), logits)[1],
    "frozen parameters": lambda net, x, logits: (net.requires_grad_(False), logits.detach())[1],
}


class Net(nn.Sequential):
    def forward(self, x):
        logits = super().forward(x)
        return ODD[os.environ["ODD"]](self, x, logits) if "ODD" in os.environ else logits


def net():
    return Net(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
"""

MESSAGES = {
    "nothing": "wanted logits of shape",
    "whole numbers": "wanted logits as floats in an ordinary tensor, got torch.int64",
    "a sparse tensor": "layout torch.sparse_coo",
    "an exception of iterators": "no more",
    "an attribute that is missing": "nowhere",
    "no memory": "MemoryError",
    "no memory of the device": "memory",
    "a broken pipe": "BrokenPipeError",
    "no exception at all": "ended the program (Odd: odd)",
    "changed inputs": "changes in place what its gradients need",
    "frozen parameters": "graph|requires_grad",
}

Arguments = Callable[[Path, Path], list[str | Path]]
COMMANDS: dict[str, Arguments] = {
    "extract": lambda run, out: ["extract", run / "config.yaml", "--out", out / "run"],
    "project": lambda run, out: ["project", run, "--dim", "64", "--out", out / "projected"],
    "audit": lambda run, out: ["audit", run, "--out", out / "audit"],
    "inspect": lambda run, out: ["inspect", run, "--samples", "20", "--out", out / "inspect"],
    "doctor": lambda run, out: ["doctor", run / "config.yaml"],
    "score": lambda run, out: ["score", run.parent / "b.gradscore", run.parent / "d.npz", "--out", out / "x.csv"],
    "monitor": lambda run, out: ["monitor", run.parent / "b.gradscore", run.parent / "d.npz", "--out", out / "watch"],
}


@pytest.fixture(scope="module")
def run(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network that is an ordinary one until an environment variable says what it does."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "net.py").write_text(NET)
    config = RunFolder(small_run).config
    model = config.model.model_copy(update={"source": f"python:{folder}/net.py:net"})
    extract(config.model_copy(update={"model": model, "run": folder / "run"}), trust_code=True)
    fit_run(RunFolder(folder / "run"))
    bundle = ["bundle", str(folder / "run"), "--out", str(folder / "b.gradscore"), "--monitor", "--trust-code"]
    assert cli(*bundle).exit_code == 0
    np.savez(folder / "d.npz", images=np.round(load_digits().images[420:500] * (255 / 16)).astype(np.uint8))
    return folder / "run"


CASES = [
    ([*COMMANDS][(place + place // len(MESSAGES)) % len(COMMANDS)], [*MESSAGES][place % len(MESSAGES)])
    for place in range(14)
]
"""Every network with a command, and every command with two networks."""


@pytest.mark.parametrize(("command", "odd"), CASES)
def test_odd_networks(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, odd: str) -> None:
    monkeypatch.setenv("ODD", odd)
    result = cli(*COMMANDS[command](run, tmp_path / "out"), "--trust-code")
    said = " ".join(result.output.split())
    assert result.exit_code == 2, said
    assert any(part in said for part in MESSAGES[odd].split("|")), said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.*"))
