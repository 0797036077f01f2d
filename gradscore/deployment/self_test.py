"""Inputs whose answers a bundle notes, made of what samples of a model look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..system import Inputs
from .bundle import TestInputs

SELF_TEST_SAMPLES = 8
"""Inputs of a self-test: 1.2 MB of the bundle for 224 x 224 pixels in colour."""


def self_test_of(samples: Inputs) -> TestInputs:
    """What a self-test asks a model that takes such samples (n, ...), n at least 1.

    Bytes of noise for floats; for whole numbers, those that stand at the same place in one of the samples.
    """
    if isinstance(samples, Tensor):
        return _like(samples)
    return {name: _like(each) for name, each in samples.items()}


def self_test_inputs(images: TestInputs) -> Inputs:
    """The model inputs (n, ...) of a self-test: bytes as float32 in -1 to 1, others as they are."""
    if isinstance(images, Mapping):
        return {name: _as_input(array) for name, array in images.items()}
    return _as_input(images)


def _like(samples: Tensor) -> NDArray[Any]:
    random = np.random.default_rng(0)
    shape = (SELF_TEST_SAMPLES, *samples.shape[1:])
    if samples.is_floating_point():
        return random.integers(0, 256, shape, dtype=np.uint8)
    values = samples.cpu().numpy()
    return np.take_along_axis(values, random.integers(0, len(values), shape), axis=0)


def _as_input(array: NDArray[Any]) -> Tensor:
    found = torch.from_numpy(array.copy())
    return found.float() / 127.5 - 1.0 if found.dtype == torch.uint8 else found
