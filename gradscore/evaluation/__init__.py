"""How good the scores are: protocols, figures of merit and their intervals.

In comes a run folder; out come meta models in `meta/` (`fit_run`) and records with intervals (`evaluate_run`).
`protocols` says which samples fit and which are reported, `fit_identity` what a model was fitted with, `scoring` scores
them, by inputs that `preparation` makes, after `model_fits` fitted them, and `records` and `groups` turn scores into
figures, one score at a time, which `memory_map` keeps; `metrics`, `delong`, `areas`, `rates`, `selective` and
`calibration` compute; `controls`, `duplicates` and `near_duplicates` (whose rule is in `nearness`) look for mistakes,
by what `contents` have in common, `run_comparison` compares runs; `verdict` says what to read first.
"""

from __future__ import annotations

from .calibration import reliability
from .controls import in_words, permuted_labels
from .delong import paired_delong, paired_delong_of_truths, unpaired_delong
from .fit_identity import FitIdentities, fit_label
from .metrics import auroc
from .records import CLASSIFIER, FEW, GAIN, Record, is_group
from .run import PAGES, EvaluationReport, FitReport, Fitted, evaluate_run, fit_run, specs_of
from .run_comparison import Compared, Comparison, compare_runs
from .score_table import ScoreFile, positive_of, read_scores
from .scoring import LOGIT_LR, MISCLASSIFICATION_MODEL, SCORE_LR
from .selective import risk_coverage
from .verdict import COMPARED, HEADLINE_PROTOCOLS, Outcome, Verdict, baselines, verdicts

__all__ = [
    "CLASSIFIER",
    "COMPARED",
    "FEW",
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
    "evaluate_run",
    "fit_label",
    "fit_run",
    "in_words",
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
