"""Weights from files, read without running any code in them.

What a file is, its content says, before anything parses it: `torch.load` hands a TorchScript archive to another loader,
`weights_only` or not.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import ModelError
from ..system import some

NESTED_KEYS = ("state_dict", "model", "model_state_dict", "net")
"""Keys under which training scripts put the weights among other things."""

COUNTER = "num_batches_tracked"
"""Counts the training steps of a batch norm; old checkpoints lack it and no output depends on it."""

READING_ERRORS = (
    *(OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, struct.error, SafetensorError, zipfile.BadZipFile, NotImplementedError, RecursionError),
)
"""What reading a damaged file raises."""

Format = Literal["safetensors", "torch", "TorchScript", "program", "pickle", "zip", "unknown"]

_SUFFIXES: Mapping[str, Format] = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch"}

_LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
"""What files of `torch.save` began with before they were zip archives."""

_SAVE = "torch.save(model.state_dict(), 'weights.pt')"

_REFUSED: Mapping[Format, str] = {
    "TorchScript": "is a TorchScript archive, which is code; load the original module where its code is and save its "
    f"weights: {_SAVE}",
    "program": "is a program of torch.export, not a file of weights; save those of the original module: " + _SAVE,
    "pickle": "is a pickle that torch.save did not write, and is refused, since reading it could run code; load it "
    f"where you trust it and save the weights alone: {_SAVE}",
    "zip": "is a zip archive of something else than weights; wanted a file of torch.save or safetensors",
    "unknown": "is no file of weights, by its first bytes; is it damaged, or a download that failed?",
}


def load_checkpoint(model: nn.Module, path: Path) -> str:
    """Loads weights from a `.safetensors` file, or from a `.pt` or `.pth` file without running any code in it.

    A state dict nested under `state_dict` or `model`, and names that fit once one beginning that all of them share is
    taken off (`module.`, `_orig_mod.`, `net.`), are understood.

    Args:
        model: takes the weights.
        path: the file.

    Returns:
        What was taken off the names beside `module.`; empty where they fit.

    Raises:
        ModelError: the file cannot be read or its weights do not fit the model.
    """
    state = read_weights(path)
    wanted = model.state_dict()
    prefix = _common_prefix(state, wanted)
    state = {name.removeprefix(prefix): value for name, value in state.items()}
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
    return prefix


def _common_prefix(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """What all names of `state` begin with, and fit those of the model without; empty where there is no such thing."""
    first = next(iter(state))
    needed = {name for name in wanted if not name.endswith(COUNTER)}
    for ending in wanted:
        prefix = first.removesuffix(ending)
        if prefix == first or not prefix.endswith(".") or not all(name.startswith(prefix) for name in state):
            continue
        if needed <= {name.removeprefix(prefix) for name in state} <= wanted.keys():
            return prefix
    return ""


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, on the CPU; formats as for `load_checkpoint`.

    Args:
        path: the file.

    Raises:
        ModelError: the file cannot be read or holds something else.
    """
    return _unwrapped(_read(path), path)


def format_of(path: Path) -> Format:
    """What a file is by its content.

    Raises:
        OSError: it cannot be read.
        BadZipFile: it begins as a zip archive and is damaged.
    """
    with path.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(b"PK"):
        return _format_of_archive(path)
    if head.startswith(_LEGACY):
        return "torch"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size - 8:
        return "safetensors"
    return "pickle" if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") else "unknown"


def _format_of_archive(path: Path) -> Format:
    with zipfile.ZipFile(path) as archive:
        parts = [name.split("/") for name in archive.namelist()]
    inside = {part for name in parts for part in name[1:]}
    if "code" in inside or "constants.pkl" in inside:
        return "TorchScript"
    if "models" in inside or "archive_format" in inside:
        return "program"
    return "torch" if any(name[1:] == ["data.pkl"] for name in parts) else "zip"


def _read(path: Path) -> object:
    if not path.exists():
        raise ModelError(f"checkpoint {path} does not exist")
    if not path.is_file():
        raise ModelError(f"checkpoint {path} is a folder; name the file of the weights in it")
    try:
        found = format_of(path)
        # Other suffixes (.ckpt, .bin) promise nothing, so the content decides.
        if found != _SUFFIXES.get(path.suffix, found) or found not in _SUFFIXES.values():
            raise ModelError(f"checkpoint {path} {_REFUSED.get(found) or _misnamed(path, found)}")
        if found == "safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other versions of the format; what counts is whether it can be read
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(f"checkpoint {path} {_why_not(error, path)}") from error
    except READING_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"checkpoint {path} cannot be read: {reason}; is it damaged?") from error


def _misnamed(path: Path, found: Format) -> str:
    suffix = next(name for name, kind in _SUFFIXES.items() if kind == found)
    return f"is a file of {found} by its content, not what {path.suffix} says; rename it to {path.stem}{suffix}"


def _why_not(error: pickle.UnpicklingError, path: Path) -> str:
    """What a file of `torch.save` holds beside plain weights."""
    match = re.search(r"GLOBAL (\S+)", str(error))
    what = f"objects of {match.group(1)}" if match else "more than plain weights"
    return (
        f"holds {what} and is refused, since reading it could run code; load it where you trust it and save the "
        f"weights alone: {_SAVE}; weights beside other things by torch.save(torch.load('{path.name}', "
        "weights_only=False)['state_dict'], 'weights.pt'), with the key that the file has"
    )


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
