"""Which device computes."""

from __future__ import annotations

import torch

from ..errors import ConfigError

Device = str
"""`auto`, `cpu`, or the name by which PyTorch has an accelerator: `cuda`, `xpu`, or that of a package of others."""


def resolve_device(name: Device) -> torch.device:
    """The device of a name; `auto` is a CUDA device where there is one, and otherwise the CPU.

    Raises:
        ConfigError: PyTorch has no such device here, or the device has no float64.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != name:
        others = "cpu" if accelerator is None else f"{accelerator.type}, cpu"
        raise ConfigError(f"device {name}: {_why_not(name)}; use {others} or auto")
    device = torch.device(name)
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device {name}: it has no float64, in which gradients at the logits are computed ({error}); use cpu"
        ) from None
    return device


def _why_not(name: str) -> str:
    if name == "cuda" and torch.version.cuda is None:
        return "this PyTorch was built without it (a CUDA build of PyTorch has it)"
    return "PyTorch finds no such device here"
