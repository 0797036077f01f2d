"""Meta models on disk: plain arrays (safetensors) and JSON, so that loading one never runs code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..errors import StoreError
from ..system import parse_json, write_bytes, write_text

FORMAT: Literal[5] = 5
ARRAYS = "arrays.safetensors"
DESCRIPTION = "model.json"


class Description(BaseModel):
    """The JSON beside the arrays; kinds of models add to it.

    Attributes:
        format: of the two files.
        arrays_sha256: checksum of the file of the arrays.
    """

    format: Literal[5] = FORMAT
    arrays_sha256: str = ""


AnyDescription = TypeVar("AnyDescription", bound=Description)


def write_model(folder: Path, arrays: Mapping[str, NDArray[Any]], description: Description) -> None:
    """Writes the two files of a model; the description comes last and holds a checksum of the arrays."""
    content = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
    write_bytes(folder / ARRAYS, content)
    whole = description.model_copy(update={"arrays_sha256": hashlib.sha256(content).hexdigest()})
    write_text(folder / DESCRIPTION, json.dumps(whole.model_dump(), indent=1, allow_nan=False) + "\n")


def read_model(folder: Path, kind: type[AnyDescription]) -> tuple[dict[str, NDArray[Any]], AnyDescription]:
    """Reads what `write_model` wrote.

    Raises:
        StoreError: a file is missing or damaged, the two do not belong together, or the format is another one.
    """
    description = read_description(folder, kind)
    path = folder / ARRAYS
    content = _bytes(path)
    if hashlib.sha256(content).hexdigest() != description.arrays_sha256:
        raise StoreError(f"{path}: damaged, or not the arrays {DESCRIPTION} belongs to; run fit-meta again")
    try:
        return dict(load(content)), description
    except SafetensorError as error:
        raise StoreError(f"{path}: not readable as safetensors ({error}); run fit-meta again") from None


def read_description(folder: Path, kind: type[AnyDescription]) -> AnyDescription:
    """Reads the description of a model alone.

    Raises:
        StoreError: it is missing or damaged, of another kind, or the format is another one.
    """
    path = folder / DESCRIPTION
    try:
        found = parse_json(_bytes(path))
    except ValueError:
        raise StoreError(f"{path}: damaged, this is not JSON; run fit-meta again") from None
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise StoreError(
            f"{path}: not a meta model of format {FORMAT} ({where}: {problem['msg']}); run fit-meta again"
        ) from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; run fit-meta to write it") from None
