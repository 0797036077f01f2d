"""`torchvision:<name>`: the classifiers of torchvision."""

from __future__ import annotations

import difflib
import importlib

from torch import nn

from ...errors import ModelError
from ...system import import_torchvision
from .base import ModelRequest, made


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
