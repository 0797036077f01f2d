"""Scores of the samples a spec reports: its meta model's, and those it has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import FIT
from ..errors import StoreError
from ..meta import OF_GRADIENTS, Inputs, MetaModel, probabilities
from ..store import RunFolder
from ..system import FloatArray
from .protocols import MetaModelSpec, Task
from .score_table import LEADING

LOGIT_LR = "logit_lr"
"""Score, and folder beside the meta model, of a logistic regression on the scores of logits alone."""

SCORE_LR = "score_lr"
"""The same on all scores that the meta model sees: what it gains over this one, it gains by gradients."""

META_WRONG = "meta_wrong"
"""Score of the misclassification meta model on OOD sets; it has seen no OOD sample."""

MISCLASSIFICATION_MODEL = "misclassification/in_dist_only/all"
"""Where the misclassification model lies, which also scores covariate-shifted sets."""

ROWS_AT_A_TIME = 2**16
"""Rows of a feature table that are scored at a time: what models see of them is held several times."""


class ScoreTables:
    """The scores of reported samples, split by split: each is read once and scored by every model, part by part.

    Args:
        run: a run folder with meta models.
        specs: whose models score, where they are there.

    Raises:
        StoreError: what makes the inputs of the models, or a model, is missing or damaged.
    """

    def __init__(self, run: RunFolder, specs: Sequence[MetaModelSpec]) -> None:
        self._run = run
        self.inputs = Inputs.load(run.inputs_path)
        """What makes the inputs of the models."""
        places = [run.meta_path / spec.label / name for spec in specs for name in (".", LOGIT_LR, SCORE_LR)]
        self._models = {place: MetaModel.load(place, self.inputs) for place in places if place.is_dir()}
        self._check_rivals(specs)
        there = {place.name for place in self._models}
        self._regressions = [name for name in (LOGIT_LR, SCORE_LR) if name in there]
        self._described: dict[str, pd.DataFrame] = {}
        self._scores: dict[str, Mapping[Path | str, FloatArray]] = {}
        self.seen_by_meta_wrong: list[str] = []
        """Data sets without a score `meta_wrong`, because that model was fitted on some of their samples."""

    def _check_rivals(self, specs: Sequence[MetaModelSpec]) -> None:
        for spec in specs:
            folder = self._folder(spec)
            missing = [name for name in rivals_of(spec, self.inputs) if folder / name not in self._models]
            if folder in self._models and missing:
                raise StoreError(
                    f"{folder / missing[0]}: missing, though the meta model beside it has to beat it; run "
                    f"`gradscore fit-meta {self._run.path}` again"
                )

    def has_model(self, spec: MetaModelSpec) -> bool:
        """Whether there is a meta model for the spec."""
        return self._folder(spec) in self._models

    def model(self, spec: MetaModelSpec) -> MetaModel:
        """The meta model of a spec that has one."""
        return self._models[self._folder(spec)]

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
        places: dict[str, Path | str] = {"meta": folder, **{name: folder / name for name in self._regressions}}
        if spec.task == "ood" and spec.protocol == "in_dist_only" and wrong is not None and self.has_model(wrong):
            if self._seen(spec, dataset, wrong):
                self.seen_by_meta_wrong.append(dataset)
            else:
                places[META_WRONG] = self._folder(wrong)
        places |= {name: name for name in self.inputs.scores.rivals}
        scores: dict[str, list[FloatArray]] = {name: [] for name in places}
        frames = []
        for split, mask in spec.reported[dataset].items():
            frames.append(self._samples(split)[mask].assign(positive=spec.positive[split][mask]))
            found = self._scores_of(split)
            for name, place in places.items():
                scores[name].append(found[place][mask] if place in found else np.full(int(mask.sum()), np.nan))
        table = pd.concat(frames, ignore_index=True).assign(task=spec.task, protocol=spec.protocol, dataset=dataset)
        joined = {name: np.concatenate(parts) for name, parts in scores.items()}
        table["probability"] = _probability(self._models[folder], joined["meta"], task=spec.task)
        return pd.concat([table[list(LEADING)], pd.DataFrame(joined)], axis=1)

    def _scores_of(self, split: str) -> Mapping[Path | str, FloatArray]:
        """The scores of a split, by the folder of a model or by name."""
        if split not in self._scores:
            parts: dict[Path | str, list[FloatArray]] = {}
            for rows in self._run.blocks(split, rows=ROWS_AT_A_TIME):
                table = self.inputs.score_table(rows)
                scaled = self.inputs.scaled(rows, table)
                for folder, model in self._models.items():
                    parts.setdefault(folder, []).append(model.of_scaled(scaled))
                for name in self.inputs.scores.rivals:
                    parts.setdefault(name, []).append(table[name].to_numpy())
            self._scores[split] = {place: np.concatenate(values) for place, values in parts.items()}
        return self._scores[split]

    def _samples(self, split: str) -> pd.DataFrame:
        """What a split says of its samples beside features."""
        if split not in self._described:
            columns = ["split", "sample_id", "content_hash", "label", "prediction"]
            self._described[split] = self._run.read(split, columns)
        return self._described[split]

    def _seen(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec) -> bool:
        fitted = set(self._samples(FIT)["content_hash"][wrong.fit[FIT]])
        return any(
            not fitted.isdisjoint(self._samples(split)["content_hash"][mask])
            for split, mask in spec.reported[dataset].items()
        )

    def _folder(self, spec: MetaModelSpec) -> Path:
        return self._run.meta_path / (MISCLASSIFICATION_MODEL if spec.task == "shifted" else spec.label)


def rivals_of(spec: MetaModelSpec, inputs: Inputs) -> dict[str, list[str]]:
    """The regressions that a spec's model has to beat, by name: the names of the inputs that each of them sees."""
    if not fits_two_classes(spec):
        return {}
    groups = dict(zip(inputs.names, inputs.groups, strict=True))
    of_logits = [name for name, group in groups.items() if group == "logits"]
    scores = [name for name, group in groups.items() if group not in OF_GRADIENTS]
    wanted = {LOGIT_LR: of_logits} | ({SCORE_LR: scores} if scores != of_logits else {})
    return {name: names for name, names in wanted.items() if names}


def fits_two_classes(spec: MetaModelSpec) -> bool:
    """Whether the spec's model is fitted on positives and negatives; else it knows ordinary samples alone."""
    return spec.task != "ood" or spec.protocol != "in_dist_only"


def _probability(model: MetaModel, decision: FloatArray, *, task: Task) -> FloatArray:
    """As bundles say it: of a wrong prediction at the prevalence of the fit, of an OOD sample as if one in two were."""
    if model.kind != "logistic":
        return np.full(len(decision), np.nan)
    return probabilities(decision, shift=0.0 if task == "ood" else model.shift)
