"""Where classifiers come from.

In comes what `model.source` says, `<kind>:<name>`, with its arguments; out comes a module. `MODEL_SOURCES` lists the
kinds; `base` says what a source is, `packages` has those of torchvision, timm and a function of the user's,
`transformers_folder` those of transformers with what becomes of samples, `program` those of `torch.export`.
"""

from __future__ import annotations

from pathlib import Path

from ...system import Registry
from .base import ModelRequest, ModelSource
from .packages import python_model, timm_model, torchvision_model
from .program import program_files, program_model
from .transformers_folder import (
    TRANSFORMERS,
    FolderProcessor,
    class_names,
    config_files,
    processor_files,
    processor_sha256,
    transformers_model,
)

__all__ = [
    "MODEL_SOURCES",
    "PYTHON",
    "TRANSFORMERS",
    "FolderProcessor",
    "ModelRequest",
    "ModelSource",
    "at_path",
    "is_file_source",
    "processor_files",
    "processor_sha256",
    "source_path",
    "to_be_named",
]

PYTHON = "python"
"""The kind of source that is code of the user's."""

MODEL_SOURCES: Registry[ModelSource] = Registry(
    "model source",
    "gradscore.model_sources",
    {
        "torchvision": ModelSource(
            build=torchvision_model,
            form="torchvision:<name>",
            summary="a classifier of torchvision, which the arguments are passed to",
        ),
        "timm": ModelSource(
            build=timm_model,
            form="timm:<name>",
            summary="a classifier of timm (extra `timm`), with `model.num_classes` classes unless the arguments say so",
        ),
        "transformers": ModelSource(
            build=transformers_model,
            form="transformers:<folder>",
            summary="a classifier of images, text or sound that `save_pretrained` wrote (extra `transformers`)",
            is_path=True,
            brings_weights=True,
            files=config_files,
            class_names=class_names,
        ),
        "python": ModelSource(
            build=python_model,
            form="python:<file.py or module>:<function>",
            summary="what a function returns; files beside it may be imported",
        ),
        "program": ModelSource(
            build=program_model,
            form="program:<file.pt2>",
            summary="a program of `torch.export.save`, with its weights",
            is_path=True,
            brings_weights=True,
            files=program_files,
        ),
    },
    wanted=ModelSource,
)
"""Kinds of model sources by name."""


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
