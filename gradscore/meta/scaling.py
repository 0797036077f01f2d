"""Heavy-tailed columns on a scale that linear models can work with: logarithms, and robust centres and spreads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from ..errors import EvaluationError
from ..system import FloatArray

LIMIT = 10.0
"""Scaled values are clipped to this many spreads on either side of the centre.

That touches 0.5 % of the values of the digits test split and 10 % of those of noise. The AUROC for wrong predictions is
0.923 so, 0.918 with 5, 0.924 with 20 and 0.674 without a limit: heavy tails reach 15,000 spreads.
"""

_IQR_OF_NORMAL = 1.3489795003921634
"""Interquartile range of a normal distribution in its standard deviations: twice the quantile at 3/4."""

_CONSTANT = 1e-12
"""Columns are constant below this spread, relative to the centre: float64 rounds to 1e-16, and a few thousand
operations lose four digits at most."""

_SMALLEST = 5e-324
"""The smallest float64 above zero."""


class RobustLogScaler(TransformerMixin, BaseEstimator):
    """Logarithm of the magnitude where wanted, then centre and spread that outliers hardly move, then a clip.

    A magnitude column becomes log10 |x|, no smaller than a tenth of the smallest magnitude above zero it was fitted
    on. The centre is the median; the spread is the interquartile range in units of a normal's standard deviation, or
    the standard deviation where that range is zero. Columns without spread become zero.

    Args:
        logarithmic: (D,) bool, which columns are magnitudes; None for all.
        limit: bound of the scaled values.

    Attributes:
        floor_: (D,) smallest magnitude told apart.
        centre_: (D,) subtracted, after the logarithm.
        spread_: (D,) divided by; zero marks a constant column.
    """

    def __init__(self, logarithmic: ArrayLike | None = None, limit: float = LIMIT) -> None:
        """Takes the settings."""
        self.logarithmic = logarithmic
        self.limit = limit

    def fit(self, x: ArrayLike, y: None = None) -> Self:  # noqa: ARG002  scikit-learn hands on a y
        """Learns floor, centre and spread from `x` (N, D), N >= 1; `EvaluationError` on values that are not finite."""
        values, names = _matrix(x)
        if not len(values):
            raise EvaluationError("scaling: wanted at least one sample to fit on, got none")
        magnitudes = np.abs(values)
        smallest = np.where(magnitudes > 0, magnitudes, np.inf).min(axis=0)
        self.n_features_in_ = values.shape[1]
        self.floor_: FloatArray = np.where(np.isfinite(smallest), np.maximum(smallest / 10, _SMALLEST), 1.0)
        levels = self._levels(values, names)
        low, self.centre_, high = np.quantile(levels, [0.25, 0.5, 0.75], axis=0)
        self.spread_: FloatArray = (high - low) / _IQR_OF_NORMAL
        least = _CONSTANT * np.maximum(1.0, np.abs(self.centre_))
        negligible = self.spread_ <= least
        deviation = levels.std(axis=0)
        deviation[np.ptp(levels, axis=0) <= least] = 0.0
        self.spread_ = np.where(negligible, deviation, self.spread_)
        return self

    def transform(self, x: ArrayLike) -> FloatArray:
        """Scaled values (N, D) within +-limit; `EvaluationError` on values that are not finite or another D."""
        values, names = _matrix(x)
        if values.shape[1] != self.n_features_in_:
            raise EvaluationError(f"scaling: wanted {self.n_features_in_} columns as fitted, got {values.shape[1]}")
        constant = self.spread_ == 0
        scaled = (self._levels(values, names) - self.centre_) / np.where(constant, 1.0, self.spread_)
        scaled[:, constant] = 0.0
        return np.asarray(np.clip(scaled, -self.limit, self.limit), dtype=np.float64)

    def _levels(self, values: FloatArray, names: Sequence[str]) -> FloatArray:
        check_finite(values, names)
        return np.where(self._logarithmic(), np.log10(np.maximum(np.abs(values), self.floor_)), values)

    def _logarithmic(self) -> NDArray[np.bool_]:
        return np.asarray(True if self.logarithmic is None else self.logarithmic, dtype=bool)


def _matrix(x: Any) -> tuple[FloatArray, list[str]]:
    # Samples one after the other in memory: the last bit of a sum must not depend on the number of samples.
    values = np.ascontiguousarray(x, dtype=np.float64)
    if values.ndim != 2:
        raise EvaluationError(f"scaling: wanted a table (N, D), got shape {values.shape}")
    return values, list(x.columns) if isinstance(x, pd.DataFrame) else [str(place) for place in range(values.shape[1])]


def check_finite(values: FloatArray, names: Sequence[str]) -> None:
    """Makes sure that all values (N, D) of columns of these names are finite; `EvaluationError` if not."""
    bad = (~np.isfinite(values)).sum(axis=0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        others = int((bad > 0).sum()) - 1
        raise EvaluationError(
            f"feature '{names[first]}': {bad[first]} of {len(values)} samples hold values that are not finite"
            + (f", and so do {others} other features" if others else "")
            + "; find the samples in the feature table and leave them out, or leave out the feature"
        )
