"""Meta models: how likely is a prediction wrong, or a sample out of distribution?

In come feature tables and which of their rows are positive; out come models that score such tables. `inputs` makes and
scales what models look at, gradients and baselines in groups, and stores it without pickle; `fitting` fits, with
penalties chosen by cross-validation, by the logistic `regression`; `models` are what is fitted, their probabilities,
and what moved a score; `choice` says whether the model or a score without gradients is the one to use.
"""

from __future__ import annotations

from .choice import CHOSEN, CHOSEN_APART, MARGIN, META, BaselineScore, ScoreChoice, choose_score, chosen_model
from .fitting import (
    FEW_ERRORS,
    LEAST_SLOPE,
    Choice,
    Penalty,
    TrainingSet,
    add_alarms,
    alarm_weights,
    balanced_weights,
    choose_penalty,
    drawn,
    fit_logistic,
    fit_on_scores,
    fit_one_class,
    fit_seeing,
    held_out_folds,
    judged_rows,
    leading_axes,
    log_odds_of,
    mean_area,
    set_areas,
)
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
from .models import EXPECTED, MetaModel, contributions, drivers, largest_group, like_expected, read_notes
from .placements import Placements, area_of
