"""Fitting the meta models of a run folder, and reporting on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import EvaluationError, StoreError
from ..files import only_writer, write_text
from ..meta import MetaModel, balanced_weights, fit_distance_model, fit_meta_model
from ..scaling import FloatArray
from ..scores import SCORES
from ..store import META_COLUMNS, RunFolder, logit_columns
from .delong import auroc_interval
from .metrics import METRICS, one_class_reason
from .protocols import FIT, TEST, Plan, Plans, Rows, SplitRows, make_plans

BASELINES = ("msp", "entropy", "margin", "max_logit", "energy")
"""Scores of `gradscore.scores` reported beside `meta` on the same samples."""

Record = dict[str, Any]
Read = Callable[[str], pd.DataFrame]


@dataclass(frozen=True)
class Fitted:
    """A plan and the model fitted by it."""

    plan: Plan
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
    """The records of `metrics.json`, where it lies, and what a reader should know."""

    records: list[Record]
    notices: list[str]
    path: Path


def fit_run(run: RunFolder, *, progress: Callable[[str], None] | None = None) -> FitReport:
    """Fits every meta model of a run and writes them to `meta/<task>/<protocol>/<name>/`.

    Args:
        run: a finished run folder.
        progress: told the name of each model before it is fitted.

    Returns:
        The models, and which were skipped and why.

    Raises:
        EvaluationError: not a single model can be fitted.
        StoreError: the run is not finished or damaged, or another process writes to it.
    """
    plans = _plans(run)
    read = _reader(run)
    models: list[Fitted] = []
    skipped = list(plans.skipped)
    with only_writer(run.path):
        for plan in plans.plans:
            if progress is not None:
                progress(plan.label)
            folder = run.meta_path / plan.label
            try:
                model = _fitted(plan, read=read, run=run)
            except EvaluationError as error:
                skipped.append(f"{plan.label}: {error}")
                shutil.rmtree(folder, ignore_errors=True)
                continue
            model.save(folder)
            models.append(Fitted(plan, model))
    if not models:
        raise EvaluationError(f"{run.path}: no meta model can be fitted: {'; '.join(skipped)}")
    return FitReport(models, skipped, _class_notices(run), run.meta_path)


def evaluate_run(run: RunFolder) -> EvaluationReport:
    """Reports on the meta models of a run and writes `evaluation/metrics.json`; nothing is fitted.

    Args:
        run: a run folder with meta models.

    Returns:
        One record `{task, dataset, protocol, score, metric, value, n, n_positive}` for each combination; that of an
        AUROC also holds `low` and `high`, the bounds of its 95 % interval (DeLong). `value` is None where only one
        class was seen.

    Raises:
        EvaluationError: the run holds nothing to report on, or a value that is not finite.
        StoreError: no meta models, or a damaged file.
    """
    if not run.meta_path.is_dir():
        raise StoreError(f"{run.path}: no meta models; run `gradscore fit-meta {run.path}` first")
    plans = _plans(run)
    read = _reader(run)
    notices = [*_class_notices(run), *plans.skipped]
    records: list[Record] = []
    for plan in plans.plans:
        folder = run.meta_path / plan.label
        if folder.is_dir():
            records.extend(_records(plan, MetaModel.load(folder), read=read, notices=notices))
        else:
            notices.append(f"{plan.label}: no meta model in {folder}; fit-meta could not fit it, or was not run since")
    if not records:
        raise EvaluationError(f"{run.path}: nothing to report: {'; '.join(notices)}")
    path = run.evaluation_path / "metrics.json"
    write_text(path, json.dumps(records, indent=1, allow_nan=False) + "\n")
    return EvaluationReport(records, notices, path)


def _plans(run: RunFolder) -> Plans:
    rows = []
    for info in run.splits():
        frame = run.read(info.name, columns=["content_hash", "correct"])
        rows.append(SplitRows(info, frame["content_hash"], frame["correct"]))
    return make_plans(rows, protocols=run.config.evaluate.protocols, seed=run.config.evaluate.seed)


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


def _reader(run: RunFolder) -> Read:
    """Reads each split once."""
    frames: dict[str, pd.DataFrame] = {}

    def read(split: str) -> pd.DataFrame:
        if split not in frames:
            frames[split] = run.read(split)
        return frames[split]

    return read


def _fitted(plan: Plan, *, read: Read, run: RunFolder) -> MetaModel:
    frame = _selected(plan.fit, read=read)
    if plan.task == "ood" and plan.protocol == "in_dist_only":
        return fit_distance_model(frame)
    target = _positive(plan, plan.fit)
    return fit_meta_model(frame, target, balanced_weights(target, frame["split"]), run.config.meta)


def _records(plan: Plan, model: MetaModel, *, read: Read, notices: list[str]) -> Iterator[Record]:
    names = {
        "misclassification": ("misclassified sample", "correctly classified sample"),
        "ood": ("OOD sample", "in-distribution sample"),
    }
    for dataset, rows in plan.reported.items():
        frame = _selected(rows, read=read)
        positive = _positive(plan, rows)
        positive_name, negative_name = names[plan.task]
        reason = one_class_reason(positive, positive_name=positive_name, negative_name=negative_name)
        if reason is not None:
            notices.append(f"{plan.label}, {dataset}: {reason}; the values are null")
        logits = frame[logit_columns(frame)].to_numpy(dtype=np.float64)
        scores = {"meta": model.decision(frame), **{name: SCORES[name](logits) for name in BASELINES}}
        common = {"task": plan.task, "dataset": dataset, "protocol": plan.protocol}
        counts = {"n": len(positive), "n_positive": int(positive.sum())}
        for name, values in scores.items():
            for metric, function in METRICS.items():
                record = {**common, "score": name, "metric": metric, "value": function(values, positive), **counts}
                yield record | (_bounds(values, positive) if metric == "auroc" else {})


def _bounds(values: FloatArray, positive: Any) -> dict[str, float | None]:
    interval = auroc_interval(values, positive)
    return {"low": interval.low if interval else None, "high": interval.high if interval else None}


def _selected(rows: Rows, *, read: Read) -> pd.DataFrame:
    frames = [read(split)[mask] for split, mask in rows.items()]
    meta = set(META_COLUMNS) - {"split"}
    return pd.concat([frame.drop(columns=[*meta & set(frame.columns)]) for frame in frames], ignore_index=True)


def _positive(plan: Plan, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.concatenate([plan.positive[split][mask] for split, mask in rows.items()])
