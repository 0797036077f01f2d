"""What may be asked of a model: the section `model` of a configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from ..system import AnchoredPath, Elsewhere, InFeatures, Section, anchored
from .identity import at_path, source_path
from .sources import MODEL_SOURCES


def anchored_source(source: str, info: ValidationInfo) -> str:
    """The source of a model or function with the path of a file or folder made absolute."""
    path = source_path(source)
    return source if path is None or not str(path) else at_path(source, anchored(path, info))


CodeSource = Annotated[str, AfterValidator(anchored_source)]


class ModelConfig(Section):
    """The classifier: its source, `<kind>:<name>`, and its weights.

    `checkpoint` must be given unless the source has weights of its own (`transformers:`, `program:`); an explicit null
    leaves the model with the weights that it is made with. `prefix` is what the names of the checkpoint begin with.
    `output` is the name or position of the logits among what the model returns. `num_classes: 1` says that it returns
    one logit z for two classes; they become the logits `[0, z]`, so `num_classes: 2, one_logit: true` says the same.
    """

    source: InFeatures[CodeSource]
    arguments: InFeatures[dict[str, Any]] = {}
    checkpoint: Elsewhere[AnchoredPath | None]
    prefix: Elsewhere[str | None] = None
    num_classes: InFeatures[Annotated[int, Field(ge=2)]]
    one_logit: InFeatures[bool] = False
    output: InFeatures[str | int | None] = None
    declared_accuracy: Elsewhere[Annotated[float, Field(ge=0, le=1)] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        found = dict(settings)
        kind = str(found.get("source", "")).partition(":")[0]
        if kind in MODEL_SOURCES and MODEL_SOURCES[kind].brings_weights:
            found.setdefault("checkpoint", None)
        if found.get("num_classes") == 1 and found["num_classes"] is not True:
            found |= {"num_classes": 2, "one_logit": True}
        return found

    @model_validator(mode="after")
    def _two_classes(self) -> ModelConfig:
        if self.one_logit and self.num_classes != 2:
            raise ValueError(f"one_logit is for two classes, num_classes says {self.num_classes}: remove one_logit")
        return self
