"""Scores without gradients: what meta models look at beside them, and have to beat.

In come ordinary samples, by their logits and, where a run stores them, the features before the last layer and the same
of views of them; out come tables of scores in float64, higher = more likely wrong or out of distribution. `table` lists
the scores, `score` says what one is; `logits`, `penultimate`, `neighbours` and `views` are where they are computed,
`fitted` holds all of a run. What they learn is plain arrays.
"""

from __future__ import annotations

from .fitted import FittedScores, plain_name
from .neighbours import Bank, Neighbours
from .score import Arrays, Ordinary, Samples, Score, learns_nothing, of_logits
from .table import OVER_VIEWS, SCORES

__all__ = [
    "OVER_VIEWS",
    "SCORES",
    "Arrays",
    "Bank",
    "FittedScores",
    "Neighbours",
    "Ordinary",
    "Samples",
    "Score",
    "learns_nothing",
    "of_logits",
    "plain_name",
]
