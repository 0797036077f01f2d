"""torchvision beside a build of torch that lacks the CUDA libraries its compiled operators need.

There `import torchvision` fails with "operator torchvision::nms does not exist", because it registers a fake
implementation of operators that could not be loaded. Declaring their schemas first lets everything but those operators
work: models, data sets and transforms.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

from ..errors import MissingExtraError
from .loaded_modules import forget

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
