"""Is a probability what it says: of the samples given 30 %, are 30 % positive?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from ..errors import EvaluationError
from ..system import FloatArray
from .metrics import checked

BINS = 15
"""As in Guo et al., 2017."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """A reliability curve: one point for each bin that holds samples.

    Attributes:
        predicted: (B,) mean probability of the samples in the bin.
        observed: (B,) share of positives among them.
        count: (B,) how many they are.
    """

    predicted: FloatArray
    observed: FloatArray
    count: FloatArray


def brier(probabilities: ArrayLike, positive: ArrayLike) -> float | None:
    """Mean squared difference of probability and truth; lower is better, p (1 - p) for a constant at prevalence p.

    Source: Brier, 1950.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.

    Returns:
        A value in [0, 1], or None without a sample.

    Raises:
        EvaluationError: shapes differ, or a value outside [0, 1].
    """
    p, truth = _probabilities(probabilities, positive)
    return float(np.mean((p - truth) ** 2)) if len(p) else None


def brier_interval(probabilities: ArrayLike, positive: ArrayLike, *, level: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of `brier`, a mean over samples, by the normal approximation.

    There is none for the calibration error: it is never below zero, so that its estimate is too high, the more so the
    fewer samples, and intervals around it covered a calibration error of zero in half of the simulated sets at best.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.
        level: coverage.

    Returns:
        (low, high) in [0, 1], or None where the squared differences do not vary: that says nothing of how far their
        mean is from the true one.

    Raises:
        EvaluationError: shapes differ, or a value outside [0, 1].
    """
    p, truth = _probabilities(probabilities, positive)
    squares = (p - truth) ** 2
    if len(p) < 2 or np.ptp(squares) <= np.finfo(np.float64).eps:
        return None
    half = float(norm.ppf(0.5 + level / 2) * squares.std(ddof=1) / np.sqrt(len(p)))
    return max(0.0, float(squares.mean()) - half), min(1.0, float(squares.mean()) + half)


def expected_calibration_error(probabilities: ArrayLike, positive: ArrayLike, *, bins: int = BINS) -> float | None:
    """Mean gap between predicted and observed share of positives over bins of equal width, by samples in the bin.

    Source: Guo et al., 2017, equation 3, for the probability of being positive.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.
        bins: how many bins [0, 1] is cut into.

    Returns:
        A value in [0, 1], lower is better, or None without a sample.

    Raises:
        EvaluationError: shapes differ, or a value outside [0, 1].
    """
    curve = reliability(probabilities, positive, bins=bins)
    if not len(curve.count):
        return None
    return float(np.average(np.abs(curve.predicted - curve.observed), weights=curve.count))


def reliability(probabilities: ArrayLike, positive: ArrayLike, *, bins: int = BINS) -> Reliability:
    """The reliability curve over bins of equal width.

    Args:
        probabilities: (N,) in [0, 1], of being positive.
        positive: (N,) bool.
        bins: how many bins [0, 1] is cut into.

    Raises:
        EvaluationError: shapes differ, or a value outside [0, 1].
    """
    p, truth = _probabilities(probabilities, positive)
    place = bin_of(p, bins=bins)
    count = np.bincount(place, minlength=bins).astype(np.float64)
    held = count > 0
    predicted = np.bincount(place, weights=p, minlength=bins)[held] / count[held]
    observed = np.bincount(place, weights=truth, minlength=bins)[held] / count[held]
    return Reliability(predicted=predicted, observed=observed, count=count[held])


def bin_of(probabilities: FloatArray, *, bins: int = BINS) -> NDArray[np.int64]:
    """The bin (N,) of each probability; the last one includes 1."""
    return np.minimum((probabilities * bins).astype(np.int64), bins - 1)


def _probabilities(probabilities: ArrayLike, positive: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_]]:
    p, truth = checked(probabilities, positive)
    if len(p) and not (p.min() >= 0 and p.max() <= 1):
        raise EvaluationError(f"probabilities: wanted values in [0, 1], got {p.min():g} to {p.max():g}")
    return p, truth
