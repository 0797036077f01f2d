"""Reports on the fitted meta models of a run: scores, figures and their intervals, and what to read first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from ..baselines import FittedBaselines
from ..data import BANK, FIT, TEST
from ..errors import EvaluationError, StoreError
from ..notices import Notice, notes
from ..store import RunFolder, changing, label_warnings
from ..system import clear_page, write_text
from .duplicates import duplicate_notices
from .fit_identity import FitIdentities
from .fits import class_notices, rounding_notices, specs_of
from .near_duplicates import NearDuplicates, find_near_duplicates
from .records import Record, group_records, remarks, score_records
from .score_tables import ScoreFile, ScoreTables
from .verdict import NOTHING_TO_TELL, Verdict, verdicts

PAGES = ("report.html", "report.md")
"""The report of an evaluation, which `reporting` writes beside its figures."""


@dataclass(frozen=True)
class EvaluationReport:
    """What was found.

    Attributes:
        records: those of `metrics.json`.
        notices: what a reader should know, warnings and cautions first.
        path: where `metrics.json` lies, with `metrics.csv` and `scores.parquet` beside it.
        models: the meta models that scored, as `<task>/<protocol>/<name>`.
        near_duplicates: reported images that are nearly images of `in_dist.fit`.
        not_compared: which baselines the verdicts say nothing of, or too little, and why; None where all are there.
            Where some are not, no verdict says `better`.
        groups: name of a group of OOD sets -> names of its sets.
    """

    records: list[Record]
    notices: list[Notice]
    path: Path
    models: list[str]
    near_duplicates: NearDuplicates
    not_compared: str | None = None
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
    def warnings(self) -> list[Notice]:
        """The notices after which figures may mean nothing."""
        return [notice for notice in self.notices if notice.level == "warning"]

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
        near = find_near_duplicates(run)
        found = specs_of(run, near=near)
        scorer = ScoreTables(run, found.specs, files=run.path)
        identities = FitIdentities(run, found)
        fitted = [spec for spec in found.specs if scorer.has_model(spec)]
        for spec in fitted:
            identities.check(spec.label, scorer.model(spec))
        wrong = next((spec for spec in found.specs if spec.task == "misclassification"), None)
        notices: list[str] = [*class_notices(run), *duplicate_notices([*found.copies, *found.overlaps])]
        notices += [*near.in_words(), *found.skipped]
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
        groups = _ood_groups(run)
        records += group_records(blocks, groups, list(records))
        notices += rounding_notices(scorer.inputs)
        if scorer.seen_by_meta_wrong:
            notices.append(
                f"no score meta_wrong for {', '.join(scorer.seen_by_meta_wrong)}: the misclassification model was "
                "fitted on copies of samples of the set"
            )
        notices += remarks(blocks, records)
        records += near.records()
        clear_page(*(run.evaluation_path / name for name in PAGES))
        scorer.write(run.evaluation_path)
        path = run.evaluation_path / "metrics.json"
        near.write(run)
        entries = [record.entry() for record in records]
        write_text(path.with_suffix(".csv"), pd.DataFrame(entries).to_csv(index=False))
        write_text(path, json.dumps(entries, indent=1, allow_nan=False) + "\n")
    return EvaluationReport(
        records,
        [*label_warnings(run), *notes(notices)],
        path,
        [spec.label for spec in fitted],
        near,
        _not_compared(run, scorer.inputs.scores),
        groups=groups,
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


def _ood_groups(run: RunFolder) -> dict[str, list[str]]:
    """The groups of OOD sets of a run without auxiliary ones, and `all` of two or more sets unless a group is that."""
    sets = [info for info in run.splits() if info.is_reported_ood]
    groups: dict[str, list[str]] = {}
    for info in sets:
        if info.group is not None:
            groups.setdefault(info.group, []).append(info.dataset_name)
    everything = [info.dataset_name for info in sets]
    return groups | ({"all": everything} if len(everything) > 1 and everything not in groups.values() else {})
