"""What PyTorch and torchvision have here: devices, and packages that are loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from types import ModuleType
from typing import Any

import torch

from ..errors import ConfigError, MissingExtraError

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


def loaded(packages: Collection[str]) -> list[str]:
    """The names of packages that are loaded, and of the modules in them.

    Args:
        packages: names without a dot.
    """
    # Another thread may import something meanwhile: the copy is made at once.
    return [name for name in list(sys.modules) if name.partition(".")[0] in packages]


def forget(packages: Collection[str]) -> None:
    """Has packages loaded anew when they are imported next; see `loaded`."""
    for name in loaded(packages):
        sys.modules.pop(name, None)


SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))

_declared: list[Any] = []
"""Keeps the declarations alive: they go with their library object."""


def import_torchvision() -> ModuleType:
    """Imports torchvision, declaring the operators it misses only where it does not import by itself.

    Returns:
        The module.

    Raises:
        MissingExtraError: torchvision is not installed, or does not import for another reason.
    """
    try:
        try:
            return _import()
        except RuntimeError as error:
            if "torchvision::nms" not in str(error) or _declared:
                raise
        forget({"torchvision"})  # it is there in part
        _declare_operators()
        return _import()
    except RuntimeError as error:
        raise MissingExtraError(f"torchvision cannot be imported: {error}; reinstall it to match torch") from error


def _declare_operators() -> None:
    make_library: Any = torch.library.Library  # torch leaves it untyped
    library = make_library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _import() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"torchvision cannot be imported: {error}; run `pip install torchvision`") from error
