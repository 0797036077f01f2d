"""Evaluates the fitted meta models of a run, and compares evaluated runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd

from ..baselines import FittedBaselines
from ..data import BANK, FIT, TEST
from ..errors import EvaluationError, StoreError
from ..meta import ScoreChoice
from ..models import is_of_weights
from ..notices import Notice, by_urgency
from ..store import RunFolder, changing, label_warnings, refuse_other_content
from ..system import clear_page, some, write_text
from .answer import DECIDING, Answer, answer_of, bundle_command, choices_of, without_gradients
from .deployed import deployed_protocol
from .duplicates import duplicate_notices
from .fits import class_notices, specs_of
from .intervals import DifferenceTest, paired_delong, paired_delong_of_truths
from .metrics import auroc
from .near_duplicates import NearDuplicates, find_near_duplicates
from .prepared import rounding_notices
from .protocols import FitIdentities, MetaModelSpec
from .records import Record, group_records, joint_records, near_duplicate_records, rank_alike, remarks, score_records
from .score_tables import SET_KEY, ScoreFile, ScoreTables, made_of, read_scores, score_columns, scores_of
from .verdicts import Verdict, verdicts, with_single_sets

FEW_POSITIVES = 15
"""With fewer in a run, tests of two truths are too sure: of 5 to 10, 5 to 14 % are below 0.05; of 15 or more, 8 %."""

PAGE = "report.html"
"""The report of an evaluation, which `reporting` writes beside its figures."""


@dataclass(frozen=True)
class EvaluationReport:
    """Result of an evaluation.

    Attributes:
        records: those of `metrics.json`.
        notices: what a reader should know, warnings and cautions first.
        path: where `metrics.json` lies, with `metrics.csv` and `scores.parquet` beside it.
        models: the meta models that scored, as `<task>/<protocol>/<name>`.
        near_duplicates: reported images that are nearly images of `in_dist.fit`.
        not_compared: which baselines the verdicts say nothing of, or too little, and why; None where all are there.
            Where some are not, no verdict says `better`.
        groups: name of a group of OOD sets -> names of its sets.
        choices: by task, the choice of the model that a bundle has.
        next_command: what to type next where there is a verdict.
        without_gradients: how to do without gradients, and what it saves; None where the run has none.
        deciding: what has a score decide, its name in the place of `{}`.
    """

    records: list[Record]
    notices: list[Notice]
    path: Path
    models: list[str]
    near_duplicates: NearDuplicates
    not_compared: str | None
    groups: Mapping[str, Sequence[str]]
    choices: Mapping[str, ScoreChoice]
    next_command: str
    without_gradients: str | None
    deciding: str = DECIDING

    @cached_property
    def answer(self) -> Answer:
        """Which score to use, what it catches, whether gradients are worth their time, and what to do next."""
        return answer_of(
            self.verdicts,
            self.records,
            groups=self.groups,
            choices=self.choices,
            next_command=self.next_command,
            without_gradients=self.without_gradients,
            deciding=self.deciding,
            doubts="; ".join(self.warnings),
        )

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The table of `scores.parquet`, see `read_scores`; read when it is first asked for."""
        return self.score_file.table()

    @property
    def score_file(self) -> ScoreFile:
        """Scores in their file, of which one data set is read at a time."""
        return ScoreFile(self.path.parent)

    @property
    def warnings(self) -> list[Notice]:
        """The notices after which figures may mean nothing."""
        return [notice for notice in self.notices if notice.level == "warning"]

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts, to read first; none where warnings say that no figure can be trusted."""
        if self.warnings:
            return []
        return verdicts(self.records, groups=self.groups, complete=self.not_compared is None)


def evaluate_run(run: RunFolder, *, skipped: Sequence[str] | None = None) -> EvaluationReport:
    """Reports on the meta models of a run: `metrics.json`, `metrics.csv` and `scores.parquet`; nothing is fitted.

    Args:
        run: a run folder with meta models.
        skipped: which models could not be fitted and why, where they were just fitted.

    Returns:
        Its records are those of `score_records`, then those of `group_records`, then those of `joint_records`.

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
        raise StoreError(f"{run.path}: no meta models; run `gradscore fit-meta {quote(str(run.path))}` first")
    run.refuse_other_files()
    with changing(run.path, [run.evaluation_path.name]):
        near = find_near_duplicates(run)
        found = specs_of(run)
        scorer = ScoreTables(run, found.specs, files=run.path)
        identities = FitIdentities(run, found)
        fitted = [spec for spec in found.specs if scorer.has_model(spec)]
        for spec in fitted:
            identities.check(spec.label, scorer.model(spec))
        notices: list[str] = [*filter(is_of_weights, run.manifest.notices), *class_notices(run)]
        notices += duplicate_notices([*found.copies, *found.overlaps])
        notices += [*near.sentences(), *(found.skipped if skipped is None else skipped)]
        notices += [
            f"{spec.label}: no meta model in {run.meta_path / spec.label}; fit-meta could not fit it, or was not run "
            "since"
            for spec in found.specs
            if skipped is None and not scorer.has_model(spec)
        ]
        scored = scorer.scored_sets(_headline_first(run, [spec for spec in fitted if spec.reported]))
        if not scored:
            advice = f". `gradscore bundle {quote(str(run.path))}` decides without a report" if fitted else ""
            raise EvaluationError(
                f"{run.path}: nothing to report: {'; '.join(notices)}. Give OOD sets in data.ood (in Python ood=...)"
                f"{advice}"
            )
        records = list(score_records(scored))
        groups = _ood_groups(run)
        records += group_records(scored, groups, list(records))
        notices += rounding_notices(scorer.inputs)
        notices += remarks(scored, records)
        records += joint_records(scorer.jointly_scored_sets())
        records += near_duplicate_records(near)
        clear_page(run.evaluation_path / PAGE)
        scorer.write(run.evaluation_path)
        path = run.evaluation_path / "metrics.json"
        near.write(run)
        entries = [record.entry() for record in records]
        write_text(path.with_suffix(".csv"), pd.DataFrame(entries).to_csv(index=False))
        write_text(path, json.dumps(entries, indent=1, allow_nan=False) + "\n")
    return EvaluationReport(
        records,
        by_urgency([*label_warnings(run), *found.copied_sets, *notices]),
        path,
        [spec.label for spec in fitted],
        near,
        _not_compared(run, scorer.inputs.baselines),
        groups=groups,
        choices=choices_of(run, {spec.label: scorer.model(spec).notes for spec in fitted}),
        next_command=bundle_command(run.path, has_code=run.names_code),
        without_gradients=without_gradients(run),
    )


