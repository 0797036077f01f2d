"""Which score to use: the meta model, or one without gradients, by how they rank samples that were held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError
from scipy.stats import t as student_t

from ..errors import EvaluationError, StoreError
from ..system import FloatArray, first_fault
from .inputs import MetaInputs
from .models import MetaModel, probabilities

CHOSEN = "chosen"
"""Name of the chosen score, among the others of a report."""

CHOSEN_APART = "chosen_apart"
"""Name of the score that is chosen where the reported set is kept out of the choice, too."""

META = "meta"
"""Name of the score of the meta model with gradients."""

MARGIN = 0.01
"""AUROC by which scores have to differ for a report to advise another, and for another protocol to be deployed."""


LEVEL = 0.05
"""Chance at which a score takes the place of a meta model that is as good."""


@dataclass(frozen=True, kw_only=True)
class ScoreChoice:
    """The score to use, and what it was chosen by.

    Attributes:
        score: `meta`, the regression without gradients (`score_lr`), or a baseline.
        judged_by: `sets` or `samples` that were held out; None where nothing could be, which leaves the meta model.
        judged: the mean AUROC of each score on what was held out, the highest first.
        gain: mean AUROC by which the meta model is ahead of the best score without gradients there; None likewise.
        error: its standard error.
        log_odds: slope and intercept that make log-odds of a chosen baseline; None of a model.
        shift: what to add to these for probabilities at the prevalence of the fit.
    """

    score: str = META
    judged_by: str | None = None
    judged: Mapping[str, float] = field(default_factory=dict)
    gain: float | None = None
    error: float | None = None
    log_odds: tuple[float, float] | None = None
    shift: float = 0.0

    @classmethod
    def of_notes(cls, notes: Mapping[str, Any], *, where: str | Path = "a meta model") -> ScoreChoice:
        """The choice in the notes of a meta model.

        Args:
            notes: of the model.
            where: the model lies, for messages.

        Raises:
            StoreError: the notes are damaged.
        """
        found, known = notes.get("choice"), {each.name for each in fields(cls)}
        if not isinstance(found, Mapping) or found.keys() != known:
            raise StoreError(f"{where}: damaged: notes.choice has not {', '.join(sorted(known))}; run fit-meta again")
        try:
            return _NOTED.validate_python(found)
        except ValidationError as error:
            raise StoreError(f"{where}: damaged: notes.choice.{first_fault(error)}; run fit-meta again") from None


_NOTED = TypeAdapter(ScoreChoice)


@dataclass(frozen=True, kw_only=True)
class BaselineScore:
    """A baseline that decides in the place of a meta model.

    Attributes:
        name: its name in the table of an evaluation, such as `energy` or `knn`.
        inputs: what makes it; it was fitted with the meta models.
        log_odds: slope and intercept that make log-odds of it; None where it was not chosen, but asked for.
        shift: what to add to these for probabilities at the prevalence of the fit.
    """

    name: str
    inputs: MetaInputs
    log_odds: tuple[float, float] | None = None
    shift: float = 0.0

    def decision(self, frame: pd.DataFrame) -> FloatArray:
        """The scores (N,) of the rows of a feature table, higher = more likely wrong or OOD."""
        return self.inputs.baseline_scores(frame)[self.name]

    def probability(self, scores: FloatArray, *, at_prevalence: bool) -> FloatArray:
        """As that of `MetaModel`; missing where there are no log-odds."""
        if self.log_odds is None:
            return np.full(len(scores), np.nan)
        slope, intercept = self.log_odds
        return probabilities(slope * scores + intercept, shift=self.shift if at_prevalence else 0.0)


def chosen_model(
    folder: Path, model: MetaModel, choice: ScoreChoice, *, score: str | None = None
) -> MetaModel | BaselineScore:
    """What decides: the score that was chosen, or another of the run.

    Args:
        folder: of the meta model.
        model: the meta model.
        choice: that of its notes, or of another meta model.
        score: the name of a score; the chosen one if None.

    Raises:
        StoreError: a regression beside the meta model is damaged.
        EvaluationError: there is no such score.
    """
    name = choice.score if score is None else score
    if name == META:
        return model
    if (folder / name).is_dir():
        regression = MetaModel.load(folder / name, model.inputs)
        return replace(regression, notes={**regression.notes, "score": name})
    if name not in model.inputs.baselines.names:
        raise EvaluationError(
            f"{folder}: there is no score {name!r} beside this meta model: one of in-distribution samples alone has no "
            "regression without gradients; name a baseline, or run fit-meta again"
        )
    if name != choice.score:
        return BaselineScore(name=name, inputs=model.inputs)
    return BaselineScore(name=name, inputs=model.inputs, log_odds=choice.log_odds, shift=choice.shift)


def choose_score(areas: Mapping[str, Sequence[float]], *, judged_by: str) -> ScoreChoice:
    """Chooses between the meta model and the best score without gradients.

    The latter is chosen where it is shown to be ahead, by a one-sided t test at a level of `LEVEL`, corrected for how
    many scores there are (Bonferroni): of thirty that are as good, the best looks better. So it is where it is exactly
    as good. A small lead of the meta model on a few sets says little of what gradients are worth on others, and it
    weighs all scores, so it depends on none: else it stays. What it gains, and what it costs, a report says.

    Args:
        areas: name of a score -> its AUROC on each set, or part of the samples, that was held out; `meta` is one. Of
            equal ones the first is chosen: the cheapest stand in front.
        judged_by: `sets` or `samples`.

    Returns:
        The choice; the meta model where there is nothing else, or one AUROC of each alone.
    """
    means = {name: float(np.mean(values)) for name, values in areas.items()}
    judged = dict(sorted(means.items(), key=lambda item: -item[1]))
    others = [name for name in judged if name != META]
    if not others or len(areas[META]) < 2:
        return ScoreChoice()
    gaps = np.asarray(areas[META]) - np.asarray(areas[others[0]])
    gain, error = float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    most = -float(student_t.isf(LEVEL / len(others), len(gaps) - 1)) * error
    score = others[0] if gain <= most else META
    return ScoreChoice(score=score, judged_by=judged_by, judged=judged, gain=gain, error=error)
