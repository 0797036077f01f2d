"""From heavy-tailed gradient features to inputs of a linear model: shape features, logarithms, robust scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from ..columns import COSINE, RATE, feature_columns, logit_columns
from ..errors import EvaluationError
from ..scores import SCORES
from ..system import FloatArray

SCORE_PREFIX = "score/"
SIGNED_SUFFIX = "mean:l1"
LIMIT = 10.0
"""Scaled values are clipped to this many spreads on either side of the centre."""

NOISE = 1e-5
"""Means below this share of the standard deviation, and relative differences below it, are rounding in float32."""

_BOUNDED = (f"/{COSINE}", f"/{RATE}")
_DECIMALS = 5
_IQR_OF_NORMAL = 1.3489795003921634
_RATIOS = {"l2:l1": ("l2", 1.0), "max:l1": ("max", 1.0), "min:l1": ("min", -1.0), SIGNED_SUFFIX: ("mean", 1.0)}


def meta_inputs(frame: pd.DataFrame) -> pd.DataFrame:
    """The inputs of a meta model: features, shape features of each gradient, and baseline scores of the logits.

    The shape features of a loss and parameter group are the ratios L2/L1, max/L1, -min/L1 and mean/L1 of its
    statistics and its L1 over that of the last group of the loss, wherever the statistics are there. A ratio to an L1
    of zero is zero. A mean that is a hundred-thousandth of the standard deviation or less is rounding (that of a last
    layer is zero, since the gradients at the logits sum to zero), so means count from there on. Cosines and rates count
    to five decimals, since the rest is rounding as well.

    Args:
        frame: a feature table with `logit_0` ... and `<loss>/<group>/<statistic>` columns.

    Returns:
        One float64 column per input; the names of ratios end in `<statistic>:l1` or `l1:last`, those of the scores
        start with `score/`.

    Raises:
        EvaluationError: no feature and no logit column, or a value that is not finite.
    """
    names = feature_columns(frame.columns)
    logits = frame[logit_columns(frame.columns)].to_numpy(dtype=np.float64)
    if not names and not logits.size:
        raise EvaluationError("features: wanted columns <loss>/<group>/<statistic> or logits, got neither")
    _check_finite(frame[names].to_numpy(dtype=np.float64), names)
    raw = {name: _without_rounding(name, frame[name].to_numpy(dtype=np.float64)) for name in names}
    noise = {name: _noise_of_mean(name, raw) for name in names}
    columns = {name: np.copysign(np.maximum(np.abs(values), noise[name]), values) for name, values in raw.items()}
    above = {name: np.copysign(np.maximum(np.abs(values) - noise[name], 0), values) for name, values in raw.items()}
    scores = {f"{SCORE_PREFIX}{name}": score(logits) for name, score in SCORES.items()} if logits.shape[1] > 1 else {}
    return pd.DataFrame({**columns, **_shapes(above), **scores}, index=frame.index)


def logarithmic(names: Sequence[str]) -> NDArray[np.bool_]:
    """Which inputs are magnitudes over many decades.

    Signed ratios, cosines, rates and scores (logarithms already) are not.
    """
    ends = (SIGNED_SUFFIX, *_BOUNDED)
    return np.array([not (name.endswith(ends) or name.startswith(SCORE_PREFIX)) for name in names], dtype=bool)


class RobustLogScaler(TransformerMixin, BaseEstimator):
    """Logarithm of the magnitude where wanted, then centre and spread that outliers hardly move, then a clip.

    A magnitude column becomes log10 |x|, no smaller than a tenth of the smallest magnitude above zero it was fitted
    on. The centre is the median; the spread is the interquartile range in units of a normal's standard deviation, or
    the standard deviation where that range is zero. Columns without spread become zero. Centre and spread are those of
    the samples with `y == 0`, where `y` is given: the ordinary samples are the yardstick.

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

    def fit(self, x: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learns floor, centre and spread from `x` (N, D), N >= 1; `EvaluationError` on values that are not finite."""
        values, names = _matrix(x)
        if not len(values):
            raise EvaluationError("scaling: wanted at least one sample to fit on, got none")
        magnitudes = np.abs(values)
        smallest = np.where(magnitudes > 0, magnitudes, np.inf).min(axis=0)
        self.n_features_in_ = values.shape[1]
        self.floor_: FloatArray = np.where(np.isfinite(smallest), np.maximum(smallest / 10, 5e-324), 1.0)
        levels = self._levels(values, names)
        if y is not None and (np.asarray(y) == 0).any():
            levels = levels[np.asarray(y) == 0]
        low, self.centre_, high = np.quantile(levels, [0.25, 0.5, 0.75], axis=0)
        self.spread_: FloatArray = (high - low) / _IQR_OF_NORMAL
        least = np.where(self._logarithmic(), NOISE, 1e-12 * np.maximum(1.0, np.abs(self.centre_)))
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
        _check_finite(values, names)
        return np.where(self._logarithmic(), np.log10(np.maximum(np.abs(values), self.floor_)), values)

    def _logarithmic(self) -> NDArray[np.bool_]:
        return np.asarray(True if self.logarithmic is None else self.logarithmic, dtype=bool)


def _shapes(columns: dict[str, FloatArray]) -> dict[str, FloatArray]:
    l1_columns = {name.removesuffix("/l1"): values for name, values in columns.items() if name.endswith("/l1")}
    last = {group.split("/", 1)[0]: values for group, values in l1_columns.items()}
    shapes: dict[str, FloatArray] = {}
    for group, l1 in l1_columns.items():
        for suffix, (statistic, sign) in _RATIOS.items():
            if (above := columns.get(f"{group}/{statistic}")) is not None:
                shapes[f"{group}/{suffix}"] = _ratio(sign * above, l1)
        reference = last[group.split("/", 1)[0]]
        if reference is not l1:
            shapes[f"{group}/l1:last"] = _ratio(l1, reference)
    return shapes


def _noise_of_mean(name: str, columns: dict[str, FloatArray]) -> FloatArray | float:
    group, _, statistic = name.rpartition("/")
    deviation = columns.get(f"{group}/std")
    return 0.0 if statistic != "mean" or deviation is None else NOISE * deviation


def _without_rounding(name: str, values: FloatArray) -> FloatArray:
    return values.round(_DECIMALS) if name.endswith(_BOUNDED) else values


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        ratio = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return np.clip(ratio, -np.finfo(np.float64).max, np.finfo(np.float64).max)


def _matrix(x: Any) -> tuple[FloatArray, list[str]]:
    # Samples one after the other in memory: the last bit of a sum must not depend on the number of samples.
    values = np.ascontiguousarray(x, dtype=np.float64)
    if values.ndim != 2:
        raise EvaluationError(f"scaling: wanted a table (N, D), got shape {values.shape}")
    return values, list(x.columns) if isinstance(x, pd.DataFrame) else [str(place) for place in range(values.shape[1])]


def _check_finite(values: FloatArray, names: Sequence[str]) -> None:
    bad = (~np.isfinite(values)).sum(axis=0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        others = int((bad > 0).sum()) - 1
        raise EvaluationError(
            f"feature '{names[first]}': {bad[first]} of {len(values)} samples hold values that are not finite"
            + (f", and so do {others} other features" if others else "")
            + "; find the samples in the feature table and leave them out, or leave out the feature"
        )
