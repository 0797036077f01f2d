"""Classifiers: where their code comes from."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..errors import ModelError
from ..system import import_torchvision
from .checkpoint import load_checkpoint
from .settings import ModelConfig

TRUST_VARIABLE = "GRADSCORE_TRUST_CODE"
"""Environment variable that allows `python:` models when set to 1."""


def build_model(config: ModelConfig, *, seed: int = 0, trust_code: bool = False) -> nn.Module:
    """Builds a classifier and loads its weights.

    Args:
        config: source, arguments and checkpoint.
        seed: of the random weights that no checkpoint replaces; the state of the random numbers outside stays as it is.
        trust_code: allow a `python:` source, whose code is run.

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
            model = _from_python(name, config.arguments, trust_code=trust_code)
        else:
            raise ModelError(
                f"model.source {config.source!r}: wanted torchvision:<name> or python:<file or module>:<factory>"
            )
    if config.checkpoint is not None:
        load_checkpoint(model, config.checkpoint)
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


def _from_python(name: str, arguments: Mapping[str, Any], *, trust_code: bool) -> nn.Module:
    make = import_function(f"python:{name}", setting="model.source", trust_code=trust_code)
    return _made(lambda: make(**arguments), f"python:{name}", arguments)


def import_function(source: str, *, setting: str, trust_code: bool) -> Callable[..., Any]:
    """A function of the user's.

    Args:
        source: `python:<file.py or module>:<function>`.
        setting: what names it, for messages.
        trust_code: allow it; its code is run.

    Raises:
        ModelError: it is not allowed, or cannot be imported.
    """
    where, _, name = source.removeprefix("python:").rpartition(":")
    if not where or not name:
        raise ModelError(f"{setting} '{source}': wanted python:<file.py or module>:<function>")
    if not (trust_code or os.environ.get(TRUST_VARIABLE) == "1"):
        raise ModelError(
            f"{setting} '{source}' runs the code in {where}; if you trust it, "
            f"say so with --trust-code or {TRUST_VARIABLE}=1"
        )
    found = getattr(_module(where), name, None)
    if not callable(found):
        raise ModelError(f"{where} has no function {name!r}")
    function: Callable[..., Any] = found
    return function


def _module(where: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        path = Path(where)
        if not path.is_file():
            raise ModelError(f"model source file {path} does not exist")
        name = f"gradscore_model_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ModelError(f"model source file {path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # classes defined there can be pickled for worker processes
        spec.loader.exec_module(module)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"importing the model source {where} failed: {type(error).__name__}: {error}") from error
    return module


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
