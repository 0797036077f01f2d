"""What a model is told apart by: hashes of its weights and of its code."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from ..system import file_sha256
from .code import code_hash, code_syntax_hash
from .sources import MODEL_SOURCES

PYTHON = "python"


def weights_sha256(model: nn.Module) -> str:
    """The hash of all parameters and buffers of a model: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def coarsest_dtype(model: nn.Module) -> str:
    """The coarsest type of floating numbers among the parameters, such as `float32`."""
    kinds = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return str(max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)).removeprefix("torch.")


def is_file_source(source: str) -> bool:
    """Whether the code of a model source is a Python file, not a module."""
    return source.startswith(f"{PYTHON}:") and source.rpartition(":")[0].endswith(".py")


def source_path(source: str) -> Path | None:
    """The file or folder in the source of a model or augmentation; None for those that have none."""
    kind, _, rest = source.partition(":")
    if is_file_source(source):
        return Path(rest.rpartition(":")[0])
    return Path(rest) if kind in MODEL_SOURCES and MODEL_SOURCES[kind].is_path else None


def at_path(source: str, path: Path) -> str:
    """The same source with another file or folder in it."""
    kind = source.partition(":")[0]
    function = f":{source.rpartition(':')[2]}" if kind == PYTHON else ""
    return f"{kind}:{path.as_posix()}{function}"


def to_be_named(source: str) -> str:
    """A source as its user may name it: with FOLDER in the place of a folder in which there is no such file here."""
    path = source_path(source)
    return source if path is None or path.exists() else at_path(source, Path("FOLDER") / path.name)


def code_sha256(source: str) -> str | None:
    """The hash of the files that say what a model or augmentation computes, weights aside; None where there are none.

    For `python:` they are the file and those beside it that it imports.
    """
    kind, _, rest = source.partition(":")
    if kind == PYTHON:
        return code_hash(rest.rpartition(":")[0])
    entry = MODEL_SOURCES.get(kind)
    files = [each for each in (entry.files(rest) if entry and entry.files else ()) if each.is_file()]
    if len(files) == 1:
        return file_sha256(files[0])
    lines = [f"{each.name} {file_sha256(each)}\n" for each in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def code_syntax_sha256(source: str) -> str | None:
    """The hash of what the files of a `python:` model say to Python: comments and layout do not count.

    None for other models, and for files that are no Python.
    """
    kind, _, rest = source.partition(":")
    return code_syntax_hash(rest.rpartition(":")[0]) if kind == PYTHON else None
