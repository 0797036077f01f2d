"""What tells whether the files of a model's weights changed, without building the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..system import file_sha256, is_address
from .identity import source_path
from .settings import ModelConfig
from .sources import MODEL_SOURCES
from .weight_files import weight_files


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
    place = _weights_place(config)
    if place is None:
        return None
    files = weight_files(place) if place.is_dir() else [place]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file_sha256(file)}\n".encode())
    return digest.hexdigest()


def _weights_place(config: ModelConfig) -> Path | None:
    """The file or folder of a model's weights."""
    if config.checkpoint is not None:
        return None if is_address(config.checkpoint) else config.checkpoint
    kind = MODEL_SOURCES.get(config.source.partition(":")[0])
    return source_path(config.source) if kind is not None and kind.brings_weights else None
