"""Fitting the meta models of a run folder, and reporting on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..columns import logit_columns
from ..config import MetaConfig
from ..data import FIT, TEST
from ..errors import EvaluationError, StoreError
from ..meta import MetaModel, balanced_weights, fit_combined_model, fit_distance_model, fit_meta_model
from ..store import RunFolder, changing
from ..system import BoolArray, write_text
from . import duplicates, near_duplicates
from .fit_identity import FitIdentities
from .near_duplicates import NearDuplicates
from .protocols import MetaModelSpec, MetaModelSpecs, SplitContent, make_specs
from .records import Record, group_records, remarks, score_records
from .score_table import write_scores
from .scoring import LOGIT_LR, Read, ScoreTables, fits_two_classes, frame_reader, positive_rows, selected_rows


@dataclass(frozen=True)
class Fitted:
    """A spec and the model fitted by it."""

    spec: MetaModelSpec
    model: MetaModel


@dataclass(frozen=True)
class FitReport:
    """What was fitted, a sentence for each model that could not be, what a reader should know, and where it lies."""

    models: list[Fitted]
    skipped: list[str]
    notices: list[str]
    path: Path


@dataclass(frozen=True)
class EvaluationReport:
    """What was found.

    Attributes:
        records: those of `metrics.json`.
        notices: what a reader should know.
        path: where `metrics.json` lies, with `metrics.csv` and `scores.parquet` beside it.
        models: the meta models that scored, as `<task>/<protocol>/<name>`.
        scores: the table of `scores.parquet`, see `score_table`.
        near_duplicates: reported images that are nearly images of `in_dist.fit`.
    """

    records: list[Record]
    notices: list[str]
    path: Path
    models: list[str]
    scores: pd.DataFrame
    near_duplicates: NearDuplicates


def fit_run(run: RunFolder, *, progress: Callable[[str], None] | None = None) -> FitReport:
    """Fits every meta model of a run and writes them to `meta/<task>/<protocol>/<name>/`.

    Those fitted on two classes have a logistic regression on the logit baselines alone beside them, in `logit_lr/`.
    Each says in its notes what it was fitted on (see `fit_identity`); models that the configuration no longer asks for
    are removed.

    Args:
        run: a finished run folder.
        progress: told the name of each model before it is fitted.

    Returns:
        The models, and which were skipped and why.

    Raises:
        EvaluationError: not a single model can be fitted.
        StoreError: the run is not finished or damaged, or another process writes to it.
    """
    models: list[Fitted] = []
    with changing(run.path, [run.meta_path.name]):
        near = near_duplicates_to_leave_out(run)
        found = specs_of(run, near=near)
        read = frame_reader(run)
        identities = FitIdentities(run, found)
        skipped = list(found.skipped)
        _remove_unwanted(run.meta_path, identities)
        for spec in found.specs:
            if progress is not None:
                progress(spec.label)
            folder = run.meta_path / spec.label
            try:
                model = _fitted(spec, read=read, run=run)
            except EvaluationError as error:
                skipped.append(f"{spec.label}: {error}")
                shutil.rmtree(folder, ignore_errors=True)
                continue
            shutil.rmtree(folder, ignore_errors=True)
            model = identities.noted(model, spec)
            model.save(folder)
            if fits_two_classes(spec):
                _fitted_on_logits(spec, read=read, run=run).save(folder / LOGIT_LR)
            models.append(Fitted(spec, model))
    if not models:
        raise EvaluationError(f"{run.path}: no meta model can be fitted: {'; '.join(skipped)}")
    notices = [*_class_notices(run), *duplicates.in_words(found.overlaps), *near.in_words()]
    return FitReport(models, skipped, notices, run.meta_path)


def evaluate_run(run: RunFolder) -> EvaluationReport:
    """Reports on the meta models of a run: `metrics.json`, `metrics.csv` and `scores.parquet`; nothing is fitted.

    Args:
        run: a run folder with meta models.

    Returns:
        Its records are those of `score_records`, then those of `group_records`.

    Raises:
        EvaluationError: the run holds nothing to report on, a value is not finite, or a meta model was fitted with
            other samples or settings than the run has now.
        StoreError: no meta models, a damaged file, or another process writes to the run.
    """
    if not run.meta_path.is_dir():
        raise StoreError(f"{run.path}: no meta models; run `gradscore fit-meta {run.path}` first")
    with changing(run.path, [run.evaluation_path.name]):
        return _evaluated(run)


def _evaluated(run: RunFolder) -> EvaluationReport:
    near = near_duplicates.search(run)
    found = specs_of(run, near=near)
    scorer = ScoreTables(run, frame_reader(run), left_out=set().union(*near.excluded().values()))
    identities = FitIdentities(run, found)
    fitted = [spec for spec in found.specs if scorer.has_model(spec)]
    for spec in fitted:
        identities.load(spec.label)
    wrong = next((spec for spec in found.specs if spec.task == "misclassification"), None)
    notices = [*_class_notices(run), *duplicates.in_words(found.overlaps), *near.in_words(), *found.skipped]
    notices += [
        f"{spec.label}: no meta model in {run.meta_path / spec.label}; fit-meta could not fit it, or was not run since"
        for spec in found.specs
        if not scorer.has_model(spec)
    ]
    tables = [scorer.table(spec, wrong=wrong) for spec in fitted]
    if not tables:
        raise EvaluationError(f"{run.path}: nothing to report: {'; '.join(notices)}")
    table = pd.concat(tables, ignore_index=True)
    records = [*score_records(table, seed=run.config.evaluate.seed), *group_records(table, ood_groups(run))]
    notices += [*_model_notices(scorer, run), *remarks(table, records)]
    records += near.records()
    path = run.evaluation_path / "metrics.json"
    write_scores(run.evaluation_path, table)
    near_duplicates.write_pairs(run, near)
    entries = [record.entry() for record in records]
    write_text(path.with_suffix(".csv"), pd.DataFrame(entries).to_csv(index=False))
    write_text(path, json.dumps(entries, indent=1, allow_nan=False) + "\n")
    return EvaluationReport(records, notices, path, [spec.label for spec in fitted], table, near)


def ood_groups(run: RunFolder) -> dict[str, list[str]]:
    """The groups of OOD sets of a run without auxiliary ones, and `all` of two or more sets unless a group is that."""
    sets = [info for info in run.splits() if info.is_reported_ood]
    groups: dict[str, list[str]] = {}
    for info in sets:
        if info.group is not None:
            groups.setdefault(info.group, []).append(info.dataset_name)
    everything = [info.dataset_name for info in sets]
    return groups | ({"all": everything} if len(everything) > 1 and everything not in groups.values() else {})


def _remove_unwanted(meta: Path, identities: FitIdentities) -> None:
    """Removes models that an earlier configuration asked for."""
    for folder in meta.glob("*/*/*"):
        if folder.is_dir() and not identities.asks_for(folder.relative_to(meta).as_posix()):
            shutil.rmtree(folder)


def _model_notices(scorer: ScoreTables, run: RunFolder) -> list[str]:
    lines = list(scorer.free_scores.notices)
    if scorer.without_logit_lr:
        lines.append(
            f"no score logit_lr (a logistic regression on the logit baselines alone) for "
            f"{', '.join(scorer.without_logit_lr)}; run `gradscore fit-meta {run.path}` again to have it"
        )
    if scorer.seen_by_meta_wrong:
        lines.append(
            f"no score meta_wrong for {', '.join(scorer.seen_by_meta_wrong)}: the misclassification model was fitted "
            "on copies of samples of the set"
        )
    return lines


def near_duplicates_to_leave_out(run: RunFolder) -> NearDuplicates:
    """The near-duplicates whose fit images a run leaves out; none are looked for where it leaves none out.

    Raises:
        EvaluationError: the images cannot be had.
        StoreError: the run is not finished or damaged.
    """
    return near_duplicates.search(run) if run.config.evaluate.near_duplicates == "leave_out" else NearDuplicates()


def specs_of(run: RunFolder, *, near: NearDuplicates | None = None) -> MetaModelSpecs:
    """The meta models that a run's configuration asks for.

    Args:
        run: a finished run folder.
        near: what `near_duplicates.search` found; by default what the configuration leaves out is looked for.

    Raises:
        EvaluationError: images in two splits, where the configuration makes that an error.
        StoreError: the run is not finished or damaged.
    """
    near = near_duplicates_to_leave_out(run) if near is None else near
    rows = []
    for info in run.splits():
        frame = run.read(info.name, columns=["content_hash", "correct"])
        rows.append(SplitContent(info, frame["content_hash"], frame["correct"]))
    settings = run.config.evaluate
    found = make_specs(rows, protocols=settings.protocols, seed=settings.seed, near=near.excluded())
    if run.config.evaluate.duplicates == "error":
        duplicates.refuse(found.overlaps, where=str(run.path))
    return found


def _class_notices(run: RunFolder) -> list[str]:
    """Says when the in-distribution samples that fit and those reported are not of the same classes."""
    classes = {split: set(run.read(split, columns=["label"])["label"]) - {-1} for split in (FIT, TEST)}
    if classes[FIT] == classes[TEST]:
        return []
    lists = "; ".join(f"{split} has classes {sorted(found)}" for split, found in classes.items())
    return [
        f"{lists}: the figures mix up the task with the change of classes. If the data are sorted by class, "
        "select by `hash` instead of `start` and `stop`"
    ]


def _fitted(spec: MetaModelSpec, *, read: Read, run: RunFolder) -> MetaModel:
    frame = selected_rows(spec.fit, read)
    if not fits_two_classes(spec):
        return fit_distance_model(frame)
    return fit_two_classes(spec, frame, positive_rows(spec, spec.fit), config=run.config.meta)


def fit_two_classes(spec: MetaModelSpec, frame: pd.DataFrame, target: BoolArray, *, config: MetaConfig) -> MetaModel:
    """Fits the meta model of a spec of two classes.

    Args:
        spec: which model.
        frame: the rows that fit, N of them, as `selected_rows` gives them.
        target: (N,) bool, what the model shall tell from the rest.
        config: the settings.
    """
    fit = fit_combined_model if spec.task == "ood" and config.ood == "combined" else fit_meta_model
    return fit(frame, target, balanced_weights(target, frame["split"]), config)


def _fitted_on_logits(spec: MetaModelSpec, *, read: Read, run: RunFolder) -> MetaModel:
    """The logistic regression on the logit baselines alone, fitted on the same samples."""
    frame = selected_rows(spec.fit, read)
    target = positive_rows(spec, spec.fit)
    return fit_meta_model(
        frame[logit_columns(frame.columns)], target, balanced_weights(target, frame["split"]), run.config.meta
    )
