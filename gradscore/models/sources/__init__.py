"""Where classifiers come from: one file for each kind of source.

In comes what `model.source` says, `<kind>:<name>`, with its arguments; out comes a module. `MODEL_SOURCES` lists the
kinds; `base` says what a source is.
"""

from __future__ import annotations

from ...system import Registry
from .base import ModelRequest, ModelSource
from .program import program_files, program_model
from .python_code import python_model
from .timm_models import timm_model
from .torchvision_models import torchvision_model
from .transformers_folder import class_names, config_files, transformers_model

__all__ = ["MODEL_SOURCES", "ModelRequest", "ModelSource"]

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
