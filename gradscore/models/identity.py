"""What a model is told apart by: hashes of its weights and of its code."""

from __future__ import annotations

import ast
import hashlib

import torch
from torch import nn

from ..system import file_sha256, sha256
from .code import code_file


def weights_sha256(model: nn.Module) -> str:
    """The hash of all parameters and buffers of a model: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def is_file_source(source: str) -> bool:
    """Whether the code of a model source is a Python file, not a module."""
    return source.startswith("python:") and source.rpartition(":")[0].endswith(".py")


def code_sha256(source: str) -> str | None:
    """The hash of the file a `python:` model comes from; null for other models."""
    file = code_file(source)
    return file_sha256(file) if file is not None and file.is_file() else None


def code_syntax_sha256(source: str) -> str | None:
    """The hash of what the file of a `python:` model says to Python: comments and layout do not count.

    Null for other models, and for a file that is no Python.
    """
    file = code_file(source)
    try:
        return None if file is None else sha256(ast.dump(ast.parse(file.read_bytes())).encode())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
