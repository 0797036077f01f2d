"""The last layer of a classifier in a run folder: what turns penultimate features into logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ..errors import StoreError
from ..models import Head
from ..system import write_bytes

NAME = "head.safetensors"


def write_head(run: Path, head: Head) -> None:
    """Writes the last layer to a run folder."""
    write_bytes(run / NAME, save({"weight": np.ascontiguousarray(head.weight), "bias": head.bias}))


def read_head(run: Path) -> Head:
    """Reads the last layer of a run folder.

    Raises:
        StoreError: it is missing or damaged.
    """
    path = run / NAME
    try:
        return Head(**load_file(path))
    except (OSError, SafetensorError, TypeError) as error:
        raise StoreError(
            f"{path}: the last layer cannot be read ({error}), and baselines need it beside the penultimate features; "
            "restore it, or extract into another folder"
        ) from None
