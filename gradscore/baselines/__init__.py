"""Scores without gradients: what meta models look at beside them, and have to beat.

In come ordinary samples, by their logits and, where a run stores them, the features before the last layer and the same
of augmentations of them; out come tables of scores in float64, higher = more likely wrong or out of distribution.
`baseline` says what a baseline is, `table` lists them and holds all of a run; `logits` and `penultimate` are where they
are computed. What they learn is plain arrays.
"""

from __future__ import annotations

from .baseline import Arrays, Baseline, Neighbours, Ordinary, Samples, learns_nothing, of_logits
from .penultimate import Bank
from .table import BASELINES, OVER_AUGMENTATIONS, FittedBaselines, plain_name

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
