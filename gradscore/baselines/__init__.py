"""Scores without gradients: inputs of meta models, and what these have to beat.

In come in-distribution samples, by their logits and, where a run stores them, the features before the last layer and
the same of augmentations of them; out come tables of scores in float64, higher = more likely wrong or out of
distribution. `baselines` lists them and holds all of a run, `formulas` computes them, `neighbours` looks through a
bank. What they learn is plain arrays.
"""

from __future__ import annotations

from .baselines import (
    BASELINES,
    OVER_AUGMENTATIONS,
    FittedBaselines,
    InDistribution,
    NetworkOutputs,
    describe_baseline,
    of_logits,
    plain_name,
)
from .neighbours import Bank
