"""Inputs whose answers a bundle notes, made of what samples of a model look like."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..data import Batch
from ..deployment import noise

SAMPLES = 8
"""Inputs of a self-test."""


def self_test_of(first: Batch) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Inputs whose answers a bundle notes: noise for floats; for whole numbers, others that stand at the same place."""
    if isinstance(first.images, Tensor):
        floats = first.images.is_floating_point()
        return noise(tuple(first.images.shape[1:])) if floats else _shuffled(first.images)
    return {
        name: noise(tuple(each.shape[1:])).astype(np.float32) / 127.5 - 1
        if each.is_floating_point()
        else _shuffled(each)
        for name, each in first.images.items()
    }


def _shuffled(known: Tensor) -> NDArray[Any]:
    values = known.cpu().numpy()
    rows = np.random.default_rng(0).integers(0, len(values), (SAMPLES, *values.shape[1:]))
    return np.take_along_axis(values, rows, axis=0)
