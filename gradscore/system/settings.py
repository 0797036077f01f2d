"""Kinds of values in settings and their checks, and what each setting influences."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo

from .text import address_problem, as_address, is_address


class Section(BaseModel):
    """A section of settings: no unknown keys, and nothing changes after it was checked.

    The text below a setting is its description, which docs/configuration.md shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def anchored(path: Path, info: ValidationInfo) -> Path:
    """`path` made absolute against the folder of the configuration file, where the validation names one.

    An address in object storage stays as it is.
    """
    base = (info.context or {}).get("base")
    return path if base is None or is_address(path) else (base / path.expanduser()).resolve()


def as_written(given: Any) -> Any:
    """A text that names a place, if it is not an address with a mistake in it.

    Raises:
        ValueError: it is one.
    """
    if isinstance(given, str) and (problem := address_problem(given)):
        raise ValueError(problem)
    return given


def without_repeats(values: list[str]) -> list[str]:
    """`values`, none of which may be named twice."""
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"named more than once: {', '.join(repeated)}")
    return values


Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(without_repeats)]
AnchoredPath = Annotated[
    Path,
    BeforeValidator(as_written),
    AfterValidator(anchored),
    PlainSerializer(as_address, return_type=str, when_used="json"),
]


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
