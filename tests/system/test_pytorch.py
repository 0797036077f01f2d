"""Devices by their names, and torchvision as it is where it works, with declared operators where it does not."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradscore.errors import ConfigError
from gradscore.system import resolve_device


def test_every_device_by_its_name(device):
    assert resolve_device(device).type == device


@pytest.mark.parametrize(("there", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_cuda_where_there_is_one(there, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device("auto").type == chosen


@pytest.fixture
def of_apple(monkeypatch):
    """A machine whose accelerator has no float64."""
    zeros = torch.zeros

    def refusing(*size, dtype, device):
        if device.type == "mps":
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return zeros(*size, dtype=dtype, device=device)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch, "zeros", refusing)


MISSING = {
    "no device of PyTorch's": ("gpu", "device gpu: PyTorch finds no such device here; use cpu or auto"),
    "one that is not here": ("xpu", "device xpu: PyTorch finds no such device here; use cpu or auto"),
    "another of several": ("cpu:1", "device cpu:1: PyTorch finds no such device here; use cpu or auto"),
}


@pytest.mark.parametrize(("name", "said"), MISSING.values(), ids=MISSING)
def test_a_device_that_is_not_there(name, said, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=said):
        resolve_device(name)


@pytest.mark.usefixtures("of_apple")
def test_a_device_beside_the_one_that_is_there():
    with pytest.raises(ConfigError, match="device xpu: PyTorch finds no such device here; use mps, cpu or auto"):
        resolve_device("xpu")


@pytest.mark.usefixtures("of_apple")
def test_a_device_without_float64():
    with pytest.raises(ConfigError, match=r"device mps: it has no float64.*Cannot convert.*; use cpu"):
        resolve_device("mps")


USE = """
from gradscore.system import tensors as compat
first = compat.import_torchvision()
assert compat.import_torchvision() is first
"""

REAL = "from torchvision.models import resnet18; print(sum(p.numel() for p in resnet18(num_classes=10).parameters()))"
DECLARED = "print(len(compat._declared))"


PACKAGES = {
    "imports by itself": ("", "0"),
    "lacks its operators": (
        "import torch\nfrom . import part\n"
        "@torch.library.register_fake('torchvision::nms')\n"
        "def fake(dets, scores, iou_threshold): return dets\n"
        "torch.ops.torchvision.qnms.default\n",
        "1",
    ),
}


def run(code: str, *, path: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(path)!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def make_torchvision(folder: Path, code: str) -> Path:
    (folder / "torchvision").mkdir()
    (folder / "torchvision/__init__.py").write_text(code)
    (folder / "torchvision/part.py").write_text("")
    return folder


def test_the_installed_torchvision_makes_models(tmp_path: Path) -> None:
    done = run(USE + REAL, path=tmp_path)
    assert done.stdout.strip() == "11181642", done.stderr  # 11,689,512 with 1000 classes, less 990 x 513


@pytest.mark.parametrize(("code", "declared"), PACKAGES.values(), ids=PACKAGES)
def test_operators_are_declared_only_where_they_are_missing(tmp_path: Path, code: str, declared: str) -> None:
    done = run(USE + DECLARED, path=make_torchvision(tmp_path, code))
    assert done.stdout.strip() == declared, done.stderr


BROKEN = {
    "another failure": ("raise RuntimeError('no driver')", "no driver; reinstall it"),
    "an operator that declaring does not bring": (
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "operator torchvision::nms does not exist; reinstall it",
    ),
    "a missing package": ("import not_there_at_all", "run `pip install torchvision`"),
}


@pytest.mark.parametrize(("code", "message"), BROKEN.values(), ids=BROKEN)
def test_a_torchvision_that_does_not_import_is_named(tmp_path: Path, code: str, message: str) -> None:
    done = run(
        "from gradscore.system import tensors as compat\ncompat.import_torchvision()",
        path=make_torchvision(tmp_path, code),
    )
    assert "MissingExtraError: torchvision cannot be imported" in done.stderr
    assert message in done.stderr
