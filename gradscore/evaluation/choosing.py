"""Chooses the score that a run should use for each question, by samples that are not reported.

Everything that is fitted is fitted anew without what is held out: the scale of inputs, baselines (unless a bank fits
them), and models. Penalties and weights of alarms are those of the whole fit, which chose them by the same folds, and
with a bank so is the one temperature of the averaged probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..baselines import FittedBaselines, InDistribution
from ..config import Protocol
from ..data import BANK, FIT
from ..errors import EvaluationError
from ..meta import (
    MARGIN,
    META,
    MOST_ROWS,
    Inputs,
    MetaModel,
    Penalty,
    RecomputedRows,
    ScoreChoice,
    TrainingSet,
    add_alarms,
    choose_score,
    fit_logistic,
    fit_on_scores,
    held_out_folds,
    log_odds_of,
    outputs_of,
    read_notes,
    set_areas,
)
from ..store import RunFolder, read_head
from ..system import FloatArray, IntArray
from .duplicates import numbered
from .protocols import MetaModelSpec
from .score_tables import baselines_of

if TYPE_CHECKING:
    from .fits import Tables

PROTOCOLS = ("known", "auxiliary", "in_dist_only")
"""Protocols with one OOD model for everything, the preferred one first."""


def ordinary_of(run: RunFolder, table: pd.DataFrame) -> InDistribution:
    """What baselines are fitted on: samples of a feature table, whose classes are labels, or predictions without."""
    outputs = outputs_of(table)
    return InDistribution(
        outputs=outputs,
        classes=table["label"].where(table["label"] >= 0, table["prediction"]).to_numpy(dtype=np.int64),
        head=None if outputs.penultimate is None else read_head(run.path),
    )


class ScoreChooser:
    """Chooses scores for the meta models of a run.

    Args:
        run: a finished run folder.
        tables: its feature tables.
        inputs: what makes the inputs of its meta models.
    """

    def __init__(self, run: RunFolder, tables: Tables, inputs: Inputs) -> None:
        self._run, self._tables, self._inputs = run, tables, inputs
        self._config = run.config.meta
        splits = [info.name for info in run.splits()]
        self._has_bank = BANK in splits
        may_fit = [name for name in splits if name == FIT or name.startswith("ood.")]
        total = sum(len(tables.contents(name)) for name in may_fit)
        self._step = -(-total // MOST_ROWS)
        self._frames: dict[str, pd.DataFrame] = {}
        self._baselines: dict[str, pd.DataFrame] = {}  # with a bank, the same in every fold
        once, again = run.recomputed(FIT)
        self._twice = RecomputedRows(once, again, unit=run.rounding_unit)
        if self._has_bank:
            known = [inputs.baseline_table(version) for version in self._twice.versions]
            self._twice = replace(self._twice, baselines=known)

    def choose(self, spec: MetaModelSpec, model: MetaModel, regressions: Mapping[str, MetaModel]) -> ScoreChoice:
        """Chooses between a meta model and scores without gradients.

        Args:
            spec: what the model was fitted on.
            model: the meta model.
            regressions: those fitted beside it, without gradients.

        Returns:
            The choice; the meta model where nothing could be held out.
        """
        if not spec.has_two_classes:
            return ScoreChoice()
        frame, table, rows = self._samples(spec)
        found = held_out_folds(rows, self._config)
        if found is None:
            return ScoreChoice()
        judged_by, folds = found
        models = {META: model, **regressions}
        areas: dict[str, list[float]] = {}
        for fit, held_out in folds:
            try:
                scores = self._scores(spec, frame, rows, models, table, fit=fit, held_out=held_out)
            except EvaluationError:  # too few samples, or nothing but constants among them
                return ScoreChoice()
            positive, sets = rows.target[held_out], rows.sets[held_out]
            if judged_by == "samples":
                sets = np.full(len(positive), "all")
            for name, values in scores.items():
                areas.setdefault(name, []).extend(set_areas(values, positive, sets).values())
        choice = choose_score(areas, judged_by=judged_by)
        if choice.score in models:
            return choice
        whole = self._inputs.baseline_table(frame) if table is None else table
        line = log_odds_of(whole[choice.score].to_numpy(), rows.target, rows.sets)
        if line is None:  # without probabilities, it cannot decide
            return replace(choice, score=META)
        return replace(choice, log_odds=line[0], shift=line[1])

    def _samples(self, spec: MetaModelSpec) -> tuple[pd.DataFrame, pd.DataFrame | None, TrainingSet]:
        """Feature table, baselines with a bank, and targets of samples of a fit: of many, some of each split."""
        frames, tables, targets, sets = [], [], [], []
        for split in (split for split, mask in spec.fit.items() if mask.any()):
            if split not in self._frames:
                self._frames[split] = self._tables.read(split).iloc[:: self._step].copy()
                if self._has_bank:
                    self._baselines[split] = self._inputs.baseline_table(self._frames[split])
            chosen, positive = (
                self._tables.places(split, each)[:: self._step] for each in (spec.fit[split], spec.positive[split])
            )
            frames.append(self._frames[split][chosen])
            if self._has_bank:
                tables.append(self._baselines[split][chosen])
            targets.append(positive[chosen])
            sets.append(np.full(int(chosen.sum()), split))
        target = np.concatenate(targets)
        content = numbered(frame["content_hash"] for frame in frames)
        rows = TrainingSet(scaled=np.empty((len(target), 0)), target=target, sets=np.concatenate(sets), content=content)
        return pd.concat(frames, ignore_index=True), pd.concat(tables, ignore_index=True) if tables else None, rows

    def _scores(
        self,
        spec: MetaModelSpec,
        frame: pd.DataFrame,
        rows: TrainingSet,
        models: Mapping[str, MetaModel],
        known: pd.DataFrame | None,
        *,
        fit: IntArray,
        held_out: IntArray,
    ) -> dict[str, FloatArray]:
        """Every score of what is held out, fitted on the rest: those that cost least come first."""
        part, rest = frame.iloc[fit], frame.iloc[held_out]
        is_ordinary = rows.sets[fit] == FIT
        of_part = None if known is None else known.iloc[fit]
        inputs = self._inputs_of(part[is_ordinary], None if of_part is None else of_part[is_ordinary])
        fitted = TrainingSet(scaled=inputs.scaled(part, of_part), target=rows.target[fit], sets=rows.sets[fit])
        table = inputs.baseline_table(rest) if known is None else known.iloc[held_out]
        scaled = inputs.scaled(rest, table)
        model = _with_alarms_of(models[META], fit_logistic(inputs, fitted, _penalty(models[META])), fitted)
        scores = {name: table[name].to_numpy() for name in inputs.baselines.compared}
        for name, names in baselines_of(spec, inputs).items():
            if name in models:
                alone = fit_on_scores(inputs, fitted, _penalty(models[name]), names=names)
                scores[name] = _with_alarms_of(models[name], alone, fitted).of_scaled(scaled)
        return scores | {META: model.of_scaled(scaled)}

    def _inputs_of(self, ordinary: pd.DataFrame, table: pd.DataFrame | None) -> Inputs:
        """What makes inputs, learned from these in-distribution samples, whose baselines may be known."""
        baselines = self._inputs.baselines
        if not self._has_bank:
            augmentations = self._inputs.baselines.augmentations
            of_ordinary = ordinary_of(self._run, ordinary)
            baselines = FittedBaselines.fit(of_ordinary, augmentations=augmentations, on_others=False)
        return Inputs.fit(ordinary, baselines, twice=self._twice, table=table)


def _with_alarms_of(whole: MetaModel, model: MetaModel, rows: TrainingSet) -> MetaModel:
    """A model fitted on some samples, with the alarms of the one that was fitted on all."""
    return model if whole.alarms is None else add_alarms(model, rows, whole.notes["alarms"])


def _penalty(model: MetaModel) -> Penalty:
    return Penalty(**{name: model.notes[name] for name in ("C", "boost", "gradients", "start")})


def deployed_protocol(run: RunFolder) -> Protocol | None:
    """The protocol whose OOD model finds best what it was not fitted on; the first there is where nobody knows.

    Judged by the mean AUROC of OOD sets that were left out of its fits, auxiliary ones where there are enough. One that
    knows more stays unless another is ahead by more than `MARGIN`: a few sets tell no smaller difference, and the model
    of ordinary samples alone, the last, gives no probability. Both a bundle and a check look at this one.

    Args:
        run: a run folder with meta models.

    Returns:
        A name in `PROTOCOLS`, or None without an OOD model.

    Raises:
        StoreError: a damaged model.
    """
    wanted = [name for name in PROTOCOLS if name in run.config.evaluate.protocols]
    there = [name for name in wanted if (run.meta_path / ood_place(name)).is_dir()]
    found = {name: auroc_left_out(run, name) for name in there}
    return next((name for name in there if found[name] >= max(found.values()) - MARGIN), None)


def ood_place(protocol: str) -> str:
    """Where the OOD model of a protocol lies below the meta models of a run."""
    return f"ood/{protocol}/all"


def auroc_left_out(run: RunFolder, protocol: str) -> float:
    """The mean AUROC that the OOD model of a protocol is judged by, minus infinity if it is not judged by sets."""
    notes = read_notes(run.meta_path / ood_place(protocol))
    found = notes.get("judged")
    return float(found) if notes.get("judged_by") == "sets" and isinstance(found, float) else -np.inf
