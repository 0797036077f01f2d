"""Digits before speed, products that are the same in any company, devices by their names, and torchvision."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradscore.errors import ConfigError, MissingExtraError
from gradscore.system import FloatArray, full_precision, import_torchvision, product, resolve_device
from gradscore.system.tensors import ENTRIES_TOGETHER

KNOWS_BOTH = hasattr(torch.backends, "fp32_precision")
"""Whether this PyTorch has the newer language of settings, beside the older one."""


def in_new_language() -> list[Any]:
    """What has a precision of its own in the newer language; nothing where there is none."""
    if not KNOWS_BOTH:
        return []
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


def settings() -> dict[str, object]:
    cudnn = torch.backends.cudnn
    found: dict[str, object] = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    found |= {str(number): each.fp32_precision for number, each in enumerate(in_new_language())}
    return found if KNOWS_BOTH else found | {"products": torch.get_float32_matmul_precision(), "tf32": cudnn.allow_tf32}


def old_language() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True


def new_language() -> None:
    torch.backends.fp32_precision = "tf32"


def mixed() -> None:
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


HOSTS = {"as it comes": lambda: None, "old language": old_language}
HOSTS |= {"new language": new_language, "mixed": mixed} if KNOWS_BOTH else {}


@pytest.fixture(params=HOSTS.values(), ids=HOSTS)
def host(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """What another part of the process has set; taken back afterwards."""
    before = [backend.fp32_precision for backend in in_new_language()]
    request.param()
    yield request.param
    if KNOWS_BOTH:
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    for backend, precision in zip(in_new_language(), before, strict=True):
        backend.fp32_precision = precision


@pytest.mark.usefixtures("host")
def test_digits_before_speed() -> None:
    with full_precision():
        found = settings()
    assert {found.pop("benchmark"), found.pop("deterministic")} == {False, True}
    assert found.pop("tf32", False) is False
    assert set(found.values()) <= {"ieee", "none", "highest"}


@pytest.mark.usefixtures("host")
def test_everything_is_as_it_was() -> None:
    before = settings()
    with pytest.raises(RuntimeError, match="on the way"), full_precision():
        raise RuntimeError("on the way")
    assert settings() == before


def test_a_model_may_set_flags_of_its_own() -> None:
    """As recurrent models do that differentiate twice."""
    with full_precision(), torch.backends.cudnn.flags(enabled=False):
        assert not torch.backends.cudnn.enabled


SHAPES = {"square": (64, 64), "wide": (10, 300), "tall": (700, 3), "to one": (65, 1), "of one": (1, 5), "empty": (0, 4)}
SHAPES |= {"parts": (300, ENTRIES_TOGETHER // 100), "one row a part": (2, ENTRIES_TOGETHER + 1)}
LAYOUTS = {"as they come": np.ascontiguousarray, "columns first": np.asfortranarray}


def factors(shape: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(37, shape[0])), generator.normal(size=shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_product_is_its_sums(shape: tuple[int, int]) -> None:
    """Against sums without rounding, of some elements."""
    rows, matrix = factors(shape)
    found = product(rows, matrix)
    columns = range(0, shape[1], max(1, shape[1] // 20))
    wanted = [[math.fsum(row * matrix[:, column]) for column in columns] for row in rows]
    np.testing.assert_allclose(found[:, list(columns)], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("size", [1, 20])
def test_rows_of_a_product_are_the_same_in_any_company(
    shape: tuple[int, int], size: int, layout: Callable[[FloatArray], FloatArray]
) -> None:
    rows, matrix = factors(shape)
    parts = [product(layout(rows[start : start + size]), layout(matrix)) for start in range(0, len(rows), size)]
    np.testing.assert_array_equal(np.concatenate(parts), product(rows, matrix))


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
LACKS_OPERATORS = """
import torch
from . import part
@torch.library.register_fake('torchvision::nms')
def fake(dets, scores, iou_threshold): return dets
torch.ops.torchvision.qnms.default
"""
IN_TURN = """
from gradscore.system import tensors as compat
for name in ("whole", "lacking"):
    sys.path.insert(0, name)
    compat.import_torchvision()
    print(len(compat._declared))
    for each in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
        del sys.modules[each]
"""
"""How often operators are declared with a torchvision that imports by itself, and with one that lacks them."""


def run(code: str, *, path: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(path)!r})\n{code}"]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, check=False)


def make_torchvision(folder: Path, code: str) -> Path:
    (folder / "torchvision").mkdir(parents=True)
    (folder / "torchvision/__init__.py").write_text(code)
    (folder / "torchvision/part.py").write_text("")
    return folder


@pytest.mark.slow
def test_the_installed_torchvision_makes_models(tmp_path: Path) -> None:
    done = run(USE + REAL, path=tmp_path)
    assert done.stdout.strip() == "11181642", done.stderr  # 11,689,512 with 1000 classes, less 990 x 513


@pytest.mark.slow
def test_operators_are_declared_only_where_they_are_missing(tmp_path: Path) -> None:
    make_torchvision(tmp_path / "whole", "")
    make_torchvision(tmp_path / "lacking", LACKS_OPERATORS)
    done = run(IN_TURN, path=tmp_path)
    assert done.stdout.split() == ["0", "1"], done.stderr


@pytest.mark.slow
def test_operators_whose_declaration_does_not_help_are_named(tmp_path: Path) -> None:
    path = make_torchvision(tmp_path, "raise RuntimeError('operator torchvision::nms does not exist')")
    said = run(USE, path=path).stderr
    assert "MissingExtraError: torchvision cannot be imported: operator torchvision::nms does not exist; reinst" in said


BROKEN = {
    "another failure": ("raise RuntimeError('no driver')", "no driver; reinstall it"),
    "a missing package": ("import not_there_at_all", "run `pip install torchvision`"),
}


@pytest.mark.parametrize(("code", "message"), BROKEN.values(), ids=BROKEN)
def test_a_torchvision_that_does_not_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(make_torchvision(tmp_path, code))
    with pytest.raises(MissingExtraError, match=f"torchvision cannot be imported: .*{message}"):
        import_torchvision()
