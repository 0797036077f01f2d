"""From files to a configuration that runs."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from gradscore.config import load_config
from gradscore.system import import_torchvision
from gradscore_cli.main import app

QUICK = (
    *("--set", "preprocessing.resize=32", "--set", "preprocessing.crop=32", "--set", "meta.cv_folds=2"),
    *(
        "--set",
        "features.parameters=['@last']",
        "--set",
        "meta.strengths=[0.01]",
        "--set",
        "evaluate.protocols=[known]",
    ),
)


def images(folder: Path, *, count: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(list(str(folder).encode()))
    for number in range(count):
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a ResNet-18 with 7 classes, and images."""
    import_torchvision()
    from torchvision.models import resnet18

    folder = tmp_path_factory.mktemp("files")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save({"state_dict": resnet18(num_classes=7).state_dict()}, folder / "best.pth")
    for part in ("val", "test"):
        for place in range(7):
            images(folder / "images" / part / f"class {place}", count=4)
    images(folder / "textures", count=9)
    return folder


def test_a_checkpoint_and_a_folder_give_a_configuration_that_runs(files: Path) -> None:
    config = files / "gradscore.yaml"
    made = CliRunner().invoke(app, ["init", str(files)])
    assert made.exit_code == 0, made.output
    found = load_config(config)
    assert (found.model.source, found.model.num_classes) == ("torchvision:resnet18", 7)
    assert found.preprocessing.mean == [0.485, 0.456, 0.406]
    assert [entry.name for entry in found.data.ood if not entry.auxiliary] == ["textures"]
    assert found.features.penultimate is True
    ran = CliRunner().invoke(app, ["run", str(config), *QUICK])
    assert ran.exit_code == 0, ran.output
    assert "OOD by protocol known" in ran.stdout
    assert (files / "run" / "evaluation" / "report.html").is_file()


def test_what_was_found_as_json(files: Path, tmp_path: Path) -> None:
    command = ["init", str(files / "best.pth"), str(files / "images"), "--out", str(tmp_path / "made.yaml"), "--json"]
    found = json.loads(CliRunner().invoke(app, command).stdout)
    assert found["settings"]["model.source"] == "torchvision:resnet18"
    assert found["missing"] == {}


ADDRESSES = {
    "images": ("s3://bucket/images", "folder:s3://bucket/images"),
    "weights": ("s3://bucket/net.pt", "s3://bucket/net.pt"),
}


@pytest.mark.parametrize(("address", "setting"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_not_looked_at(address: str, setting: str) -> None:
    result = CliRunner().invoke(app, ["init", address])
    wanted = f"error: {address}: init looks at local folders; write {setting} into the configuration"
    assert (result.exit_code, wanted in result.stderr) == (2, True)


def test_an_own_configuration_stays(tmp_path: Path) -> None:
    (tmp_path / "gradscore.yaml").write_text("mine")
    result = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert (result.exit_code, (tmp_path / "gradscore.yaml").read_text()) == (2, "mine")
    assert "there is a file already; name another with --out, or replace it with --force" in result.stderr


def test_on_a_terminal_it_asks(tmp_path: Path) -> None:
    for place in ("cat", "dog"):
        images(tmp_path / "val" / place, count=2)
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gradscore_cli", "init", str(tmp_path)]
    asked = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.write(ours, b"python:my.py:net\n[0.5, 0.5, 0.5]\n\n")
    assert asked.wait(timeout=120) == 0
    os.close(theirs)
    os.close(ours)
    text = (tmp_path / "gradscore.yaml").read_text()
    assert "source: python:my.py:net" in text
    assert "mean: [0.5, 0.5, 0.5]" in text
    assert text.count("FILL IN: ") == 1
