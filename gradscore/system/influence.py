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
    REPORT = "what is reported, and of which sets"
    ELSEWHERE = "none of these: where things lie, and how fast they go"


Value = TypeVar("Value")

InFeatures = Annotated[Value, Influence.FEATURES]
"""A setting that is part of the identity of a run."""

InModels = Annotated[Value, Influence.MODELS]
"""A setting that is part of the identity of a meta model, beside the samples and features it is fitted on."""

InReport = Annotated[Value, Influence.REPORT]
"""A setting that may change without anything having to be computed anew, but says what a run is for."""

Elsewhere = Annotated[Value, Influence.ELSEWHERE]
"""A setting that changes nothing in a run, or that shows in something else: a hash. It may differ between machines."""


def influence_of(section: type[Section], name: str) -> Influence | None:
    """What a setting is declared to influence; None if it is not declared."""
    return next((entry for entry in section.model_fields[name].metadata if isinstance(entry, Influence)), None)


def settings_of(section: Section, *influences: Influence) -> dict[str, Any]:
    """The settings of a section that influence something, as plain JSON values.

    Those of sections in it are among them, in a list of sections by their places.
    """
    kind = type(section)
    chosen = {name for name in kind.model_fields if influence_of(kind, name) in influences}
    nested = {
        name: settings_of(value, *influences)
        for name in kind.model_fields
        if isinstance(value := getattr(section, name), Section)
    }
    for name in kind.model_fields:
        value = getattr(section, name)
        if isinstance(value, list) and value and isinstance(value[0], Section):
            nested[name] = {str(place): settings_of(each, *influences) for place, each in enumerate(value)}
    return section.model_dump(mode="json", include=chosen - nested.keys()) | {
        name: found for name, found in nested.items() if found
    }
