"""How good the scores are: protocols, figures of merit and their intervals.

In comes a run folder; out come meta models in `meta/` (`fit_run`) and records with intervals (`evaluate_run`).
`protocols` says which samples fit and which are reported, `prepared` makes inputs of them, `fits` fits the models,
`score_tables` keeps the scores of all samples, `records` turns them into figures, by `metrics` and `intervals`, and
`verdicts` these into words; `evaluated_runs` puts all together, and compares runs. `score_chooser` says which score to
use, `deployed` which OOD model, and `answer` all of it in a few sentences. `duplicates` and `near_duplicates` look for
samples that a run holds twice.
"""

from __future__ import annotations

from .answer import (
    Answer,
    advice_by_task,
    count_or_percent,
    describe_score,
    describe_share,
    signed,
    verdict_rows,
    where_better,
    without_gradients,
)
from .deployed import deployed_protocol, places_of_models
from .evaluated_runs import PAGE, Comparison, EvaluationReport, compare_runs, evaluate_run, stored_verdicts
from .fits import FitReport, class_notices, fit_run, specs_of
from .intervals import paired_delong, paired_delong_of_truths
from .metrics import auroc, reliability, risk_coverage
from .protocols import FitIdentities, MetaModelSpecs
from .records import CLASSIFIER, Record, Records
from .score_tables import SCORE_LR, ScoreFile, positive_of, read_scores, score_columns
from .verdicts import COMPARED, Verdict
