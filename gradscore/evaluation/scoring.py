"""Scores of the samples a spec reports: its meta model's, and those it has to beat."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..columns import META_COLUMNS, logit_columns
from ..data import FIT
from ..meta import MetaModel, at_prevalence
from ..store import RunFolder
from ..system import FloatArray
from .free_scores import FreeScores, fit_free_scores
from .protocols import MetaModelSpec, RowMasks
from .score_table import LEADING

LOGIT_LR = "logit_lr"
"""Score, and folder beside the meta model, of a logistic regression on the logit baselines alone."""

META_WRONG = "meta_wrong"
"""Score of the misclassification meta model on OOD sets; it has seen no OOD sample."""

MISCLASSIFICATION = "misclassification/in_dist_only/all"
"""Where the misclassification model lies, which also scores covariate-shifted sets."""

Read = Callable[[str], pd.DataFrame]


ROWS_AT_A_TIME = 2**16
"""Rows of a feature table that are scored at a time: what a model makes of them is twice as wide and held several
times."""


def frame_reader(run: RunFolder) -> Read:
    """Reads the feature tables of splits and keeps the last one: no two large ones at once."""
    kept: dict[str, pd.DataFrame] = {}

    def read(split: str) -> pd.DataFrame:
        if split not in kept:
            kept.clear()
            kept[split] = run.read(split)
        return kept[split]

    return read


def selected_rows(rows: RowMasks, read: Read) -> pd.DataFrame:
    """The chosen rows of all splits in one table: `split`, logits and features."""
    frames = [read(split)[mask] for split, mask in rows.items()]
    meta = set(META_COLUMNS) - {"split"}
    return pd.concat([frame.drop(columns=[*meta & set(frame.columns)]) for frame in frames], ignore_index=True)


def positive_rows(spec: MetaModelSpec, rows: RowMasks) -> NDArray[np.bool_]:
    """Which of the chosen rows are wrong or OOD, in the order of `selected_rows`."""
    return np.concatenate([spec.positive[split][mask] for split, mask in rows.items()])


class ScoreTables:
    """The scores of reported samples, split by split, each model applied once.

    Args:
        run: a run folder with meta models.
        read: reads the feature table of a split.
        left_out: content hashes of samples of `in_dist.fit` that fit no score without gradients either.
    """

    def __init__(self, run: RunFolder, read: Read, *, left_out: Collection[str] = ()) -> None:
        self._run = run
        self._left_out = left_out
        self._read = read
        self._described: dict[str, pd.DataFrame] = {}
        self._cache: dict[tuple[str, str], FloatArray] = {}
        self._models: dict[Path, MetaModel | None] = {}
        self.without_logit_lr: list[str] = []
        """Labels of the specs that could have a score `logit_lr` and have none."""
        self.seen_by_meta_wrong: list[str] = []
        """Data sets without a score `meta_wrong`, because that model was fitted on some of their samples."""

    @cached_property
    def free_scores(self) -> FreeScores:
        """The scores without gradients."""
        return fit_free_scores(self._run, self._read, left_out=self._left_out)

    def has_model(self, spec: MetaModelSpec) -> bool:
        """Whether there is a meta model for the spec."""
        return self._folder(spec).is_dir()

    def table(self, spec: MetaModelSpec, *, wrong: MetaModelSpec | None) -> pd.DataFrame:
        """The rows of `scores.parquet` of one spec.

        Args:
            spec: what is reported, and by which model.
            wrong: the spec of the misclassification model, for the score `meta_wrong`.

        Returns:
            One row for each reported sample of each data set, as `read_scores` gives them.

        Raises:
            EvaluationError: the features differ from those a model was fitted on, or a value is not finite.
            StoreError: a damaged file.
        """
        if fits_two_classes(spec) and self._model(self._folder(spec) / LOGIT_LR) is None:
            self.without_logit_lr.append(spec.label)
        shifted = replace(spec, task="shifted", reported=spec.shifted)
        blocks = [self._block(each, dataset, wrong) for each in (spec, shifted) for dataset in each.reported]
        return pd.concat(blocks, ignore_index=True)

    def _block(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec | None) -> pd.DataFrame:
        model = self._existing(self._folder(spec))
        scores: dict[str, list[FloatArray]] = {}
        frames = []
        columns = {"meta": model, LOGIT_LR: self._model(self._folder(spec) / LOGIT_LR)}
        if spec.task == "ood" and spec.protocol == "in_dist_only" and wrong is not None and self.has_model(wrong):
            if self._seen(spec, dataset, wrong):
                self.seen_by_meta_wrong.append(dataset)
            else:
                columns[META_WRONG] = self._existing(self._folder(wrong))
        for split, mask in spec.reported[dataset].items():
            frame = self._samples(split)[mask]
            frames.append(frame.assign(positive=spec.positive[split][mask]))
            for name, fitted in columns.items():
                values = (
                    np.full(len(frame), np.nan) if fitted is None else self._decision(fitted, name, spec, split)[mask]
                )
                scores.setdefault(name, []).append(values)
            for name in self.free_scores.fitted:
                scores.setdefault(name, []).append(self._free(name, split)[mask])
        table = pd.concat(frames, ignore_index=True).assign(task=spec.task, protocol=spec.protocol, dataset=dataset)
        joined = {name: np.concatenate(parts) for name, parts in scores.items()}
        table["probability"] = _probability(model, joined["meta"])
        return pd.concat([table[list(LEADING)], pd.DataFrame(joined)], axis=1)

    def _decision(self, model: MetaModel, name: str, spec: MetaModelSpec, split: str) -> FloatArray:
        key = (f"{spec.label}/{name}", split)
        if key not in self._cache:
            frame = self._read(split)
            if name == LOGIT_LR:
                frame = frame[logit_columns(frame.columns)]
            self._cache[key] = _in_parts(model.decision, frame)
        return self._cache[key]

    def _samples(self, split: str) -> pd.DataFrame:
        """What a split says of its samples beside features."""
        if split not in self._described:
            columns = ["split", "sample_id", "content_hash", "label", "prediction"]
            self._described[split] = self._run.read(split, columns)
        return self._described[split]

    def _free(self, name: str, split: str) -> FloatArray:
        if (name, split) not in self._cache:
            self._cache[name, split] = _in_parts(partial(self.free_scores.of, name), self._read(split))
        return self._cache[name, split]

    def _seen(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec) -> bool:
        fitted = set(self._samples(FIT)["content_hash"][wrong.fit[FIT]])
        return any(
            not fitted.isdisjoint(self._samples(split)["content_hash"][mask])
            for split, mask in spec.reported[dataset].items()
        )

    def _folder(self, spec: MetaModelSpec) -> Path:
        return self._run.meta_path / (MISCLASSIFICATION if spec.task == "shifted" else spec.label)

    def _existing(self, folder: Path) -> MetaModel:
        return self._model(folder) or MetaModel.load(folder)

    def _model(self, folder: Path) -> MetaModel | None:
        if folder not in self._models:
            self._models[folder] = MetaModel.load(folder) if folder.is_dir() else None
        return self._models[folder]


def _in_parts(score: Callable[[pd.DataFrame], FloatArray], frame: pd.DataFrame) -> FloatArray:
    """The scores (N,) of a table, some rows after the others; samples are scored independently."""
    starts = range(0, max(len(frame), 1), ROWS_AT_A_TIME)
    return np.concatenate([score(frame.iloc[start : start + ROWS_AT_A_TIME]) for start in starts])


def fits_two_classes(spec: MetaModelSpec) -> bool:
    """Whether the spec's model is fitted on positives and negatives; else it knows ordinary samples alone."""
    return spec.task != "ood" or spec.protocol != "in_dist_only"


def _probability(model: MetaModel, decision: FloatArray) -> FloatArray:
    if model.kind != "logistic":
        return np.full(len(decision), np.nan)
    return at_prevalence(decision, n=int(model.notes["n"]), n_positive=int(model.notes["n_positive"]))
