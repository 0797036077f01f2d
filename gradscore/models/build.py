"""Classifiers: where their code comes from, and their weights."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import ModelError
from ..system import import_torchvision, some
from .settings import ModelConfig

TRUST_VARIABLE = "GRADSCORE_TRUST_CODE"
"""Environment variable that allows `python:` models when set to 1."""

NESTED_KEYS = ("state_dict", "model", "model_state_dict", "net")
"""Keys under which training scripts put the weights among other things."""

COUNTER = "num_batches_tracked"
"""Counts the training steps of a batch norm; old checkpoints lack it and no output depends on it."""

READING_ERRORS = (
    *(OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, struct.error, SafetensorError),
)
"""What reading a damaged file raises."""


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


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Loads weights from a `.safetensors` file, or from a `.pt` or `.pth` file without running any code in it.

    A state dict nested under `state_dict` or `model`, and names that all begin with `module.`, are understood.

    Args:
        model: takes the weights.
        path: the file.

    Raises:
        ModelError: the file cannot be read or its weights do not fit the model.
    """
    state = read_weights(path)
    wanted = model.state_dict()
    problems = {
        "missing": [name for name in wanted if name not in state and not name.endswith(COUNTER)],
        "unexpected": [name for name in state if name not in wanted],
        "of another shape": [
            f"{name} (model {tuple(wanted[name].shape)}, file {tuple(state[name].shape)})"
            for name in wanted
            if name in state and state[name].shape != wanted[name].shape
        ],
    }
    found = [f"{len(names)} {kind}: {some(names)}" for kind, names in problems.items() if names]
    if found:
        raise ModelError(
            f"checkpoint {path} does not fit the model: {'; '.join(found)}. "
            "Check model.source, model.arguments and the number of classes"
        )
    model.load_state_dict(state, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, on the CPU; formats as for `load_checkpoint`.

    Args:
        path: the file.

    Raises:
        ModelError: the file cannot be read or holds something else.
    """
    return _unwrapped(_read(path), path)


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
    where, _, factory = name.rpartition(":")
    if not where or not factory:
        raise ModelError(f"model.source 'python:{name}': wanted python:<file.py or module>:<factory>")
    if not (trust_code or os.environ.get(TRUST_VARIABLE) == "1"):
        raise ModelError(
            f"model.source 'python:{name}' runs the code in {where}; if you trust it, "
            f"say so with --trust-code or {TRUST_VARIABLE}=1"
        )
    module = _module(where)
    make = getattr(module, factory, None)
    if not callable(make):
        raise ModelError(f"{where} has no function {factory!r}")
    return _made(lambda: make(**arguments), f"python:{name}", arguments)


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


def _read(path: Path) -> object:
    if not path.is_file():
        raise ModelError(f"checkpoint {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pt", ".pth"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"checkpoint {path} holds more than plain weights and is refused, since reading it could run code; "
            "save model.state_dict() alone, or use safetensors"
        ) from error
    except READING_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"checkpoint {path} cannot be read: {reason}; is it damaged?") from error
    raise ModelError(f"checkpoint {path}: wanted .safetensors, .pt or .pth, got {path.suffix or 'no extension'}")


def _unwrapped(content: object, path: Path) -> dict[str, Tensor]:
    for key in NESTED_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise ModelError(f"checkpoint {path} holds {type(content).__name__}, wanted a state dict")
    wrong = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ModelError(f"checkpoint {path} holds {len(wrong)} entries that are not tensors: {some(wrong)}")
    prefix = "module." if all(str(name).startswith("module.") for name in content) else ""
    return {str(name)[len(prefix) :]: value for name, value in content.items()}
