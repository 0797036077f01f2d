"""Meta models: how likely is a prediction wrong, or a sample out of distribution?

In come feature tables and which of their rows are positive; out come models that score such tables. `inputs` makes and
scales what models look at, gradients and baselines in groups, and stores it without pickle; `fitting` fits a
`training_set` by the logistic `regression`, with `penalties` chosen by cross-validation, and `one_class` what has seen
in-distribution samples alone; `alarms` says which inputs speak beside a model, by their `rarity`; `models` are what is
fitted, their probabilities, and what moved a score; `score_choice` says whether the model or a score without gradients
is the one to use, by areas (`placements`).
"""

from __future__ import annotations

from .alarms import EXPECTED, add_alarms, alarm_weights
from .fitting import LEAST_SLOPE, Penalty, fit_logistic, leading_axes, log_odds_of
from .inputs import (
    BASELINE_PREFIX,
    DESCRIPTION,
    MetaInputs,
    RecomputedRows,
    Rows,
    group_of,
    outputs_of,
    tolerance,
    write_files,
)
from .models import SOUGHT, MetaModel, drivers, explained, largest_group, read_notes
from .one_class import fit_one_class
from .penalties import FEW_ERRORS, PenaltyChoice, choose_penalty
from .placements import Placements, area_of, mean_area, set_areas
from .score_choice import CHOSEN, CHOSEN_APART, MARGIN, META, BaselineScore, ScoreChoice, choose_score, chosen_model
from .training_set import TrainingSet, balanced_weights, drawn, held_out_folds, judged_rows
