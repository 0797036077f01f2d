"""Comparing runs: checkpoints, losses, statistics or layers, on the samples they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import EvaluationError
from ..store import RunFolder
from .delong import DifferenceTest, paired_delong, paired_delong_of_truths
from .metrics import auroc
from .score_tables import BLOCK, read_scores, score_columns, scores_of

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

    compared: list[Compared] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def compare_runs(runs: Sequence[RunFolder], *, score: str = "meta") -> Comparison:
    """Compares the AUROC of a score in several evaluated runs with that in the first of them.

    Samples are matched by content within each data set; only those that both runs report count. Where both runs have
    the same positives the test is DeLong's, paired; for the mistakes of different classifiers each run keeps its own
    truth.

    Args:
        runs: two or more evaluated runs.
        score: `meta` or any other score of `scores.parquet`.

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
    tables = [_blocks(run, score) for run in runs]
    result = Comparison()
    for run, table in zip(runs[1:], tables[1:], strict=True):
        for key, first in tables[0].items():
            if key in table:
                compared, notice = _compare(key, first, table[key], run=run.path, score=score)
                result.compared.append(compared)
                result.notices.extend([notice] if notice else [])
        lonely = [*(key for key in tables[0] if key not in table), *(key for key in table if key not in tables[0])]
        if lonely:
            names = "; ".join(", ".join(key) for key in lonely)
            result.notices.append(f"{runs[0].path} and {run.path}: not reported by both, so left out: {names}")
    if not result.compared:
        raise EvaluationError(f"compare: the runs have no data set in common; {'; '.join(result.notices)}")
    return result


def _blocks(run: RunFolder, score: str) -> dict[tuple[str, ...], pd.DataFrame]:
    table = read_scores(run)
    if score not in score_columns(table):
        known = ", ".join(score_columns(table))
        raise EvaluationError(f"{run.path}: no score {score!r}; wanted one of {known}")
    blocks = {tuple(str(part) for part in key): block for key, block in table.groupby(BLOCK, sort=False)}
    return {key: block for key, block in blocks.items() if score in scores_of(block)}


def _compare(
    key: tuple[str, ...], first: pd.DataFrame, other: pd.DataFrame, *, run: Path, score: str
) -> tuple[Compared, str | None]:
    task, protocol, dataset = key
    columns = [*_KEY, "label", "positive", score]
    joined = _numbered(first)[columns].merge(_numbered(other)[columns], on=_KEY, suffixes=("_first", "_other"))
    where = f"{task}, {protocol}, {dataset}"
    if joined.empty:
        raise EvaluationError(
            f"{run}: {where}: not one of its {len(other)} samples is among the {len(first)} of the first run"
        )
    differing = int((joined["label_first"] != joined["label_other"]).sum())
    if differing:
        raise EvaluationError(f"{run}: {where}: {differing} samples have another label than in the first run")
    ours, theirs = (joined[f"positive_{side}"].to_numpy(dtype=np.bool_) for side in ("first", "other"))
    a, b = joined[f"{score}_first"], joined[f"{score}_other"]
    same = bool((ours == theirs).all())
    test = paired_delong(b, a, ours) if same else paired_delong_of_truths(b, a, theirs, ours)
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
    unmatched = len(first) + len(other) - 2 * len(joined)
    return compared, f"{run}: {where}: {unmatched} samples are in one of the runs only" if unmatched else None


def _numbered(block: pd.DataFrame) -> pd.DataFrame:
    """Adds to each sample whether it is of an OOD set, and its number among those of equal content."""
    ood = block["split"].str.startswith("ood.")
    return block.assign(ood=ood, copy=block.groupby([ood, "content_hash"]).cumcount())
