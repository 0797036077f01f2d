"""Meta models on disk: plain arrays (safetensors) and JSON, so that loading one never runs code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..errors import StoreError
from ..system import parse_json, write_bytes, write_text

SCHEMA = 4
ARRAYS = "arrays.safetensors"
DESCRIPTION = "model.json"

Arrays = dict[str, NDArray[Any]]


def write_model(folder: Path, arrays: Mapping[str, NDArray[Any]], description: Mapping[str, Any]) -> None:
    """Writes the two files of a model; the description comes last and holds a checksum of the arrays."""
    content = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
    write_bytes(folder / ARRAYS, content)
    whole = {"schema": SCHEMA, "arrays_sha256": hashlib.sha256(content).hexdigest(), **description}
    write_text(folder / DESCRIPTION, json.dumps(whole, indent=1, allow_nan=False) + "\n")


def read_model(folder: Path) -> tuple[Arrays, dict[str, Any]]:
    """Reads what `write_model` wrote.

    Raises:
        StoreError: a file is missing or damaged, the two do not belong together, or the schema is another one.
    """
    description = _description(folder / DESCRIPTION)
    path = folder / ARRAYS
    content = _bytes(path)
    if hashlib.sha256(content).hexdigest() != description.get("arrays_sha256"):
        raise StoreError(f"{path}: damaged, or not the arrays {DESCRIPTION} belongs to; run fit-meta again")
    try:
        return dict(load(content)), description
    except SafetensorError as error:
        raise StoreError(f"{path}: not readable as safetensors ({error}); run fit-meta again") from None


def read_notes(folder: Path) -> dict[str, Any]:
    """What a stored model says of how it was fitted.

    Raises:
        StoreError: the description is missing or damaged.
    """
    notes = _description(folder / DESCRIPTION).get("notes", {})
    return dict(notes) if isinstance(notes, dict) else {}


def _description(path: Path) -> dict[str, Any]:
    try:
        description = parse_json(_bytes(path))
    except ValueError:
        raise StoreError(f"{path}: damaged, this is not JSON; run fit-meta again") from None
    schema = description.get("schema") if isinstance(description, dict) else None
    if schema != SCHEMA:
        raise StoreError(f"{path}: wanted a meta model of schema {SCHEMA}, got {schema}; run fit-meta again")
    return dict(description)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; run fit-meta to write it") from None
