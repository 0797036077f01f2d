"""Names of devices: which of them PyTorch has here, and what is said of others."""

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
