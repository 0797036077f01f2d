"""Intervals of the FPR at a TPR of 95 %.

Two things are uncertain: the share of the others beyond the threshold (Wilson's interval), and the threshold itself, a
quantile, between two order statistics (Thompson, 1936). Their distances from the rate are squared and added, as
Newcombe (1998) does for a difference of two rates; Zou and Donner (2008) show that it holds for any two estimates.
Where the threshold is a score that several samples share, the interval goes from the lower end at the highest threshold
to the upper end at the lowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom, binomtest

from ..system import BoolArray, FloatArray
from .metrics import checked

Bounds = tuple[float, float]

ENOUGH = 20
"""With fewer samples of a class, intervals are so wide that they say little."""

RATES: Mapping[str, int] = MappingProxyType({"fpr95_ood_positive": 1, "fpr95_id_positive": -1})
"""Name -> the sign of the scores with which it is the share of negatives at or above 95 % of the positives."""


def rate_bounds(scores: ArrayLike, positive: ArrayLike) -> dict[str, Bounds]:
    """95 % intervals of the FPR95s, in both conventions.

    Args:
        scores: (N,) higher = more uncertain.
        positive: (N,) bool.

    Returns:
        Name, of `RATES` -> (low, high) in [0, 1]; empty with fewer than `ENOUGH` samples of a class.

    Raises:
        EvaluationError: shapes differ, or a score is not finite.
    """
    values, truth = checked(scores, positive)
    if min(int(truth.sum()), int((~truth).sum())) < ENOUGH:
        return {}
    return {name: _bounds(sign * values, truth if sign > 0 else ~truth) for name, sign in RATES.items()}


def _bounds(values: FloatArray, truth: BoolArray) -> Bounds:
    found, others = np.sort(values[truth]), np.sort(values[~truth])
    fewest, most = (int(binom.ppf(share, len(found), 0.05)) for share in (0.025, 0.975))
    lowest = found[fewest - 1] if fewest else -np.inf
    thresholds = np.array([lowest, found[len(found) - -(-95 * len(found) // 100)], found[min(most, len(found) - 1)]])
    flagged = len(others) - np.searchsorted(others, thresholds, side="left")
    above, rate, below = flagged / len(others)
    own = _share(flagged[1], others)
    if np.count_nonzero(found == thresholds[1]) > 1:
        # On a step of tied scores the rate jumps as the threshold moves: errors do not add up like distances.
        return _share(flagged[2], others).low, _share(flagged[0], others).high
    low = rate - np.hypot(rate - own.low, rate - below)
    high = rate + np.hypot(own.high - rate, above - rate)
    return max(0.0, float(low)), min(1.0, float(high))


def _share(flagged: np.intp, others: FloatArray) -> Any:
    """Wilson's interval of the share of the others that are flagged, with `low` and `high`."""
    return binomtest(int(flagged), len(others)).proportion_ci(method="wilson")
