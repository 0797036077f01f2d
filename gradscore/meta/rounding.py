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
"""Of the samples computed twice, the share that may move further.

A mean that happens to be nearly zero does so in one sample of a thousand, which says nothing against its input.
"""

REACHED = 0.99
"""The share of ordinary samples of which an input that is rounding tells nothing."""


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


def widening(once: FloatArray, again: FloatArray, *, unit: float) -> FloatArray:
    """By how much the spreads of inputs have to be wider, so that rounding moves none by more than `tolerance`.

    Args:
        once: (n, D) scaled inputs of samples.
        again: (n, D) those of the same samples, computed again.
        unit: of rounding.

    Returns:
        (D,) 1 or more: by what all but `SHARE` of the samples move at most; 1 without samples.
    """
    if not len(once):
        return np.ones(once.shape[1])
    moved = np.quantile(np.abs(again - once), 1 - SHARE, axis=0)
    return np.asarray(np.maximum(1.0, moved / tolerance(unit)), dtype=np.float64)


def are_rounding(scaled: FloatArray, wider: FloatArray) -> BoolArray:
    """Which inputs are rounding: those of a wider spread that nearly no sample reaches.

    Others whose rounding shows, as an input that is the same for most samples and tells of a few, keep their place and
    weigh less.

    Args:
        scaled: (N, D) the inputs of ordinary samples in the wider spreads.
        wider: (D,) as `widening` found.
    """
    reached = np.quantile(np.abs(scaled), REACHED, axis=0)
    return np.asarray((wider > 1) & (reached < 1), dtype=np.bool_)
