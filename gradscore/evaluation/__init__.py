"""How good the scores are: protocols, figures of merit and their intervals.

In comes a run folder; out come meta models in `meta/` (`fit_run`) and records with intervals (`evaluate_run`).
`protocols` says which samples fit and which are reported, `fits` fits the models and `fit_identity` says what with,
`score_tables` keeps the scores of all samples, `records` turns them into figures, by `metrics`, `delong` and
`intervals`; `evaluation_report` puts all together, and `verdict` says what to read first. `duplicates`,
`near_duplicates` and `controls` look for mistakes, `comparison` compares runs.
"""

from __future__ import annotations

from .comparison import Compared, Comparison, compare_runs
from .controls import control_notices, permuted_labels
from .delong import paired_delong, paired_delong_of_truths, unpaired_delong
from .evaluation_report import PAGES, EvaluationReport, evaluate_run
from .fit_identity import FitIdentities, fit_label
from .fits import FitReport, Fitted, fit_run, specs_of
from .metrics import auroc, reliability, risk_coverage
from .records import CLASSIFIER, FEW_SAMPLES, GAIN, Record, is_group
from .score_tables import (
    LOGIT_LR,
    MISCLASSIFICATION_MODEL,
    SCORE_LR,
    ScoreFile,
    positive_of,
    read_scores,
)
from .verdict import COMPARED, HEADLINE_PROTOCOLS, Outcome, Verdict, baselines, verdicts

__all__ = [
    "CLASSIFIER",
    "COMPARED",
    "FEW_SAMPLES",
    "GAIN",
    "HEADLINE_PROTOCOLS",
    "LOGIT_LR",
    "MISCLASSIFICATION_MODEL",
    "PAGES",
    "SCORE_LR",
    "Compared",
    "Comparison",
    "EvaluationReport",
    "FitIdentities",
    "FitReport",
    "Fitted",
    "Outcome",
    "Record",
    "ScoreFile",
    "Verdict",
    "auroc",
    "baselines",
    "compare_runs",
    "control_notices",
    "evaluate_run",
    "fit_label",
    "fit_run",
    "is_group",
    "paired_delong",
    "paired_delong_of_truths",
    "permuted_labels",
    "positive_of",
    "read_scores",
    "reliability",
    "risk_coverage",
    "specs_of",
    "unpaired_delong",
    "verdicts",
]
