"""What a model is told apart by, hashes of its weights and its code, and what its classes are called."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from ..system import file_sha256, is_address
from .code import code_hash
from .settings import ModelConfig
from .sources import MODEL_SOURCES, PYTHON, source_path
from .weights import weight_files


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


def weight_files_sha256(config: ModelConfig) -> str | None:
    """The hash of the files that a model's weights are read from; no code in them runs.

    Equal hashes say that the weights are the same; another hash may also be that of the same weights written anew.

    Returns:
        None where no file of this machine is known to hold them: they lie at an address, are random, or code of the
        model reads them by itself.

    Raises:
        ModelError: a folder without weights.
        OSError: a file is missing or cannot be read.
    """
    kind = MODEL_SOURCES.get(config.source.partition(":")[0])
    place = config.checkpoint
    if place is None and kind is not None and kind.brings_weights:
        place = source_path(config.source)
    if place is None or is_address(place):
        return None
    files = weight_files(place) if place.is_dir() else [place]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file_sha256(file)}\n".encode())
    return digest.hexdigest()


def class_names(config: ModelConfig) -> list[str] | None:
    """The names of the classes in the order of the logits; None where the source of the model does not name them.

    Args:
        config: the model; nothing of it is built, and no code of others runs.

    Raises:
        ModelError: the source cannot be used.
    """
    kind, _, name = config.source.partition(":")
    find = MODEL_SOURCES[kind].class_names if kind in MODEL_SOURCES else None
    names = None if find is None else find(name)
    return names if names is not None and len(names) == config.num_classes else None