def _headline_first(run: RunFolder, specs: Sequence[MetaModelSpec]) -> list[MetaModelSpec]:
    """The protocol that says how good the model of bundles is, before the others.

    It is the model's own; of one that knows all OOD sets it is `leave_one_dataset_out`, where nothing is fitted on the
    set that is judged.
    """
    protocols = ["leave_one_dataset_out", "auxiliary", "in_dist_only", "known"]
    deployed = deployed_protocol(run)
    if deployed is not None and (deployed != "known" or not any(each.protocol == protocols[0] for each in specs)):
        protocols = [deployed, *protocols]
    return sorted(specs, key=lambda each: (each.task == "ood", protocols.index(each.protocol)))


def stored_verdicts(run: RunFolder) -> list[Verdict]:
    """The verdicts of the last evaluation of a run that tell, those on single sets in no group among them.

    There are none where there was no evaluation of what it holds now.

    Raises:
        StoreError: the figures are not those that were recorded.
    """
    path = run.evaluation_path / "metrics.json"
    if not path.is_file() or label_warnings(run) or ScoreFile(run.evaluation_path).made_of() != made_of(run):
        return []
    refuse_other_content(run.path, [path.relative_to(run.path).as_posix()], again="evaluate again")
    records = [Record(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    groups = _ood_groups(run)
    return with_single_sets([each for each in verdicts(records, groups=groups) if each.tells], groups)


def _not_compared(run: RunFolder, scores: FittedBaselines) -> str | None:
    """Says of which baselines, often the strongest, a verdict is silent, and which were fitted without a bank."""
    if scores.missing:
        return (
            f"not compared with {some(scores.missing, 4)}, often the strongest baselines: they need what enters the "
            "linear layer that makes the logits (features.penultimate: auto, or its name) and, at best, "
            "data.in_dist.bank"
        )
    if BANK not in {info.name for info in run.splits()}:
        return (
            "without a bank of training samples (data.in_dist.bank, in Python fit(bank=...)), baselines of penultimate "
            f"features (knn, vim and others) were fitted on {FIT}; with one they may be stronger"
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


_KEY = ["ood", "content_hash", "copy"]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A run against the first one on one data set.

    Attributes:
        task: `misclassification` or `ood`.
        protocol: the protocol.
        dataset: the data set.
        run: the run compared.
        n: samples both runs have.
        n_positive: wrong or OOD ones among them, in the first run and in this one.
        first: AUROC in the first run.
        other: AUROC in this run.
        test: of `other` minus `first`; None with fewer than two samples of either class.
    """

    task: str
    protocol: str
    dataset: str
    run: Path
    n: int
    n_positive: tuple[int, int]
    first: float | None
    other: float | None
    test: DifferenceTest | None


@dataclass(frozen=True)
class Comparison:
    """All comparisons, and what a reader should know."""

    compared: list[Compared]
    notices: list[str]


def compare_runs(runs: Sequence[RunFolder], *, score: str = "chosen") -> Comparison:
    """Compares the AUROC of a score in several evaluated runs with that in the first of them.

    Samples are matched by content within each data set; only those that both runs report count. Where both runs have
    the same positives the test is DeLong's, paired; for the mistakes of different classifiers each run keeps its own
    truth.

    Args:
        runs: two or more evaluated runs.
        score: `chosen` or any other score of `scores.parquet`.

    Returns:
        One entry for each data set and each run after the first.

    Raises:
        EvaluationError: fewer than two runs, a run given twice, no such score, nothing in common, or other labels.
        StoreError: a run that is not evaluated, or damaged.
    """
    paths = [run.path.resolve() for run in runs]
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise EvaluationError(
            f"compare: wanted two or more different runs, got {', '.join(str(run.path) for run in runs)}"
        )
    for run in runs:
        run.refuse_other_files()
    tables = [_blocks(run, score) for run in runs]
    found: list[Compared] = []
    notices: list[str] = []
    for run, table in zip(runs[1:], tables[1:], strict=True):
        for key, first in tables[0].items():
            if key in table:
                compared, remarks_on_it = _compare(key, first, table[key], run=run.path, score=score)
                found.append(compared)
                notices += remarks_on_it
        lonely = [*(key for key in tables[0] if key not in table), *(key for key in table if key not in tables[0])]
        if lonely:
            names = "; ".join(f"{dataset} ({task}, {protocol})" for task, protocol, dataset in lonely)
            notices.append(f"left out, as only one of {runs[0].path} and {run.path} reports it: {names}")
    if not found:
        raise EvaluationError(f"compare: the runs have no data set in common; {'; '.join(notices)}")
    return Comparison(found, notices)


def _blocks(run: RunFolder, score: str) -> dict[tuple[str, ...], pd.DataFrame]:
    table = read_scores(run)
    if score not in score_columns(table):
        known = ", ".join(score_columns(table))
        raise EvaluationError(f"{run.path}: no score {score!r}; wanted one of {known}")
    blocks = {tuple(str(part) for part in key): block for key, block in table.groupby(SET_KEY, sort=False)}
    return {key: block for key, block in blocks.items() if score in scores_of(block)}


def _compare(
    key: tuple[str, ...], first: pd.DataFrame, other: pd.DataFrame, *, run: Path, score: str
) -> tuple[Compared, list[str]]:
    task, protocol, dataset = key
    columns = [*_KEY, "label", "positive", score]
    joined = _numbered(first)[columns].merge(_numbered(other)[columns], on=_KEY, suffixes=("_first", "_other"))
    where = f"{task}, {protocol}, {dataset}"
    if joined.empty:
        raise EvaluationError(
            f"{run}: {where}: not one of its {len(other)} samples is among the {len(first)} of the first run"
        )
    labels = joined[["label_first", "label_other"]]
    differing = int(((labels >= 0).all(axis=1) & (labels["label_first"] != labels["label_other"])).sum())
    if differing:
        raise EvaluationError(
            f"{run}: {where}: {differing} samples have another label than in the first run; both need the same labels, "
            "and classes in the same order"
        )
    ours, theirs = (joined[f"positive_{side}"].to_numpy(dtype=np.bool_) for side in ("first", "other"))
    a, b = joined[f"{score}_first"], joined[f"{score}_other"]
    same = bool((ours == theirs).all())
    test = paired_delong(b, a, ours) if same else paired_delong_of_truths(b, a, theirs, ours)
    if test is not None and same and rank_alike(a.to_numpy(), b.to_numpy()):
        test = replace(test, low=0.0, high=0.0)
    compared = Compared(
        task=task,
        protocol=protocol,
        dataset=dataset,
        run=run,
        n=len(joined),
        n_positive=(int(ours.sum()), int(theirs.sum())),
        first=auroc(a, ours),
        other=auroc(b, theirs),
        test=test,
    )
    said = []
    if unmatched := len(first) + len(other) - 2 * len(joined):
        said.append(f"{unmatched} samples are in one of the runs only")
    if not same and min(compared.n_positive) < FEW_POSITIVES:
        said.append(f"of {min(compared.n_positive)} positives, small p come up to three times as often as p says")
    return compared, [f"{run}: {where}: {each}" for each in said]


def _numbered(block: pd.DataFrame) -> pd.DataFrame:
    """Adds to each sample whether it is of an OOD set, and its number among those of equal content."""
    ood = block["split"].str.startswith("ood.")
    return block.assign(ood=ood, copy=block.groupby([ood, "content_hash"]).cumcount())
