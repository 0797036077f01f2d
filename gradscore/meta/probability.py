"""From the log-odds of a meta model to probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import expit

from ..errors import EvaluationError
from ..system import FloatArray

_FARTHEST = 1000.0
"""Log-odds beyond which every probability is 0 or 1 in float64."""


def probabilities(log_odds: ArrayLike, *, shift: float = 0.0) -> FloatArray:
    """Probabilities (N,) in [0, 1] from log-odds (N,).

    Args:
        log_odds: of a model fitted with both classes counting the same, as if they were equally common.
        shift: `prevalence_shift` for the share of positives that the probabilities are for; 0 for one half.
    """
    return np.asarray(expit(np.asarray(log_odds, dtype=np.float64) + shift))


def prevalence_shift(log_odds: ArrayLike, *, share: float) -> float:
    """What to add to log-odds so that the mean probability is the share of positives.

    The logarithm of the odds of the share would do for an unpenalised fit of the truth (Saerens, Latinne and
    Decaestecker 2002); a penalty draws log-odds together, so the shift is solved for on the samples themselves.

    Args:
        log_odds: (N,) of the samples.
        share: of positives among them, between 0 and 1.

    Raises:
        EvaluationError: the share is 0 or 1.
    """
    values = np.asarray(log_odds, dtype=np.float64)
    if not 0 < share < 1:
        raise EvaluationError(f"calibration: wanted samples of two classes, got a share of {share:g} positives")
    farthest = _FARTHEST + float(np.abs(values).max(initial=0.0))
    return float(brentq(lambda shift: float(expit(values + shift).mean()) - share, -farthest, farthest))
