"""What each setting influences: said where it is declared, so that identities are made of it and none is forgotten.

batch_size: InFeatures[Positive] = 64
workers: Elsewhere[NotNegative] = 0
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, TypeVar

from .fields import Section


class Influence(Enum):
    """What comes out otherwise when a setting changes."""

    FEATURES = "the values of feature tables"
    MODELS = "the meta models fitted on feature tables"
    ELSEWHERE = "neither: where things lie, how fast they go, or what is reported"


Value = TypeVar("Value")

InFeatures = Annotated[Value, Influence.FEATURES]
"""A setting that is part of the identity of a run."""

InModels = Annotated[Value, Influence.MODELS]
"""A setting that is part of the identity of a meta model, beside the samples and features it is fitted on."""

Elsewhere = Annotated[Value, Influence.ELSEWHERE]
"""A setting that may change without anything having to be computed anew, or that shows in something else: a hash."""


def influence_of(section: type[Section], name: str) -> Influence | None:
    """What a setting is declared to influence; None if it is not declared."""
    return next((entry for entry in section.model_fields[name].metadata if isinstance(entry, Influence)), None)


def settings_of(section: Section, influence: Influence) -> dict[str, Any]:
    """The settings of a section that influence something, those of sections in it among them, as plain JSON values."""
    kind = type(section)
    chosen = {name for name in kind.model_fields if influence_of(kind, name) is influence}
    nested = {
        name: settings_of(value, influence)
        for name in kind.model_fields
        if isinstance(value := getattr(section, name), Section)
    }
    return section.model_dump(mode="json", include=chosen - nested.keys()) | {
        name: found for name, found in nested.items() if found
    }
