"""Kinds of values in a configuration, and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from .config_source import closest

Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Protocol = Literal["known", "leave_one_out", "in_dist_only"]
Device = Literal["auto", "cpu", "cuda"]

EXTRA_COLUMNS = ("output_gradient_norm", "activation_rate", "gradient_cosine")
"""What `features.columns` may name; see `gradscore.columns`."""

_FILE_SOURCES = ("folder", "npz")


def anchored(path: Path, info: ValidationInfo) -> Path:
    """`path` made absolute against the folder of the configuration file, where the validation names one."""
    base = (info.context or {}).get("base")
    return path if base is None else (base / path.expanduser()).resolve()


def anchored_model_source(source: str, info: ValidationInfo) -> str:
    """A model source with the path of a Python file made absolute."""
    kind, _, rest = source.partition(":")
    file, _, factory = rest.rpartition(":")
    if kind != "python" or not file.endswith(".py"):
        return source
    return f"python:{anchored(Path(file), info)}:{factory}"


def anchored_data_source(source: str, info: ValidationInfo) -> str:
    """A data source with the path of a file or folder made absolute."""
    kind, _, rest = source.partition(":")
    return f"{kind}:{anchored(Path(rest), info)}" if kind in _FILE_SOURCES and rest else source


def without_repeats(values: list[str]) -> list[str]:
    """`values`, none of which may be named twice."""
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"named more than once: {', '.join(repeated)}")
    return values


def _size(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(f"wanted a positive number of pixels, [height, width] or null, got {value!r}") from None


def _known_column(name: str) -> str:
    if name not in EXTRA_COLUMNS:
        raise ValueError(f"no column {name!r}; {closest(name, EXTRA_COLUMNS)}")
    return name


Size = Annotated[Positive | tuple[Positive, Positive] | None, WrapValidator(_size)]
AnchoredPath = Annotated[Path, AfterValidator(anchored)]
Columns = Annotated[list[Annotated[str, AfterValidator(_known_column)]], AfterValidator(without_repeats)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(without_repeats)]
ModelSource = Annotated[str, AfterValidator(anchored_model_source)]
DataSource = Annotated[str, AfterValidator(anchored_data_source)]
