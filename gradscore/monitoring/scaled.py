"""What is watched of samples on the scale of known samples: standard deviations from their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..deployment import CONFIDENCE
from ..system import FloatArray

FARTHEST = 8.0
"""Standard deviations of the known samples beyond which a value counts as this far."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A scale for some of what is watched.

    Attributes:
        names: of what is watched.
        middle: (m,) means over the known samples.
        width: (m,) standard deviations there, 1 for constants.
    """

    names: Sequence[str]
    middle: FloatArray
    width: FloatArray

    @classmethod
    def by(cls, columns: Mapping[str, FloatArray], names: Sequence[str]) -> Self:
        """The scale of known samples, given by what is watched of them (n,), by name."""
        table = table_of(columns, names)
        width = table.std(axis=0)
        return cls(names=names, middle=table.mean(axis=0), width=np.where(width > 0, width, 1.0))

    def of(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n, m) of other samples, at most `FARTHEST` from 0."""
        return near((table_of(columns, self.names) - self.middle) / self.width)


def near(values: FloatArray) -> FloatArray:
    """Standard deviations, at most `FARTHEST` from 0."""
    return np.clip(values, -FARTHEST, FARTHEST)


def table_of(columns: Mapping[str, FloatArray], names: Sequence[str]) -> FloatArray:
    """(n, m) the columns of these names beside each other; (n, 0) without a name."""
    return np.stack([columns[name] for name in names], axis=1) if names else np.empty((len(columns[CONFIDENCE]), 0))
