"""Scores without gradients: what meta models look at beside them, and have to beat.

In come ordinary samples, by their logits and, where a run stores them, the features before the last layer and the same
of augmentations of them; out come tables of scores in float64, higher = more likely wrong or out of distribution.
`table` lists the scores, `score` says what one is; `logits`, `penultimate`, `neighbours` and `augmentations` are where
they are computed, `fitted` holds all of a run. What they learn is plain arrays.
"""

from __future__ import annotations

from .baseline import Arrays, Baseline, Ordinary, Samples, learns_nothing, of_logits
from .fitted import FittedBaselines, plain_name
from .neighbours import Bank, Neighbours
from .table import BASELINES, OVER_AUGMENTATIONS

__all__ = [
    "BASELINES",
    "OVER_AUGMENTATIONS",
    "Arrays",
    "Bank",
    "Baseline",
    "FittedBaselines",
    "Neighbours",
    "Ordinary",
    "Samples",
    "learns_nothing",
    "of_logits",
    "plain_name",
]
