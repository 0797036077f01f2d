"""Scores of the samples a spec reports: its meta model's, and those it has to beat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import FIT
from ..meta import Inputs, MetaModel, at_prevalence
from ..store import RunFolder
from ..system import FloatArray
from .preparation import Prepared, Read
from .protocols import MetaModelSpec
from .score_table import LEADING

LOGIT_LR = "logit_lr"
"""Score, and folder beside the meta model, of a logistic regression on the scores of logits alone."""

SCORE_LR = "score_lr"
"""The same on all scores that the meta model sees: what it gains over this one, it gains by gradients."""

META_WRONG = "meta_wrong"
"""Score of the misclassification meta model on OOD sets; it has seen no OOD sample."""

MISCLASSIFICATION = "misclassification/in_dist_only/all"
"""Where the misclassification model lies, which also scores covariate-shifted sets."""


class ScoreTables:
    """The scores of reported samples, split by split, each model applied once.

    Args:
        run: a run folder with meta models.
        read: reads the feature table of a split.

    Raises:
        StoreError: what makes the inputs of the models is missing or damaged.
    """

    def __init__(self, run: RunFolder, read: Read) -> None:
        self._run = run
        self._read = read
        self._prepared = Prepared(Inputs.load(run.inputs_path), read)
        self._cache: dict[tuple[Path, str], FloatArray] = {}
        self._models: dict[Path, MetaModel | None] = {}
        self.seen_by_meta_wrong: list[str] = []
        """Data sets without a score `meta_wrong`, because that model was fitted on some of their samples."""

    @property
    def inputs(self) -> Inputs:
        """What makes the inputs of the models."""
        return self._prepared.inputs

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
        shifted = replace(spec, task="shifted", reported=spec.shifted)
        blocks = [self._block(each, dataset, wrong) for each in (spec, shifted) for dataset in each.reported]
        return pd.concat(blocks, ignore_index=True)

    def _block(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec | None) -> pd.DataFrame:
        folder = self._folder(spec)
        model = self._existing(folder)
        scores: dict[str, list[FloatArray]] = {}
        frames = []
        folders = {"meta": folder, **{name: folder / name for name in (LOGIT_LR, SCORE_LR)}}
        if spec.task == "ood" and spec.protocol == "in_dist_only" and wrong is not None and self.has_model(wrong):
            if self._seen(spec, dataset, wrong):
                self.seen_by_meta_wrong.append(dataset)
            else:
                folders[META_WRONG] = self._folder(wrong)
        for split, mask in spec.reported[dataset].items():
            frame = self._read(split).loc[mask, ["split", "sample_id", "content_hash", "label", "prediction"]]
            frames.append(frame.assign(positive=spec.positive[split][mask]))
            for name, place in folders.items():
                scores.setdefault(name, []).append(self._decision(place, split)[mask])
            free = self._prepared.scores(split)
            for name in self.inputs.scores.rivals:
                scores.setdefault(name, []).append(free[name].to_numpy()[mask])
        table = pd.concat(frames, ignore_index=True).assign(task=spec.task, protocol=spec.protocol, dataset=dataset)
        joined = {name: np.concatenate(parts) for name, parts in scores.items()}
        table["probability"] = _probability(model, joined["meta"])
        return pd.concat([table[list(LEADING)], pd.DataFrame(joined)], axis=1)

    def _decision(self, folder: Path, split: str) -> FloatArray:
        """The scores of a split by the model in a folder; not a number where there is none."""
        key = (folder, split)
        if key not in self._cache:
            model = self._model(folder)
            count = len(self._read(split))
            self._cache[key] = (
                np.full(count, np.nan) if model is None else model.of_scaled(self._prepared.scaled(split))
            )
        return self._cache[key]

    def _seen(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec) -> bool:
        fitted = set(self._read(FIT)["content_hash"][wrong.fit[FIT]])
        return any(
            not fitted.isdisjoint(self._read(split)["content_hash"][mask])
            for split, mask in spec.reported[dataset].items()
        )

    def _folder(self, spec: MetaModelSpec) -> Path:
        return self._run.meta_path / (MISCLASSIFICATION if spec.task == "shifted" else spec.label)

    def _existing(self, folder: Path) -> MetaModel:
        return self._model(folder) or MetaModel.load(folder, self.inputs)

    def _model(self, folder: Path) -> MetaModel | None:
        if folder not in self._models:
            self._models[folder] = MetaModel.load(folder, self.inputs) if folder.is_dir() else None
        return self._models[folder]


def fits_two_classes(spec: MetaModelSpec) -> bool:
    """Whether the spec's model is fitted on positives and negatives; else it knows ordinary samples alone."""
    return spec.task != "ood" or spec.protocol != "in_dist_only"


def _probability(model: MetaModel, decision: FloatArray) -> FloatArray:
    if model.kind != "logistic":
        return np.full(len(decision), np.nan)
    return at_prevalence(decision, n=int(model.notes["n"]), n_positive=int(model.notes["n_positive"]))
