"""Which device computes."""

from __future__ import annotations

from typing import Literal

import torch

from ..errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]


def resolve_device(name: Device) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` stands for here; `auto` is a CUDA device where there is one.

    Raises:
        ConfigError: CUDA is asked for and PyTorch has none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        build = "this PyTorch was built without it" if torch.version.cuda is None else "PyTorch finds no usable device"
        raise ConfigError(f"device cuda: {build}; use cpu or auto, or install a CUDA build of PyTorch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")
