"""What may be asked of a model: the section `model` of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from ..system import AnchoredPath, Elsewhere, InFeatures, Section, anchored


def anchored_source(source: str, info: ValidationInfo) -> str:
    """The source of a model or function with the path of a Python file made absolute."""
    kind, _, rest = source.partition(":")
    file, _, factory = rest.rpartition(":")
    if kind != "python" or not file.endswith(".py"):
        return source
    return f"python:{anchored(Path(file), info)}:{factory}"


CodeSource = Annotated[str, AfterValidator(anchored_source)]


class ModelConfig(Section):
    """The classifier: `torchvision:<name>` or `python:<file.py or module>:<factory>`, and its weights.

    `checkpoint` must be given; an explicit null means random weights.
    """

    source: InFeatures[CodeSource]
    arguments: InFeatures[dict[str, Any]] = {}
    checkpoint: Elsewhere[AnchoredPath | None]
    num_classes: InFeatures[Annotated[int, Field(ge=2)]]
    declared_accuracy: Elsewhere[Annotated[float, Field(ge=0, le=1)] | None] = None
