"""Scores without gradients: of the logits (`logits`), and of the features before the last layer (`penultimate`).

In come arrays of logits or penultimate features; out come scores (N,) in float64, higher = more likely wrong or out of
distribution.
"""

from __future__ import annotations

from .logits import SCORES
from .penultimate import FEATURE_BASELINES, Score, fit_detectors

__all__ = ["FEATURE_BASELINES", "SCORES", "Score", "fit_detectors"]
