"""Weights from files, brought into a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from ..errors import ModelError
from ..system import some
from .weight_files import PARALLEL, StateDict, read_state_dict, weight_files

COUNTER = "num_batches_tracked"
"""Counts the training steps of a batch norm; old checkpoints lack it and no output depends on it."""


@dataclass(frozen=True)
class Loaded:
    """What was taken of a checkpoint.

    Attributes:
        prefix: what was taken off the names; empty where they fit.
        names: how many of them were loaded.
        left_out: names that do not begin with the prefix.
        keys: under which the weights lie in the file.
        beside: keys of other weights of the same names.
    """

    prefix: str
    names: int
    left_out: tuple[str, ...]
    keys: tuple[str, ...]
    beside: tuple[str, ...]


def load_checkpoint(model: nn.Module, path: Path, *, prefix: str | None = None) -> Loaded:
    """Loads weights from a file, or a folder with such files, without running any code in them.

    A state dict among other things (`state_dict`, `model`, or the only one there is), and names that fit once a
    beginning that all of them share is taken off (`module.`, `_orig_mod.`, `net.`), are understood.

    Args:
        model: takes the weights.
        path: a file of `torch.save` or safetensors, or a folder with the files of one model.
        prefix: what the names of the weights begin with; names that begin otherwise are left out. None for what fits.

    Returns:
        What was taken, and what was not.

    Raises:
        ModelError: a file cannot be read or its weights do not fit the model.
    """
    whole = _weights(path)
    found = whole.tensors
    wanted = model.state_dict()
    if prefix is None:
        prefix = _common_prefix(found, wanted)
    elif not any(name.startswith(prefix) for name in found):
        raise ModelError(
            f"model.prefix {prefix!r}: no name in checkpoint {path} begins so; its names: {some([*found])}"
        )
    state = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    problems = {
        "missing": [name for name in wanted if name not in state and not name.endswith(COUNTER)],
        "unexpected": [name for name in state if name not in wanted],
        "of another shape": [
            f"{name} (model {tuple(wanted[name].shape)}, file {tuple(state[name].shape)})"
            for name in wanted
            if name in state and state[name].shape != wanted[name].shape
        ],
    }
    told = [f"{len(names)} {kind}: {some(names)}" for kind, names in problems.items() if names]
    if told:
        raise ModelError(
            f"checkpoint {path} does not fit the model: {'; '.join(told)}. "
            f"Check model.source, model.arguments and the number of classes{_prefix_advice(found, wanted)}"
        )
    model.load_state_dict(state, strict=False)
    left_out = tuple(name for name in found if not name.startswith(prefix))
    return Loaded(prefix, len(state), left_out, whole.keys, whole.beside)


def _common_prefix(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """What all names of `state` begin with, and fit those of the model without; empty where there is no such thing."""
    first = next(iter(state))
    for ending in wanted:
        prefix = first.removesuffix(ending)
        if prefix == first or not prefix.endswith(".") or not all(name.startswith(prefix) for name in state):
            continue
        if _fits({name.removeprefix(prefix) for name in state}, wanted):
            return prefix
    return ""


def _fits(names: set[str], wanted: Mapping[str, Tensor]) -> bool:
    return {name for name in wanted if not name.endswith(COUNTER)} <= names <= wanted.keys()


def _prefix_advice(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """What `model.prefix` would make some of the names fit."""
    first = next(iter(wanted), "")
    for name in state:
        prefix = name.removesuffix(first)
        if name.endswith(f".{first}") and _fits(
            {each.removeprefix(prefix) for each in state if each.startswith(prefix)}, wanted
        ):
            return f"; the names that begin with {prefix!r} would fit: set model.prefix to it to leave out the others"
    return ""


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, on the CPU; formats as for `load_checkpoint`.

    Args:
        path: the file, or a folder.

    Raises:
        ModelError: a file cannot be read or holds something else.
    """
    found = _weights(path).tensors
    prefix = PARALLEL if all(name.startswith(PARALLEL) for name in found) else ""
    return {name.removeprefix(prefix): value for name, value in found.items()}


def _weights(path: Path) -> StateDict:
    files = [read_state_dict(file) for file in (weight_files(path) if path.is_dir() else [path])]
    tensors = {name: value for file in files for name, value in file.tensors.items()}
    return replace(files[0], tensors=tensors)
