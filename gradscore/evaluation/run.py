"""Fitting the meta models of a run folder, and reporting on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from ..baselines import FittedBaselines
from ..data import BANK, FIT, TEST
from ..errors import EvaluationError, StoreError
from ..losses import refuse_with_labels
from ..meta import DESCRIPTION, Inputs, MetaModel
from ..store import CONFIG, RunFolder, changing, is_intact, label_warnings
from ..system import clear_page, some, write_text
from . import duplicates, near_duplicates, subsampling
from .fit_identity import FitIdentities
from .groups import group_records
from .model_fits import ModelFits
from .near_duplicates import NearDuplicates
from .preparation import Prepared, Tables, prepare, rounding_in_words
from .protocols import MetaModelSpec, MetaModelSpecs, SplitContent, make_specs
from .records import Record, remarks, score_records
from .score_table import ScoreFile
from .scoring import ScoreTables
from .subsampling import rows_that_fit
from .verdict import NOTHING_TO_TELL, Verdict, verdicts

PAGES = ("report.html", "report.md")
"""The report of an evaluation, which `reporting` writes beside its figures."""


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
        notices: what a reader should know.
        path: where the models lie.
        kept: the names of those among the models that were there already, fitted to the same samples with the same
            settings by the same versions of packages.
        warnings: what a reader should know first, since all figures may mean nothing.
        cautions: those of the notices that are as urgent as warnings, though figures mean something.
        left_out: names of inputs that enter no model, since they hold little but rounding.
    """

    models: list[Fitted]
    skipped: list[str]
    notices: list[str]
    path: Path
    kept: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationReport:
    """What was found.

    Attributes:
        records: those of `metrics.json`.
        notices: what a reader should know.
        path: where `metrics.json` lies, with `metrics.csv` and `scores.parquet` beside it.
        models: the meta models that scored, as `<task>/<protocol>/<name>`.
        near_duplicates: reported images that are nearly images of `in_dist.fit`.
        warnings: what a reader should know first, since all figures may mean nothing.
        not_compared: which baselines the verdicts say nothing of, or too little, and why; None where all are there.
            Where some are not, no verdict says `better`.
        cautions: those of the notices that are as urgent as warnings, though figures mean something.
        groups: name of a group of OOD sets -> names of its sets.
    """

    records: list[Record]
    notices: list[str]
    path: Path
    models: list[str]
    near_duplicates: NearDuplicates
    warnings: list[str] = field(default_factory=list)
    not_compared: str | None = None
    cautions: list[str] = field(default_factory=list)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The table of `scores.parquet`, see `read_scores`; read when it is first asked for."""
        return self.score_file.table()

    @property
    def score_file(self) -> ScoreFile:
        """The same, of which one data set is read at a time."""
        return ScoreFile(self.path.parent)

    @property
    def verdicts(self) -> list[Verdict]:
        """What to read first; none where warnings say that no figure can be trusted."""
        if self.warnings:
            return []
        return verdicts(self.records, groups=self.groups, complete=self.not_compared is None)

    @property
    def no_verdict(self) -> str | None:
        """Why there is no verdict; None where there is one."""
        return None if self.verdicts else "; ".join(self.warnings) or NOTHING_TO_TELL


def fit_run(run: RunFolder, *, again: bool = False, progress: Callable[[str], None] | None = None) -> FitReport:
    """Fits the meta models of a run and writes them to `meta/<task>/<protocol>/<name>/`.

    What makes their inputs lies in `meta/inputs/`. Models fitted on two classes have those beside them that see less: a
    logistic regression on the scores of the logits alone, in `logit_lr/`, and on all scores, in `score_lr/`.
    Each says in its notes what it was fitted on (see `fit_identity`); models that the configuration no longer asks for
    are removed, and those that would be fitted to the same samples with the same settings are kept.

    Args:
        run: a finished run folder; settings that it was given are stored in it (see `RunFolder.with_settings`).
        again: fit all models anew.
        progress: told the name of each model before it is fitted.

    Returns:
        The models, and which were skipped and why.

    Raises:
        EvaluationError: not a single model can be fitted.
        ConfigError: the features hold those of a loss that looks at given labels.
        StoreError: the run is not finished or damaged, or another process writes to it.
    """
    refuse_with_labels(run.config.features.losses, where=str(run.path))
    models: list[Fitted] = []
    kept: list[str] = []
    intact = _intact_models(run)
    has_other_settings = run.has_other_settings
    with changing(run.path, [run.meta_path.name, *([CONFIG] if has_other_settings else [])]):
        if has_other_settings:
            run.store_settings()
        near = near_duplicates_to_leave_out(run)
        found = specs_of(run, near=near)
        tables = Tables(run, rows_that_fit(run.sizes))
        identities = FitIdentities(run, found)
        skipped = list(found.skipped)
        _remove_unwanted(run.meta_path, identities)
        if progress is not None:
            progress("inputs")
        preparation = prepare(run, tables, left_out=set().union(*near.excluded().values()))
        preparation.inputs.save(run.inputs_path)
        fits = ModelFits(found.common, Prepared(preparation.inputs, tables), run.config.meta)
        for spec in found.specs:
            folder = run.meta_path / spec.label
            model = _known(folder, preparation.inputs) if folder in intact and not again else None
            if model is not None and identities.is_current(spec.label, model):
                kept.append(spec.label)
            else:
                if progress is not None:
                    progress(spec.label)
                try:
                    model = _fitted_anew(folder, spec, fits, identities)
                except EvaluationError as error:
                    skipped.append(f"{spec.label}: {error}")
                    continue
            models.append(Fitted(spec, model))
    if not models:
        raise EvaluationError(f"{run.path}: no meta model can be fitted: {'; '.join(skipped)}")
    cautions = _class_cautions(run)
    notices = [*cautions, *duplicates.in_words(found.overlaps), *near.in_words(), *preparation.notices]
    notices += subsampling.in_words(run.sizes)
    return FitReport(
        models, skipped, notices, run.meta_path, kept, label_warnings(run), cautions, list(fits.inputs.left_out)
    )


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
    if TEST not in {info.name for info in run.splits()}:
        raise EvaluationError(
            f"{run.path}: data.in_dist.test is null, so there is nothing to report on; give samples there, and extract "
            "into another folder"
        )
    if not run.meta_path.is_dir():
        raise StoreError(f"{run.path}: no meta models; run `gradscore fit-meta {run.path}` first")
    with changing(run.path, [run.evaluation_path.name]):
        return _evaluated(run)


def _evaluated(run: RunFolder) -> EvaluationReport:
    near = near_duplicates.search(run)
    found = specs_of(run, near=near)
    with closing(ScoreTables(run, found.specs, files=run.path)) as scorer:
        identities = FitIdentities(run, found)
        fitted = [spec for spec in found.specs if scorer.has_model(spec)]
        for spec in fitted:
            identities.check(spec.label, scorer.model(spec))
        wrong = next((spec for spec in found.specs if spec.task == "misclassification"), None)
        cautions = _class_cautions(run)
        notices = [*cautions, *duplicates.copies_in_words(found.copies)]
        notices += [*duplicates.in_words(found.overlaps), *near.in_words(), *found.skipped]
        notices += [
            f"{spec.label}: no meta model in {run.meta_path / spec.label}; fit-meta could not fit it, or was not run "
            "since"
            for spec in found.specs
            if not scorer.has_model(spec)
        ]
        blocks = scorer.blocks([spec for spec in fitted if spec.reported], wrong=wrong)
        if not blocks:
            raise EvaluationError(f"{run.path}: nothing to report: {'; '.join(notices)}")
        records = list(score_records(blocks))
        groups = ood_groups(run)
        records += group_records(blocks, groups, list(records))
        notices += [*rounding_in_words(scorer.inputs), *_model_notices(scorer), *remarks(blocks, records)]
        records += near.records()
        not_compared = _not_compared(run, scorer.inputs.scores)
        clear_page(*(run.evaluation_path / name for name in PAGES))
        scorer.write(run.evaluation_path)
    path = run.evaluation_path / "metrics.json"
    near_duplicates.write_pairs(run, near)
    entries = [record.entry() for record in records]
    write_text(path.with_suffix(".csv"), pd.DataFrame(entries).to_csv(index=False))
    write_text(path, json.dumps(entries, indent=1, allow_nan=False) + "\n")
    labels = [spec.label for spec in fitted]
    return EvaluationReport(
        records, notices, path, labels, near, label_warnings(run), not_compared, cautions, groups=groups
    )


def _not_compared(run: RunFolder, scores: FittedBaselines) -> str | None:
    """Says of which baselines, often the strongest, a verdict is silent, and which were fitted without a bank."""
    if scores.missing:
        return (
            f"not compared with {', '.join(scores.missing)}, often the strongest baselines, which need "
            "features.penultimate: true and, at best, data.in_dist.bank when features are extracted"
        )
    if BANK not in {info.name for info in run.splits()}:
        return (
            f"without data.in_dist.bank, scores of penultimate features (knn, vim and others) were fitted on {FIT}; "
            "with a bank of samples that trained the classifier they may be stronger"
        )
    return None


def _intact_models(run: RunFolder) -> set[Path]:
    """The folders of meta models in which every file is as it was recorded."""
    there = {path.parent for path in run.meta_path.glob(f"*/*/*/{DESCRIPTION}")}
    return {folder for folder in there if is_intact(run.path, folder)}


def _known(folder: Path, inputs: Inputs) -> MetaModel | None:
    """The model in a folder, if it looks at these inputs."""
    try:
        return MetaModel.load(folder, inputs)
    except StoreError:
        return None


def _fitted_anew(folder: Path, spec: MetaModelSpec, fits: ModelFits, identities: FitIdentities) -> MetaModel:
    """Fits a model and those it has to beat, and writes them to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    fit = fits.fit(spec)
    model = identities.noted(fit.model, spec)
    for name, baseline in fit.baselines.items():
        baseline.save(folder / name)
    model.save(folder)  # last, so that a model that is there has its baselines
    return model


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


