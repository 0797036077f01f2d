"""Chooses the score that a run should use for each question, by samples that are not reported.

Everything that is fitted is fitted anew without what is held out: the scale of inputs, baselines (unless a bank fits
them), and models. Penalties and weights of alarms are those of the whole fit, which chose them by the same folds, and
with a bank so is the one temperature of the averaged probability; what is rounding is seen on all recomputed samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..baselines import FittedBaselines
from ..data import BANK, FIT
from ..errors import EvaluationError
from ..meta import (
    BASELINE_PREFIX,
    EXPECTED,
    LEAST_SLOPE,
    META,
    MetaInputs,
    MetaModel,
    Penalty,
    ScoreChoice,
    TrainingSet,
    add_alarms,
    choose_score,
    fit_logistic,
    held_out_folds,
    log_odds_of,
    set_areas,
)
from ..store import RunFolder
from ..system import FloatArray, IntArray
from .prepared import Prepared, SomeRows, in_dist_of
from .protocols import MetaModelSpec
from .score_tables import SCORE_LR, scores_seen


class ScoreChooser:
    """Chooses scores for the meta models of a run.

    Where auxiliary sets choose the penalties of OOD models, they choose the score of all of these at once, too, but for
    that of `known`, which the OOD sets that it may fit choose with them: they are of kinds that the user expects.

    Args:
        run: a finished run folder.
        prepared: the inputs of its samples.
        chosen_on: the spec of the samples that choose the penalties of all OOD models, if there are such.
    """

    def __init__(self, run: RunFolder, prepared: Prepared, chosen_on: Callable[[], MetaModelSpec | None]) -> None:
        self._run, self._prepared, self._inputs, self._chosen_on = run, prepared, prepared.inputs, chosen_on
        self._config = run.config.meta
        self._has_bank = BANK in {info.name for info in run.splits()}
        self._inputs_by_samples: dict[tuple[str, ...], MetaInputs] = {}
        self._in_common: tuple[ScoreChoice, float | None] | None = None
        # Without a bank, baselines are fitted anew.
        self._twice = prepared.twice if self._has_bank else replace(prepared.twice, baselines=(None, None, None))

    def choose(self, spec: MetaModelSpec, models: Mapping[str, MetaModel]) -> tuple[ScoreChoice, float | None]:
        """Chooses between a meta model and scores without gradients.

        Args:
            spec: what the models were fitted on.
            models: the meta model, and the regression beside it, by name.

        Returns:
            The choice, the meta model where nothing could be held out; and the mean AUROC of the meta model on OOD sets
            that were left out: of those that choose for all OOD models, if there are such; None where none was.
        """
        if not spec.has_two_classes:
            return ScoreChoice(), None
        common = self._chosen_on() if spec.task == "ood" else None
        if common is None or spec.protocol == "known":
            choice, area = self._judged(spec, models, None if common is None else common.fit)
        else:
            choice, area = self._in_common = self._in_common or self._judged(common, models)
        return self._usable(spec, models, choice), area

    def _usable(self, spec: MetaModelSpec, models: Mapping[str, MetaModel], choice: ScoreChoice) -> ScoreChoice:
        """The choice, with what makes log-odds of a baseline; the meta model in the place of one that has none."""
        start = _start_alone(models[META])
        if choice.score == META and start is not None:
            choice = replace(choice, score=start)  # it is that baseline, which costs less
        if choice.score in models:
            return choice
        samples, rows = self._prepared.some_rows(spec)
        least = LEAST_SLOPE if choice.score == start else 0.0
        line = log_odds_of(samples.baselines[choice.score].to_numpy(), rows.target, rows.sets, least=least)
        if line is None:  # without probabilities, it cannot decide
            return replace(choice, score=META)
        return replace(choice, log_odds=line[0], shift=line[1])

    def _judged(
        self, spec: MetaModelSpec, models: Mapping[str, MetaModel], among: Collection[str] | None = None
    ) -> tuple[ScoreChoice, float | None]:
        """What `choose` gives, by samples of a spec that are held out; the mean is of sets `among` them, or of all.

        Of the models the penalties and alarms count.
        """
        samples, rows = self._prepared.some_rows(spec)
        found = held_out_folds(rows, self._config)
        if found is None:
            return ScoreChoice(), None
        judged_by, folds = found
        areas: dict[str, list[float]] = {}
        left_out: list[float] = []
        for fit, held_out in folds:
            try:
                scores = self._scores(spec, samples, rows, models, fit=fit, held_out=held_out)
            except EvaluationError:  # too few samples, or nothing but constants among them
                return ScoreChoice(), None
            positive, sets = rows.target[held_out], rows.sets[held_out]
            if judged_by == "samples":
                sets = np.full(len(positive), "all")
            for name, values in scores.items():
                of_sets = set_areas(values, positive, sets)
                areas.setdefault(name, []).extend(of_sets.values())
                if name == META and judged_by == "sets":
                    left_out += [area for each, area in of_sets.items() if among is None or each in among]
        return choose_score(areas, judged_by=judged_by), float(np.mean(left_out)) if left_out else None

    def _scores(
        self,
        spec: MetaModelSpec,
        samples: SomeRows,
        rows: TrainingSet,
        models: Mapping[str, MetaModel],
        *,
        fit: IntArray,
        held_out: IntArray,
    ) -> dict[str, FloatArray]:
        """Every score of what is held out, fitted on the rest: those that cost least come first."""
        inputs = self._inputs_of(samples[fit[rows.sets[fit] == FIT]])
        known = samples.baselines if self._has_bank else pd.DataFrame(inputs.baseline_scores(samples.table))
        of_part, table = (known.iloc[each] for each in (fit, held_out))
        part_scaled = inputs.of_known(samples.gradients[fit], of_part)
        fitted = TrainingSet(scaled=part_scaled, target=rows.target[fit], sets=rows.sets[fit])
        scaled = inputs.of_known(samples.gradients[held_out], table)
        scores = {name: table[name].to_numpy() for name in inputs.baselines.compared}
        for name in (each for each in (SCORE_LR, META) if each in models):
            seen = None if name == META else scores_seen(spec, inputs)
            scores[name] = _fitted_like(models[name], inputs, fitted, seen, spec.expected).of_scaled(scaled)
        return scores

    def _inputs_of(self, in_dist: SomeRows) -> MetaInputs:
        """What makes inputs, learned from these in-distribution samples; with a bank their baselines stay."""
        key = tuple(in_dist.table["sample_id"])
        if key in self._inputs_by_samples:  # several protocols hold out the same
            return self._inputs_by_samples[key]
        baselines, table = self._inputs.baselines, None
        if self._has_bank:
            table = in_dist.baselines
        else:
            of_in_dist = in_dist_of(self._run, in_dist.table)
            baselines = FittedBaselines.fit(of_in_dist, augmentations=baselines.augmentations, on_others=False)
        found = MetaInputs.fit(in_dist.table, baselines, twice=self._twice, table=table, gradients=in_dist.gradients)
        self._inputs_by_samples[key] = found
        return found


def _fitted_like(
    whole: MetaModel, inputs: MetaInputs, rows: TrainingSet, names: list[str] | None, expected: Sequence[str]
) -> MetaModel:
    """A model of some samples, with the penalties and the alarms of the one that was fitted on all."""
    model = fit_logistic(inputs, rows, *_penalties(whole), names=names)
    if whole.alarms is None:
        return model
    of_expected, like_them = None, rows.of(expected)
    if EXPECTED in whole.notes and like_them.target.any():
        of_expected = fit_logistic(inputs, like_them, *_penalties(whole, EXPECTED), names=names)
    return add_alarms(model, rows, whole.notes["alarms"], of_expected)


def _start_alone(model: MetaModel) -> str | None:
    """The baseline that a model starts from, if nothing corrects it."""
    penalties = _penalties(model)
    start = penalties[0].start
    if start is None or any(each.boost or each.gradients for each in penalties):
        return None
    return start.removeprefix(BASELINE_PREFIX)


def _penalties(model: MetaModel, note: str = "penalties") -> list[Penalty]:
    return [Penalty(**each) for each in model.notes[note]]
