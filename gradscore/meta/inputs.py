"""The inputs of meta models: what they make of the columns of a feature table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..columns import COSINE, RATE, feature_columns, logit_columns
from ..errors import EvaluationError
from ..scores import SCORES, Ordinary, Samples, score_names
from ..statistics import STATISTICS
from ..system import BoolArray, FloatArray
from .scaling import NOISE, check_finite

SCORE_PREFIX = "score/"
"""Start of the names of inputs that are scores of the logits."""

SIGNED_SUFFIX = "mean:l1"

_BOUNDED = (f"/{COSINE}", f"/{RATE}")
_DECIMALS = 5
"""Decimals of cosines and rates that count: cosines of the digits model move by 1.5e-6 with the batch size."""


def meta_inputs(frame: pd.DataFrame) -> pd.DataFrame:
    """The inputs of a meta model: features, shape features of each gradient, and baseline scores of the logits.

    The shape features of a loss and parameter group are ratios of its statistics to L1 (those with a `ratio` in
    `STATISTICS`: L2, max, -min, mean) and its L1 over that of the last group of the loss, wherever they are there. A
    ratio to an L1 of zero is zero. A mean that is a hundred-thousandth of the standard deviation or less is rounding
    (that of a last layer is zero, since the gradients at the logits sum to zero), so means count from there on. Cosines
    and rates count to five decimals, since the rest is rounding as well.

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
    check_finite(frame[names].to_numpy(dtype=np.float64), names)
    raw = {name: _without_rounding(name, frame[name].to_numpy(dtype=np.float64)) for name in names}
    noise = {name: _noise_of_mean(name, raw) for name in names}
    columns = {name: np.copysign(np.maximum(np.abs(values), noise[name]), values) for name, values in raw.items()}
    above = {name: np.copysign(np.maximum(np.abs(values) - noise[name], 0), values) for name, values in raw.items()}
    return pd.DataFrame({**columns, **_shapes(above), **_scores(logits)}, index=frame.index)


def logarithmic(names: Sequence[str]) -> BoolArray:
    """Which inputs are magnitudes over many decades.

    Signed ratios, cosines, rates and scores (logarithms already) are not.
    """
    return np.array([_is_magnitude(name) for name in names], dtype=bool)


def _scores(logits: FloatArray) -> dict[str, FloatArray]:
    """The scores of logits (N, K) that meta models look at; none for fewer than two classes."""
    if logits.shape[1] < 2:
        return {}
    samples = Samples(logits=logits)
    nobody = Ordinary(samples=samples, classes=np.zeros(len(logits), dtype=np.int64))
    names = [name for name in score_names("logits") if SCORES[name].is_input]
    return {f"{SCORE_PREFIX}{name}": SCORES[name].fit(nobody)(samples) for name in names}


def _is_magnitude(name: str) -> bool:
    if name.startswith(SCORE_PREFIX) or name.endswith((SIGNED_SUFFIX, *_BOUNDED)):
        return False
    statistic = name.rpartition("/")[2]
    return statistic not in STATISTICS or STATISTICS[statistic].logarithmic


def _shapes(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    l1_columns = {name.removesuffix("/l1"): values for name, values in columns.items() if name.endswith("/l1")}
    last = {group.split("/", 1)[0]: values for group, values in l1_columns.items()}
    shapes: dict[str, FloatArray] = {}
    there = {name.rpartition("/")[2] for name in columns}
    ratios = {name: STATISTICS[name].ratio for name in STATISTICS if name in there}  # packages of others need not load
    for group, l1 in l1_columns.items():
        for statistic, sign in ratios.items():
            above = columns.get(f"{group}/{statistic}")
            if sign is not None and above is not None:
                shapes[f"{group}/{statistic}:l1"] = _ratio(sign * above, l1)
        reference = last[group.split("/", 1)[0]]
        if reference is not l1:
            shapes[f"{group}/l1:last"] = _ratio(l1, reference)
    return shapes


def _noise_of_mean(name: str, columns: Mapping[str, FloatArray]) -> FloatArray | float:
    group, _, statistic = name.rpartition("/")
    deviation = columns.get(f"{group}/std")
    return 0.0 if statistic != "mean" or deviation is None else NOISE * deviation


def _without_rounding(name: str, values: FloatArray) -> FloatArray:
    return values.round(_DECIMALS) if name.endswith(_BOUNDED) else values


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        ratio = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return np.clip(ratio, -np.finfo(np.float64).max, np.finfo(np.float64).max)
