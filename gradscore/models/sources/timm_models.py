"""`timm:<name>`: the classifiers of timm, with as many classes as `model.num_classes` says."""

from __future__ import annotations

import difflib

from torch import nn

from ...errors import ModelError
from .base import ModelRequest, made, optional


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
