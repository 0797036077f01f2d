"""What may be asked of a model: the section `model` of a configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from ..system import AnchoredPath, Elsewhere, InFeatures, InReport, Section, anchored
from .sources import MODEL_SOURCES, at_path, source_path


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
    """The network: `torchvision:<name>`, `timm:<name>`, `transformers:<folder>`, ... ([all of them](models.md)), or
    `python:<file.py or module>:<function>` (run only with `--trust-code`)."""
    arguments: InFeatures[dict[str, Any]] = {}
    """What that function is called with, by name."""
    checkpoint: Elsewhere[AnchoredPath | None]
    """File of the trained weights, read without running code in it; null, which must be written, for random ones or
    those that the source brings."""
    prefix: Elsewhere[str | None] = None
    """What names of parameters begin with in the checkpoint and not in the network; found by itself where all share
    one."""
    num_classes: InFeatures[Annotated[int, Field(ge=2)]]
    """Number of classes, the columns of its output; 1 for a network with one logit z, which becomes [0, z]."""
    one_logit: InFeatures[bool] = False
    """The network has one logit for two classes; `num_classes: 1` sets it."""
    output: InFeatures[str | int | None] = None
    """Which entry of the output holds the logits, by name or position, where that is not obvious."""
    declared_accuracy: InReport[Annotated[float, Field(ge=0, le=1)] | None] = None
    """The accuracy that is claimed; `doctor` says when in_dist.test is far from it."""

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
