"""Scores of the samples a spec reports: its meta model's, and those it has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..data import FIT
from ..errors import StoreError
from ..meta import OF_GRADIENTS, Inputs, MetaModel, probabilities
from ..store import RunFolder
from ..system import FloatArray, IntArray
from .contents import common
from .memory_map import Place, Spool
from .protocols import MetaModelSpec, RowMasks, Task
from .score_table import Block, made_of, writing_scores

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


SAMPLES_KEPT = 2**20
"""Names and contents of so many samples are kept; they take 110 bytes each."""

ROWS_OF_A_GROUP = 2**18
"""Rows that are written at a time."""


@dataclass(frozen=True)
class _Plan:
    """A data set that a spec reports, and where its scores come from by name."""

    spec: MetaModelSpec
    dataset: str
    places: Mapping[str, Place]

    @property
    def rows(self) -> RowMasks:
        """(N,) masks of the rows reported, by split."""
        return self.spec.reported[self.dataset]


class ScoreTables:
    """The scores of reported samples, split by split: each is read once and scored by every model, part by part.

    They are kept in files without a name (see `Spool`) until `close`.

    Args:
        run: a run folder with meta models.
        specs: whose models score, where they are there.
        files: the folder that the files lie in.

    Raises:
        StoreError: what makes the inputs of the models, or a model, is missing or damaged.
    """

    def __init__(self, run: RunFolder, specs: Sequence[MetaModelSpec], *, files: Path) -> None:
        self._run, self._folder_of_files, self._stack = run, files, ExitStack()
        self.inputs = Inputs.load(run.inputs_path)
        """What makes the inputs of the models."""
        places = [run.meta_path / spec.label / name for spec in specs for name in (".", LOGIT_LR, SCORE_LR)]
        self._models = {place: MetaModel.load(place, self.inputs) for place in places if place.is_dir()}
        self._check_baselines(specs)
        there = {place.name for place in self._models}
        self._regressions = [name for name in (LOGIT_LR, SCORE_LR) if name in there]
        self._described: dict[str, pd.DataFrame] = {}
        self._scores: dict[str, Spool] = {}
        self._plans: list[_Plan] = []
        self.seen_by_meta_wrong: list[str] = []
        """Data sets without a score `meta_wrong`, because that model was fitted on some of their samples."""

    def _check_baselines(self, specs: Sequence[MetaModelSpec]) -> None:
        for spec in specs:
            folder = self._folder(spec)
            missing = [name for name in baselines_of(spec, self.inputs) if folder / name not in self._models]
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

    def blocks(self, specs: Sequence[MetaModelSpec], *, wrong: MetaModelSpec | None) -> list[Block]:
        """The scores of what specs report, one block for each of their data sets, and what `write` writes.

        Args:
            specs: what is reported, and by which models.
            wrong: the spec of the misclassification model, for the score `meta_wrong`.

        Raises:
            EvaluationError: the features differ from those a model was fitted on, or a value is not finite.
            StoreError: a damaged file.
        """
        self._plans = [
            _Plan(each, dataset, self._places(each, dataset, wrong))
            for spec in specs
            for each in (spec, replace(spec, task="shifted", reported=spec.shifted))
            for dataset in each.reported
        ]
        return [self._block(plan) for plan in self._plans]

    def write(self, folder: Path) -> None:
        """Writes `scores.parquet` of the last `blocks` to a folder, see `read_scores`."""
        with writing_scores(folder, self._names, of=made_of(self._run)) as write:
            for plan in self._plans:
                for split, mask in plan.rows.items():
                    chosen = np.flatnonzero(mask)
                    for start in range(0, len(chosen), ROWS_OF_A_GROUP):
                        write(self._part(plan, split, chosen[start : start + ROWS_OF_A_GROUP]))

    @property
    def _names(self) -> list[str]:
        """The scores of any data set, in the order of the table."""
        return list(dict.fromkeys(name for plan in self._plans for name in plan.places))

    def close(self) -> None:
        """Lets go of the scores: blocks can be read no more."""
        self._stack.close()

    def _places(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec | None) -> dict[str, Place]:
        """Where the scores of a data set come from, by name."""
        folder = self._folder(spec)
        places: dict[str, Place] = {"meta": folder, **{name: folder / name for name in self._regressions}}
        if spec.task == "ood" and spec.protocol == "in_dist_only" and wrong is not None and self.has_model(wrong):
            if self._seen(spec, dataset, wrong):
                self.seen_by_meta_wrong.append(dataset)
            else:
                places[META_WRONG] = self._folder(wrong)
        return places | {name: name for name in self.inputs.scores.compared}

    def _block(self, plan: _Plan) -> Block:
        memory_maps = {split: self._scores_of(split) for split in plan.rows}

        def score(name: str) -> FloatArray:
            if name == "probability":
                return _probability(self._models[self._folder(plan.spec)], score("meta"), task=plan.spec.task)
            place = plan.places[name]
            return np.concatenate([memory_maps[split].read(place)[mask] for split, mask in plan.rows.items()])

        def content() -> pd.Series[str]:
            parts = [self._samples(split)["content_hash"][mask] for split, mask in plan.rows.items()]
            found: pd.Series[str] = pd.concat(parts)
            return found

        def is_whole(place: Place) -> bool:
            return all(memory_map.is_whole(place) for memory_map in memory_maps.values())

        return Block(
            task=plan.spec.task,
            protocol=plan.spec.protocol,
            dataset=plan.dataset,
            positive=np.concatenate([plan.spec.positive[split][mask] for split, mask in plan.rows.items()]),
            names=[name for name in self._names if name in plan.places and is_whole(plan.places[name])],
            score=score,
            content=content,
        )

    def _part(self, plan: _Plan, split: str, rows: IntArray) -> pd.DataFrame:
        """Some rows of a split, of the table of a data set."""
        memory_map, spec = self._scores_of(split), plan.spec
        part = self._samples(split).iloc[rows].reset_index(drop=True)
        scores = {name: memory_map.read(place)[rows] for name, place in plan.places.items() if place in memory_map}
        return part.assign(
            task=spec.task,
            protocol=spec.protocol,
            dataset=plan.dataset,
            positive=spec.positive[split][rows],
            probability=_probability(self._models[self._folder(spec)], scores["meta"], task=spec.task),
            **scores,
        )

    def _scores_of(self, split: str) -> Spool:
        """The scores of a split, by the folder of a model or by name."""
        if split not in self._scores:
            memory_map = self._stack.enter_context(Spool(self._folder_of_files, rows=self._run.sizes[split]))
            start = 0
            for rows in self._run.blocks(split, rows=ROWS_AT_A_TIME):
                table = self.inputs.score_table(rows)
                scaled = self.inputs.scaled(rows, table)
                found: dict[Place, FloatArray] = {
                    folder: model.of_scaled(scaled) for folder, model in self._models.items()
                }
                found |= {name: table[name].to_numpy() for name in self.inputs.scores.compared}
                memory_map.write(start, found)
                start += len(rows)
            self._scores[split] = memory_map
        return self._scores[split]

    def _samples(self, split: str) -> pd.DataFrame:
        """What a split says of its samples beside features; of many samples those of the last splits are kept."""
        if split not in self._described:
            columns = ["split", "sample_id", "content_hash", "label", "prediction"]
            frame = self._run.read(split, columns)
            while self._described and len(frame) + sum(map(len, self._described.values())) > SAMPLES_KEPT:
                self._described.pop(next(iter(self._described)))
            self._described[split] = frame
        return self._described[split]

    def _seen(self, spec: MetaModelSpec, dataset: str, wrong: MetaModelSpec) -> bool:
        fitted = self._run.read(FIT, ["content_hash"], rows=wrong.fit[FIT])["content_hash"]
        return any(
            common(fitted, self._samples(split)["content_hash"][mask]) for split, mask in spec.reported[dataset].items()
        )

    def _folder(self, spec: MetaModelSpec) -> Path:
        return self._run.meta_path / (MISCLASSIFICATION_MODEL if spec.task == "shifted" else spec.label)


def baselines_of(spec: MetaModelSpec, inputs: Inputs) -> dict[str, list[str]]:
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
