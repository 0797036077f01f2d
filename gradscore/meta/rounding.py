"""Which inputs of meta models are rounding: computed again, in another batch, they come out as another number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..system import BoolArray, FloatArray

TOLERANCE = 1e-3
"""Spreads among ordinary samples that an input may move by when a sample is computed again.

It is what scores may move by. A score is a sum over many inputs, whose rounding is independent, so relative to its own
spread it moves less than they do. In float32, inputs of five networks move by 1e-7 to 1e-5, those that are rounding by
0.05 to 5.
"""

UNITS = 16
"""What an input may move by in units of rounding, where that is more: everything moves by several in bfloat16."""

SHARE = 0.1
"""Of the samples computed twice, the share that has to move further.

A mean that happens to be nearly zero does so in one sample of a thousand, which says nothing against its input.
"""


@dataclass(frozen=True)
class Twice:
    """The rows of some samples that were computed twice.

    Attributes:
        once: the first time.
        again: the second time, the same samples and columns.
        unit: of rounding: the distance from 1 to the next larger number of the type that the network computes in.
    """

    once: pd.DataFrame
    again: pd.DataFrame
    unit: float

    @property
    def usable(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both, of the samples whose values are finite both times."""
        numbers = self.once.select_dtypes(np.float64).columns
        finite = [np.isfinite(each[numbers].to_numpy()).all(axis=1) for each in (self.once, self.again)]
        both = np.logical_and(*finite)
        return self.once[both].reset_index(drop=True), self.again[both].reset_index(drop=True)


def tolerance(unit: float) -> float:
    """What an input may move by, in spreads among ordinary samples."""
    return max(TOLERANCE, UNITS * unit)


def are_rounding(once: FloatArray, again: FloatArray, *, unit: float) -> BoolArray:
    """Which inputs are rounding.

    Args:
        once: (n, D) scaled inputs of samples.
        again: (n, D) those of the same samples, computed again.
        unit: of rounding.

    Returns:
        (D,) those that move by more than `tolerance` in more than `SHARE` of the samples; none without samples.
    """
    if not len(once):
        return np.zeros(once.shape[1], dtype=np.bool_)
    moved = np.abs(again - once) > tolerance(unit)
    return np.asarray(moved.mean(axis=0) > SHARE, dtype=np.bool_)
