"""Fits the meta models of a run: inputs first, then one model after the other, each with those it has to beat."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..config import MetaConfig
from ..data import CALIBRATION, FIT, LEAST_SETS, TEST, base_split, planned_splits
from ..errors import EvaluationError, StoreError
from ..losses import refuse_with_labels
from ..meta import (
    DESCRIPTION,
    FEW_ERRORS,
    META,
    MetaModel,
    PenaltyChoice,
    TrainingSet,
    add_alarms,
    alarm_weights,
    choose_penalty,
    fit_logistic,
    fit_one_class,
    leading_axes,
    mean_area,
    write_files,
)
from ..notices import Notice, notes
from ..store import CONFIG, RunFolder, changing, is_intact, label_warnings, missing_labels, refuse_unlabelled
from ..system import FloatArray, some
from .duplicates import duplicate_notices
from .near_duplicates import near_copies_in_fit
from .prepared import Prepared, Tables, prepare
from .protocols import (
    FitIdentities,
    MetaModelSpec,
    MetaModelSpecs,
    SplitContent,
    make_specs,
    rows_that_fit,
    subsampling_notices,
)
from .score_chooser import ScoreChooser
from .score_tables import SCORE_LR, scores_seen

_NO_AXES = np.empty((0, 0))

FEW_UNSEEN, MOST_UNSEEN = 0.02, 0.1
"""Shares of samples that may be of classes which others lack before the reader is told: of those that fit and those
that are reported, and of those that fit, which no calibration sample has."""

FEW_TO_FIT = 50
"""Of fewer samples in `in_dist.fit` the reader is told that they hardly say what is in-distribution."""


@dataclass(frozen=True)
class Fitted:
    """A spec and the model fitted by it."""

    spec: MetaModelSpec
    model: MetaModel


@dataclass(frozen=True)
class FitReport:
    """What was fitted.

    Attributes:
        models: those that were fitted.
        skipped: a sentence for each model that could not be.
        notices: what a reader should know, warnings and cautions first.
        path: where the models lie.
        kept: the names of those among the models that were there already, fitted to the same samples with the same
            settings by the same versions of packages.
        left_out: names of inputs that enter no model, since they hold little but rounding.
    """

    models: list[Fitted]
    skipped: list[str]
    notices: list[Notice]
    path: Path
    kept: list[str]
    left_out: list[str]


def fit_run(run: RunFolder, *, progress: Callable[[str], None] | None = None) -> FitReport:
    """Fits the meta models of a run and writes them to `meta/<task>/<protocol>/<name>/`.

    What makes their inputs lies in `meta/inputs/`. Models fitted on two classes have the same regression without
    gradients beside them, in `score_lr/`. Each says in its notes what it was fitted on, and which score to use in its
    place (see `ScoreChooser`). Models that
    the configuration no longer asks for are removed; those that would be fitted to the same samples with the same
    settings are kept.

    Args:
        run: a finished run folder; settings that it was given are stored in it (see `RunFolder.with_settings`).
        progress: called with the name of each model before it is fitted.

    Returns:
        The models, and which were skipped and why.

    Raises:
        EvaluationError: not a single model can be fitted.
        DataError: no sample of `in_dist.fit` has a label.
        ConfigError: the features hold those of a loss that looks at given labels.
        StoreError: the run is not finished or damaged, or another process writes to it.
    """
    refuse_with_labels(run.config.features.losses, where=str(run.path))
    refuse_unlabelled(run)
    run.refuse_other_files()
    models: list[Fitted] = []
    kept: list[str] = []
    there = {path.parent for path in run.meta_path.glob(f"*/*/*/{DESCRIPTION}")}
    intact = {folder for folder in there if is_intact(run.path, folder)}
    has_other_settings = run.has_other_settings
    with changing(run.path, [run.meta_path.name, *([CONFIG] if has_other_settings else [])]):
        if has_other_settings:
            run.store_settings()
        found = specs_of(run)
        tables = Tables(run, rows_that_fit(run.sizes))
        identities = FitIdentities(run, found)
        skipped = list(found.skipped)
        for folder in run.meta_path.glob("*/*/*"):  # models that an earlier configuration asked for
            if folder.is_dir() and not identities.asks_for(folder.relative_to(run.meta_path).as_posix()):
                shutil.rmtree(folder)
        if progress is not None:
            progress("meta models")
        prepared, notices = prepare(run, tables)
        inputs = prepared.inputs
        write_files(run.inputs_path, inputs.files())
        fits = ModelFits(found.common, prepared, run.config.meta)
        chooser = ScoreChooser(run, prepared, lambda: fits.chosen_on)
        for spec in found.specs:
            folder = run.meta_path / spec.label
            model = None
            if folder in intact:
                with suppress(StoreError):  # it may be of other inputs
                    model = MetaModel.load(folder, inputs)
            if model is not None and identities.is_current(spec.label, model):
                kept.append(spec.label)
            else:
                if progress is not None:
                    progress(spec.label)
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    fitted = fits.fit(spec)
                except EvaluationError as error:
                    skipped.append(f"{spec.label}: {error}")
                    continue
                (choice, area), model = chooser.choose(spec, fitted), fitted.pop(META)
                judged = {} if area is None else {"judged": area}
                model = _with_notes(identities.noted(model, spec), {"choice": asdict(choice), **judged})
                for name, regression in fitted.items():
                    write_files(folder / name, regression.files())
                write_files(folder, model.files())  # last, so that a model that is there has its regression
            models.append(Fitted(spec, model))
    if not models:
        raise EvaluationError(f"{run.path}: no meta model can be fitted: {'; '.join(skipped)}")
    notices = [*duplicate_notices(found.overlaps), *notices, *subsampling_notices(run.sizes)]
    return FitReport(
        models,
        skipped,
        [
            *label_warnings(run),
            *found.copied_sets,
            *class_notices(run),
            *near_copies_in_fit(run),
            *_few(run, models),
            *notes(notices),
        ],
        run.meta_path,
        kept,
        list(inputs.left_out),
    )


def _few(run: RunFolder, models: Sequence[Fitted]) -> list[Notice]:
    """Says where hardly anything can be learnt: of so few samples, or of so few wrong predictions among them."""
    rows = run.manifest.splits[FIT].rows
    samples = f"{rows} samples in {FIT} are few to learn what is in-distribution; give at least {FEW_TO_FIT}"
    errors = [
        Notice(
            f"few wrong predictions in {FIT} to learn from ({each.model.notes['n_positive']}, wanted at least "
            f"{FEW_ERRORS}): the score for them is the baseline it starts from; give more labelled samples",
            "caution",
        )
        for each in models
        if each.spec.task == "misclassification" and each.model.notes.get("n_positive", FEW_ERRORS) < FEW_ERRORS
    ]
    return [Notice(samples, "caution"), *errors] if rows < FEW_TO_FIT else errors


def specs_of(run: RunFolder) -> MetaModelSpecs:
    """The meta models that a run's configuration asks for.

    Args:
        run: a finished run folder.

    Raises:
        StoreError: the run is not finished or damaged.
    """
    rows, made = [], {name for name, (info, each) in planned_splits(run.config.data).items() if base_split(info, each)}
    for info in run.splits():
        frame = run.read(info.name, columns=["content_hash", "correct"])
        rows.append(SplitContent(info, frame["content_hash"], frame["correct"], info.name in made))
    settings = run.config.evaluate
    return make_specs(rows, protocols=settings.protocols)


def class_notices(run: RunFolder) -> list[Notice]:
    """Says where in-distribution samples that fit, set thresholds or are reported lack labels or classes of others."""
    there = [each.name for each in run.splits() if each.kind == "shifted" or each.name in (FIT, CALIBRATION, TEST)]
    labels, names = {split: run.read(split, columns=["label"])["label"] for split in there}, run.manifest.class_names
    fit, calibration, test = map(labels.get, (FIT, CALIBRATION, TEST))
    # A class that those to report on have is in the line before.
    labelled = pd.concat([each[each >= 0] for each in (fit, test) if each is not None])
    drawn = "If the data are sorted by class, draw it at random (select by `hash` or `lot`, not `start` and `stop`)"
    mixed = f"the figures mix up the task with the change of classes. {drawn}"
    of_model = (
        "right predictions of such classes may be rejected as if they were OOD; give samples of all classes that will "
        "come"
    )
    compared = (
        (CALIBRATION, calibration, f"{FIT} has", fit, MOST_UNSEEN, f"thresholds hold for the others only. {drawn}"),
        (FIT, fit, f"{TEST} has", test, FEW_UNSEEN, mixed),
        (TEST, test, f"{FIT} has", fit, FEW_UNSEEN, mixed),
        (FIT, labelled, "the model knows", pd.Series(range(run.config.model.classes)), FEW_UNSEEN, of_model),
    )
    notices = missing_labels(run)
    if bare := [name for name in there if name not in (FIT, CALIBRATION) and (labels[name] < 0).all()]:
        have = "has" if len(bare) == 1 else "have"
        nothing = f"{some(bare)} {have} no labels, so nothing is said of wrong predictions there"
        notices.append(Notice(nothing, "caution"))
    for split, known, others_have, others, allowed, therefore in compared:
        if known is None or known.empty or others is None:
            continue
        if missing := sorted(_unseen(others, known, allowed=allowed)):
            said = f"{split} has no sample of {_named(missing, names)}, which {others_have}: {therefore}"
            notices.append(Notice(said, "caution"))
    return notices


def _named(classes: Sequence[int], class_names: Sequence[str] | None) -> str:
    names = [str(label) if class_names is None else class_names[label] for label in classes]
    return f"class{'es' if len(names) > 1 else ''} {some(names)}"


def _unseen(labels: pd.Series[int], known: pd.Series[int], *, allowed: float) -> list[int]:
    """The classes of labels that no known sample has; none where chance may leave out so many.

    Args:
        labels: (N,) -1 for none.
        known: (M,) those of others; what has none may be of any class.
        allowed: what share may be unseen, beside twice what M samples drawn at random leave out in the mean.
    """
    shares = labels[labels >= 0].value_counts(normalize=True)
    by_chance = float((shares * (1 - shares) ** len(known)).sum())
    unseen = shares[~shares.index.isin(known)]
    return [] if unseen.sum() <= allowed + 2 * by_chance + (known < 0).mean() else list(unseen.index)


class ModelFits:
    """Fits the meta models of a run; what they have in common is found once.

    Axes of the gradient inputs are found, and penalties of OOD models chosen, on `in_dist.fit` and auxiliary sets,
    where there are at least three of these: nothing of it has seen what any model reports.

    Args:
        common: the spec of the samples that all OOD models of the run have in common, if there are such.
        prepared: the inputs of its samples.
        config: the settings.
    """

    def __init__(self, common: MetaModelSpec | None, prepared: Prepared, config: MetaConfig) -> None:
        self._prepared, self._config, self._spec_in_common = prepared, config, common
        self._inputs = prepared.inputs
        self._choices: dict[str, PenaltyChoice] = {}

    @cached_property
    def _common(self) -> TrainingSet | None:
        """The samples in common, if there are enough auxiliary sets among them to choose by."""
        spec = self._spec_in_common
        rows = None if spec is None else self._prepared.rows(spec)
        return rows if rows is not None and len(np.unique(rows.sets[rows.target])) >= LEAST_SETS else None

    @property
    def chosen_on(self) -> MetaModelSpec | None:
        """The spec of the samples in common, if they choose the penalties of all OOD models."""
        return None if self._common is None else self._spec_in_common

    @cached_property
    def _axes_in_common(self) -> FloatArray | None:
        return None if self._common is None else leading_axes(self._common.scaled[:, self._inputs.of_gradients])

    def fit(self, spec: MetaModelSpec) -> dict[str, MetaModel]:
        """Fits the model of a spec, and the one without gradients that it has to beat, by the name of their score.

        Raises:
            EvaluationError: samples of one class only, or too few of them.
        """
        rows = self._prepared.rows(spec)
        if not spec.has_two_classes:
            model = fit_one_class(self._inputs, rows.scaled)
            common = self._common
            if common is not None:
                area = mean_area(model.of_scaled(common.scaled), common.target, common.sets)
                model = _with_notes(model, {"judged_by": "sets", "judged": area})
            return {META: model}
        axes = self._axes_in_common
        if axes is None:
            axes = leading_axes(rows.scaled[:, self._inputs.of_gradients])
        models = {META: self._fitted(spec, rows, axes, None)}
        if names := scores_seen(spec, self._inputs):
            models[SCORE_LR] = self._fitted(spec, rows, _NO_AXES, names)
        return models

    def _fitted(self, spec: MetaModelSpec, rows: TrainingSet, axes: FloatArray, names: list[str] | None) -> MetaModel:
        """The model that sees all inputs, or the scores of these names alone."""
        choice = self._choice(spec, rows, axes, names)
        model = fit_logistic(self._inputs, rows, *choice.penalties, axes=axes, names=names, slope=choice.slope)
        if names is None:
            model = _with_notes(model, choice.notes())
        if spec.task != "ood":
            return model
        weights, expected = alarm_weights(self._inputs, choice.left_out), None
        if spec.expected and choice.judged_by == "sets":  # by kinds that were left out, which fits these badly
            expected = self._expected(rows.of(spec.expected), axes, names)
        return add_alarms(model, rows, weights, expected)

    def _expected(self, rows: TrainingSet, axes: FloatArray, names: list[str] | None) -> MetaModel:
        """A model of OOD sets whose kinds are expected, with penalties chosen by samples like them."""
        penalties = choose_penalty(self._inputs, rows, self._config, axes=axes, names=names, new_sets=False).penalties
        return fit_logistic(self._inputs, rows, *penalties, axes=axes, names=names)

    def _choice(
        self, spec: MetaModelSpec, rows: TrainingSet, axes: FloatArray, names: list[str] | None
    ) -> PenaltyChoice:
        """The penalties; those of OOD models are chosen once where auxiliary sets are enough to choose them."""
        common = self._common if spec.task == "ood" else None
        if common is None:
            from_start = spec.task == "misclassification"
            return choose_penalty(self._inputs, rows, self._config, axes=axes, names=names, from_start=from_start)
        key = ",".join(names or ["all"])
        if key not in self._choices:
            self._choices[key] = choose_penalty(self._inputs, common, self._config, axes=axes, names=names)
        return self._choices[key]


def _with_notes(model: MetaModel, notes: dict[str, Any]) -> MetaModel:
    return replace(model, notes={**model.notes, **notes})
