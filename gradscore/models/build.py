"""Classifiers: where their code comes from."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import ModelError
from ..system import import_torchvision
from .checkpoint import load_checkpoint
from .code import NamedCode, TellCode, load_function
from .settings import ModelConfig


def build_model(
    config: ModelConfig,
    *,
    seed: int = 0,
    trust_code: bool = False,
    named: NamedCode | None = None,
    tell: TellCode | None = None,
    notices: list[str] | None = None,
) -> nn.Module:
    """Builds a classifier and loads its weights.

    Args:
        config: source, arguments and checkpoint.
        seed: of the random weights that no checkpoint replaces; the state of the random numbers outside stays as it is.
        trust_code: allow a `python:` source, whose code is run.
        named: what the bundle or run folder that names the code says of it; None for the user's own configuration.
        tell: called before the code of a `python:` source runs.
        notices: takes a sentence where the checkpoint fits only once its names are changed.

    Returns:
        The model on the CPU, in eval mode, with gradients enabled for all parameters.

    Raises:
        ModelError: the source or the checkpoint cannot be used.
    """
    kind, _, name = config.source.partition(":")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "torchvision":
            model = _from_torchvision(name, config.arguments)
        elif kind == "python":
            make = load_function(name, config.arguments, trust_code=trust_code, named=named, tell=tell)
            model = _made(lambda: make(**config.arguments), f"python:{name}", config.arguments)
        else:
            raise ModelError(
                f"model.source {config.source!r}: wanted torchvision:<name> or python:<file or module>:<factory>"
            )
    if config.checkpoint is not None:
        prefix = load_checkpoint(model, config.checkpoint)
        if prefix and notices is not None:
            notices.append(
                f"all names in checkpoint {config.checkpoint} begin with {prefix!r}, which was taken off to fit "
                "the model"
            )
    return model.cpu().eval().requires_grad_(True)


def _from_torchvision(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    if "weights" in arguments:
        raise ModelError("model.arguments.weights is not taken: put the file of the weights into model.checkpoint")
    import_torchvision()
    models = importlib.import_module("torchvision.models")
    names: list[str] = models.list_models(module=models)
    if name not in names:
        close = difflib.get_close_matches(name, names, 3)
        raise ModelError(
            f"torchvision has no classifier {name!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
        )
    return _made(lambda: models.get_model(name, **{"weights": None, **arguments}), f"torchvision:{name}", arguments)


def _made(make: Callable[[], object], source: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        model = make()
    except Exception as error:
        raise ModelError(
            f"{source} with arguments {dict(arguments)} failed: {type(error).__name__}: {error}; check model.arguments"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{source} returned {type(model).__name__}, wanted a torch.nn.Module")
    return model
