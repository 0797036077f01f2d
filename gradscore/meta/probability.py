"""From the log-odds of a meta model to probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from ..errors import EvaluationError
from ..system import FloatArray


def at_prevalence(log_odds: ArrayLike, *, n: int, n_positive: int) -> FloatArray:
    """Probabilities from the log-odds of a model fitted with both classes counting the same.

    Such a model takes positives to be as common as negatives; the true odds are those of the samples it was fitted on.

    Source: Saerens, Latinne and Decaestecker, 2002.

    Args:
        log_odds: (N,).
        n: samples the model was fitted on.
        n_positive: positives among them, between 1 and n - 1.

    Returns:
        (N,) in [0, 1].

    Raises:
        EvaluationError: it was fitted on one class only.
    """
    if not 0 < n_positive < n:
        raise EvaluationError(f"calibration: wanted a model fitted on two classes, got {n_positive} positive of {n}")
    return np.asarray(expit(np.asarray(log_odds, dtype=np.float64) + np.log(n_positive) - np.log(n - n_positive)))
