"""Classifiers of torchvision and timm, and those that a function of the user's returns."""

from __future__ import annotations

import difflib
import importlib

from torch import nn

from ...errors import ModelError
from ...system import import_torchvision
from ..code import load_function
from .base import ModelRequest, made, optional


def torchvision_model(request: ModelRequest) -> nn.Module:
    """Builds a classifier of torchvision.

    Raises:
        ModelError: there is none of this name, or it takes other arguments.
    """
    request.without("weights")
    import_torchvision()
    models = importlib.import_module("torchvision.models")
    name, names = request.name, models.list_models(module=models)
    if name not in names:
        close = difflib.get_close_matches(name, names, 3)
        raise ModelError(
            f"torchvision has no classifier {name!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
        )
    return made(
        lambda: models.get_model(name, **{"weights": None, **request.arguments}),
        f"torchvision:{name}",
        request.arguments,
    )


def timm_model(request: ModelRequest) -> nn.Module:
    """Builds a classifier of timm; nothing is fetched.

    Raises:
        MissingExtraError: timm is not installed.
        ModelError: there is no such model, or it takes other arguments.
    """
    request.without("pretrained", "checkpoint_path")
    timm = optional("timm", f"timm:{request.name}")
    plain = request.name.partition(".")[0]
    if ":" in request.name or not timm.is_model(plain):
        close = difflib.get_close_matches(plain, timm.list_models(), 3)
        raise ModelError(
            f"timm has no model {request.name!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
        )
    arguments = {"num_classes": request.outputs, **request.arguments}
    return made(
        lambda: timm.create_model(request.name, pretrained=False, **arguments), f"timm:{request.name}", arguments
    )


def python_model(request: ModelRequest) -> nn.Module:
    """Runs the code and calls the factory.

    Raises:
        ModelError: the code is not trusted, not what it should be, or fails, or returns something else.
    """
    name, arguments = request.name, request.arguments
    make = load_function(name, arguments)
    return made(lambda: make(**arguments), f"python:{name}", arguments)
