"""The last layer of a classifier in a run folder: what turns penultimate features into logits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ..errors import StoreError
from ..files import replacing

NAME = "head.safetensors"


@dataclass(frozen=True, kw_only=True)
class Head:
    """A linear layer, `features @ weight.T + bias`.

    Attributes:
        weight: (K, D) float64.
        bias: (K,) float64, zeros for a layer without.
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]


def write_head(run: Path, head: Head) -> None:
    """Writes the last layer to a run folder."""
    with replacing(run / NAME) as temporary:
        temporary.write_bytes(save({"weight": np.ascontiguousarray(head.weight), "bias": head.bias}))


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