def _model_notices(scorer: ScoreTables) -> list[str]:
    if not scorer.seen_by_meta_wrong:
        return []
    return [
        f"no score meta_wrong for {', '.join(scorer.seen_by_meta_wrong)}: the misclassification model was fitted "
        "on copies of samples of the set"
    ]


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


def _class_cautions(run: RunFolder) -> list[str]:
    """Says when the in-distribution samples that fit and those reported are not of the same classes."""
    if TEST not in {info.name for info in run.splits()}:
        return []
    classes = {split: set(run.read(split, columns=["label"])["label"]) - {-1} for split in (FIT, TEST)}
    lacking = [
        f"{split} has no sample of {_named(classes[other] - classes[split], run.class_names)}, which {other} has"
        for split, other in ((FIT, TEST), (TEST, FIT))
        if classes[other] - classes[split]
    ]
    if not lacking:
        return []
    return [
        f"{'; '.join(lacking)}: the figures mix up the task with the change of classes. If the data are sorted by "
        "class, select by `hash` instead of `start` and `stop`"
    ]


def _named(classes: Collection[int], names: Sequence[str] | None) -> str:
    """Classes by their names, where they have names."""
    called = [str(label) if names is None else names[label] for label in sorted(classes)]
    return f"class{'es' if len(called) > 1 else ''} {some(called)}"
