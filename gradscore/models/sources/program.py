"""`program:<file.pt2>`: a program that `torch.export.save` wrote, with its weights."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ...errors import ModelError
from ...system import file_sha256
from ..code import ask_for_code
from ..weights import READING_ERRORS, format_of
from .base import ModelRequest


def program_model(request: ModelRequest) -> nn.Module:
    """Reads a program; `torch.load` may run code in it, so it must be trusted.

    Raises:
        ModelError: the file is not trusted, damaged, or something else than a program.
    """
    path = Path(request.name)
    source = f"program:{path}"
    if request.arguments:
        raise ModelError(f"model.source {source} takes no model.arguments: a program is finished")
    if not path.is_file():
        raise ModelError(f"model.source {source}: the file does not exist")
    try:
        found = format_of(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(f"model.source {source} cannot be read: {error}; is it damaged?") from error
    if found != "program":
        raise ModelError(
            f"model.source {source} is no program of torch.export, by its content ({found}); a file of weights belongs "
            "into model.checkpoint, beside the source of its model"
        )
    ask_for_code(source, str(path), lambda: file_sha256(path), setting="model.source", suffix=".pt2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other versions of the format; what counts is whether it can be read
            return torch.export.load(path).module()
    except (*READING_ERRORS, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"model.source {source} cannot be read: {reason}; is it damaged, or of another PyTorch?"
        ) from error


def program_files(name: str) -> Sequence[Path]:
    """The file itself."""
    return [Path(name)]
