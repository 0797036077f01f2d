"""Scores without gradients: what meta models have to beat, and partly look at.

In come ordinary samples, by their logits and, where a run stores them, the features before the last layer; out come
scores (N,) in float64, higher = more likely wrong or out of distribution. `table` lists them, `score` says what a score
is; those of `logits` are functions, those of `penultimate` features are fitted (extra `baselines`).
"""

from __future__ import annotations

from .score import Fitted, Ordinary, Samples, Score, of_logits
from .table import SCORES, score_names

__all__ = ["SCORES", "Fitted", "Ordinary", "Samples", "Score", "of_logits", "score_names"]
