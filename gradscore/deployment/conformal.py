"""Split-conformal p-values and thresholds: false-alarm rates that hold for any score and any sample size.

A calibration sample and a new one of the same distribution are exchangeable, provided that neither fitted the
classifier or the meta model. Then the rank of the new score among the calibration scores is (super)uniform, whatever
the score is, and flagging p <= alpha raises false alarms at a rate of at most alpha, on average over calibrations.

Source: Vovk, Gammerman and Shafer, 2005; Bates, Candes, Lei, Romano and Sesia, 2023, for the use against OOD samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from ..errors import EvaluationError
from ..system import FloatArray


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Above which score a sample is flagged.

    Attributes:
        value: a score; a sample is flagged when its score is greater.
        alpha: bound of the false-alarm rate.
        n: calibration samples it comes from.
        rank: k; the threshold is the k-th largest calibration score.
    """

    value: float
    alpha: float
    n: int
    rank: int

    def realised_rate(self, *, level: float = 0.9) -> tuple[float, float]:
        """Where the false-alarm rate of this very calibration lies with probability `level`.

        The bound alpha is one on average over calibrations; for scores without ties the rate given the calibration
        follows a beta distribution with parameters k and n + 1 - k.

        Source: Vovk, 2012.
        """
        law = beta(self.rank, self.n + 1 - self.rank)
        return float(law.ppf((1 - level) / 2)), float(law.ppf((1 + level) / 2))


def p_values(calibration: ArrayLike, scores: ArrayLike) -> FloatArray:
    """How unusual scores are among those of the calibration samples.

    Args:
        calibration: (n,) scores, in any order, higher = more unusual.
        scores: (N,) scores to judge.

    Returns:
        (N,) (1 + number of calibration scores at or above the score) / (n + 1), in [1 / (n + 1), 1].

    Raises:
        EvaluationError: no calibration score, or a value that is not finite.

    Example:
        >>> p_values([1.0, 2.0, 3.0], [2.5, 2.0, 9.0]).tolist()
        [0.5, 0.75, 0.25]
    """
    ordered = np.sort(_checked(calibration, "calibration scores"))
    values = _finite(scores, "scores")
    at_or_above = len(ordered) - np.searchsorted(ordered, values, side="left")
    return np.asarray((1 + at_or_above) / (len(ordered) + 1), dtype=np.float64)


def threshold(calibration: ArrayLike, alpha: float) -> Threshold:
    """The threshold that flags exactly the samples with a p-value of at most alpha.

    Args:
        calibration: (n,) scores, in any order.
        alpha: bound of the false-alarm rate, in (0, 1).

    Returns:
        The threshold.

    Raises:
        EvaluationError: alpha is out of range, a score is not finite, or there are fewer than `samples_needed(alpha)`
            calibration samples.

    Example:
        >>> threshold([1.0, 2.0, 3.0, 4.0], alpha=0.4).value
        3.0
    """
    needed = samples_needed(alpha)
    values = np.sort(_finite(calibration, "calibration scores"))
    if len(values) < needed:
        raise EvaluationError(
            f"a false-alarm rate of {alpha:g} needs at least {needed} calibration samples, got {len(values)}; "
            "add samples to data.in_dist.calibration (in Python: calibration=...), or allow a higher rate"
        )
    rank = math.floor(_exact(alpha) * (len(values) + 1))
    return Threshold(value=float(values[-rank]), alpha=alpha, n=len(values), rank=rank)


def samples_needed(alpha: float) -> int:
    """The smallest number of calibration samples with which a p-value can be as small as alpha: ceil(1 / alpha) - 1.

    Example:
        >>> samples_needed(0.05)
        19
    """
    if not 0 < alpha < 1:
        raise EvaluationError(f"alpha: wanted a rate between 0 and 1, got {alpha:g}")
    return math.ceil(1 / _exact(alpha)) - 1


def _exact(alpha: float) -> Fraction:
    """Alpha as it is written: 0.29 is 29/100, not the nearest float, whose hundredfold rounds down to 28."""
    return Fraction(repr(float(alpha)))


def _checked(values: ArrayLike, name: str) -> FloatArray:
    array = _finite(values, name)
    if not len(array):
        raise EvaluationError(f"{name}: wanted at least one, got none")
    return array


def _finite(values: ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise EvaluationError(f"{name}: wanted shape (N,), got {array.shape}")
    if not np.isfinite(array).all():
        raise EvaluationError(f"{name}: {int((~np.isfinite(array)).sum())} of {len(array)} are not finite")
    return array
