"""Kinds of values in settings, and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo

from .addresses import address_problem, as_address, is_address


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
