"""The scores of every reported sample, in one table: what reports and comparisons are made of, without a refit.

`ScoreTables` scores what meta models report, `scores.parquet` keeps it, `ScoreFile` and `read_scores` read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ..data import CALIBRATION
from ..errors import FORBIDDEN, EvaluationError, StoreError
from ..meta import (
    CHOSEN,
    CHOSEN_APART,
    META,
    BaselineScore,
    MetaInputs,
    MetaModel,
    ScoreChoice,
    chosen_model,
    read_notes,
)
from ..store import RunFolder, refuse_other_content
from ..system import BoolArray, FloatArray, IntArray, file_sha256, replacing, sha256, some, writing
from .protocols import MetaModelSpec, RowMasks

NAME = "scores.parquet"

MADE_OF = b"gradscore.made_of"
"""The entry of the file's metadata that says which features and meta models the scores were made of."""

_META = "meta models"

LEADING = (
    "task",
    "protocol",
    "dataset",
    "split",
    "sample_id",
    "content_hash",
    "label",
    "prediction",
    "positive",
    "probability",
)
"""The columns before the scores. `positive` marks wrong predictions (tasks `misclassification` and `shifted`) or OOD
samples (`ood`); `probability` is that of the chosen score: of a wrong prediction at the prevalence it was fitted on, of
an OOD sample as if one in two were; missing for models without log-odds."""

SET_KEY = ["task", "protocol", "dataset"]
"""The columns that tell one reported data set from another."""

SCORE_LR = "score_lr"
"""Score, and folder beside the meta model, of the same regression without gradients: what the meta model gains over it,
it gains by them."""

MISCLASSIFICATION_MODEL = "misclassification/in_dist_only/all"
"""Where the misclassification model lies, which also scores covariate-shifted sets."""

ROWS_AT_A_TIME = 2**16
"""Rows of a feature table that are scored at a time: what models see of them is held several times."""

SAMPLES_KEPT = 2**20
"""Names and contents of so many samples are kept; they take 110 bytes each."""

ROWS_OF_A_GROUP = 2**18
"""Rows that are written at a time."""

Place = Path | str
"""Where a score comes from: the folder of a meta model, or the name of a baseline."""


def ood_place(protocol: str) -> str:
    """Where the OOD model of a protocol lies below the meta models of a run."""
    return f"ood/{protocol}/all"


def refuse_not_finite(run: RunFolder, split: str) -> None:
    """Refuses samples of a split of which the network, or its gradients, made a value that is not finite.

    Raises:
        EvaluationError: there are some; it names the first.
    """
    lost = run.manifest.splits[split].non_finite
    for rows in run.blocks(split, rows=ROWS_AT_A_TIME) if lost else ():
        values = rows.select_dtypes("float64")
        bad = ~np.isfinite(values.to_numpy())
        if bad.any():
            row, column = (int(place[0]) for place in np.nonzero(bad))
            others = f" (it has {lost} such samples)" if lost > 1 else ""
            raise EvaluationError(
                f"{run.path}: split {split}, sample {rows['sample_id'].iloc[row]}: {values.columns[column]} is not "
                f"finite{others}: outputs or gradients of the network overflow; leave such samples out of the data, or "
                "compute in wider numbers (features.autocast, the type of the weights)"
            )


@dataclass(frozen=True, kw_only=True)
class ScoredSet:
    """The scores of one reported data set of N samples, read one at a time.

    Attributes:
        task: `misclassification`, `ood` or `shifted`.
        protocol: what its meta model was fitted on.
        dataset: the data set.
        positive: (N,) which samples are wrong or OOD.
        names: the scores that every sample has; one that does not apply is missing throughout.
        score: from the name of a score, or `probability`, to its values (N,).
        content: (N,) the content hashes, read when they are asked for.
    """

    task: str
    protocol: str
    dataset: str
    positive: BoolArray
    names: list[str]
    score: Callable[[str], FloatArray]
    content: Callable[[], pd.Series[str]]


@dataclass(frozen=True, kw_only=True)
class JointlyScoredSet:
    """Samples of `in_dist.test` and of an OOD set, by both scores that may reject them.

    Attributes:
        protocol: what the OOD model was fitted on.
        dataset: the OOD set.
        in_dist: (N,) which are in-distribution; those have labels.
        good: (N,) which of them are predicted right.
        wrong_score: (N,) the chosen score of wrong predictions.
        ood_score: (N,) that of OOD samples.
    """

    protocol: str
    dataset: str
    in_dist: BoolArray
    good: BoolArray
    wrong_score: FloatArray
    ood_score: FloatArray


@dataclass(frozen=True)
class _Plan:
    """A data set that a spec reports, where its scores come from by name, and what decides."""

    spec: MetaModelSpec
    dataset: str
    places: Mapping[str, Place]
    deciding: MetaModel | BaselineScore

    @property
    def rows(self) -> RowMasks:
        """(N,) masks of the rows reported, by split."""
        return self.spec.reported[self.dataset]


class ScoreTables:
    """The scores of reported samples, split by split: each is read once and scored by every model, part by part.

    They are kept in memory maps of files without a name, 8 bytes for each score of each sample: there may be more than
    memory holds, and nothing is left of them however the process ends.

    Args:
        run: a run folder with meta models.
        specs: whose models score, where they are there.
        files: the folder that the files lie in.

    Raises:
        StoreError: what makes the inputs of the models, or a model, is missing or damaged.
    """

    def __init__(self, run: RunFolder, specs: Sequence[MetaModelSpec], *, files: Path) -> None:
        self._run, self._folder_of_files = run, files
        self.inputs = MetaInputs.load(run.inputs_path)
        """What makes the inputs of the models."""
        places = [run.meta_path / spec.label / name for spec in specs for name in (".", SCORE_LR)]
        self._models = {place: MetaModel.load(place, self.inputs) for place in places if place.is_dir()}
        for folder, spec in ((self._folder(spec), spec) for spec in specs):
            beside = folder / SCORE_LR
            if folder in self._models and beside not in self._models and scores_seen(spec, self.inputs):
                raise StoreError(
                    f"{beside}: missing, though the meta model beside it has to beat it; run "
                    f"`gradscore fit-meta {quote(str(run.path))}` again"
                )
        self._has_regressions = any(place.name == SCORE_LR for place in self._models)
        self._described: dict[str, pd.DataFrame] = {}
        self._scores: dict[str, dict[Place, FloatArray]] = {}
        self._plans: list[_Plan] = []

    def has_model(self, spec: MetaModelSpec) -> bool:
        """Whether there is a meta model for the spec."""
        return self._folder(spec) in self._models

    def model(self, spec: MetaModelSpec) -> MetaModel:
        """The meta model of a spec that has one."""
        return self._models[self._folder(spec)]

    def scored_sets(self, specs: Sequence[MetaModelSpec]) -> list[ScoredSet]:
        """The scores of what specs report, one set of them for each data set, and what `write` writes.

        Args:
            specs: what is reported, and by which models.

        Raises:
            EvaluationError: the features differ from those a model was fitted on, or a value is not finite.
            StoreError: a damaged file.
        """
        self._plans = [
            _Plan(each, dataset, self._places(each), self._deciding(each))
            for spec in specs
            for each in (spec, replace(spec, task="shifted", reported=spec.shifted))
            for dataset in each.reported
        ]
        return [self._scored_set(plan) for plan in self._plans]

    def jointly_scored_sets(self) -> list[JointlyScoredSet]:
        """Of the last `scored_sets`, the OOD sets of the first protocol; none without scores of both kinds."""
        by_wrong = next((each.places[CHOSEN] for each in self._plans if each.spec.task == "misclassification"), None)
        ood = [each for each in self._plans if each.spec.task == "ood"]
        return [
            self._joint(plan, by_wrong)
            for plan in ood
            if plan.spec.protocol == ood[0].spec.protocol
            and by_wrong is not None
            and all({by_wrong, plan.places[CHOSEN]} <= set(self._scores_of(split)) for split in plan.rows)
        ]

    def _joint(self, plan: _Plan, by_wrong: Place) -> JointlyScoredSet:
        parts = []
        for split, mask in plan.rows.items():
            samples, is_ood, scores = self._samples(split), plan.spec.positive[split], self._scores_of(split)
            labels, predictions = samples["label"].to_numpy(), samples["prediction"].to_numpy()
            rows = mask & (is_ood | (labels >= 0))
            good = ~is_ood & (labels == predictions)
            found = (~is_ood, good, scores[by_wrong], scores[plan.places[CHOSEN]])
            parts.append([each[rows] for each in found])
        in_dist, good, wrong_score, ood_score = (np.concatenate(each) for each in zip(*parts, strict=True))
        return JointlyScoredSet(
            protocol=plan.spec.protocol,
            dataset=plan.dataset,
            in_dist=in_dist,
            good=good,
            wrong_score=wrong_score,
            ood_score=ood_score,
        )

    def write(self, folder: Path) -> None:
        """Writes `scores.parquet` of the last `scored_sets` to a folder, see `read_scores`."""
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

    def _places(self, spec: MetaModelSpec) -> dict[str, Place]:
        """Where the scores of the data sets of a spec come from, by name."""
        folder = self._folder(spec)
        regression: dict[str, Place] = {SCORE_LR: folder / SCORE_LR} if self._has_regressions else {}
        of_model: dict[str, Place] = {META: folder, **regression}
        apart, chosen = ScoreChoice.of_notes(self._models[folder].notes, where=folder).score, self._choice(spec).score
        places: dict[str, Place] = {CHOSEN: of_model.get(chosen, chosen), META: folder}
        places |= {} if apart == chosen else {CHOSEN_APART: of_model.get(apart, apart)}
        places |= regression
        return places | {name: name for name in self.inputs.baselines.compared}

    def _scored_set(self, plan: _Plan) -> ScoredSet:
        columns = {split: self._scores_of(split) for split in plan.rows}

        def score(name: str) -> FloatArray:
            if name == "probability":
                return _probability(plan, score(CHOSEN))
            place = plan.places[name]
            return np.concatenate([columns[split][place][mask] for split, mask in plan.rows.items()])

        def content() -> pd.Series[str]:
            parts = [self._samples(split)["content_hash"][mask] for split, mask in plan.rows.items()]
            found: pd.Series[str] = pd.concat(parts)
            return found

        return ScoredSet(
            task=plan.spec.task,
            protocol=plan.spec.protocol,
            dataset=plan.dataset,
            positive=np.concatenate([plan.spec.positive[split][mask] for split, mask in plan.rows.items()]),
            names=[name for name in self._names if all(plan.places.get(name) in there for there in columns.values())],
            score=score,
            content=content,
        )

    def _part(self, plan: _Plan, split: str, rows: IntArray) -> pd.DataFrame:
        """Some rows of a split, of the table of a data set."""
        columns, spec = self._scores_of(split), plan.spec
        scores = {name: columns[place][rows] for name, place in plan.places.items() if place in columns}
        return self._samples(split).iloc[rows].reset_index(drop=True).assign(
            task=spec.task,
            protocol=spec.protocol,
            dataset=plan.dataset,
            positive=spec.positive[split][rows],
            probability=_probability(plan, scores[CHOSEN]),
            **scores,
        )  # fmt: skip

    def _scores_of(self, split: str) -> dict[Place, FloatArray]:
        """The scores of a split by where they come from, without those that a sample lacks."""
        if split not in self._scores:
            places: list[Place] = [*self._models, *self.inputs.baselines.compared]
            samples = self._run.sizes[split]
            with writing(self._folder_of_files), TemporaryFile(dir=self._folder_of_files) as file:
                for _ in places:
                    file.write(np.zeros(samples).data)  # a full disk is an error here, a crash in a memory map
                columns = np.asarray(np.memmap(file, np.float64, mode="r+", shape=(len(places), samples)))
            start = 0
            refuse_not_finite(self._run, split)
            for rows in self._run.blocks(split, rows=ROWS_AT_A_TIME):
                table = self.inputs.baseline_scores(rows)
                scaled = self.inputs.scaled(rows, table)
                for column, place in zip(columns, places, strict=True):
                    of_place = self._models[place].of_scaled(scaled) if isinstance(place, Path) else table[place]
                    column[start : start + len(rows)] = of_place
                start += len(rows)
            found = zip(places, columns, strict=True)
            self._scores[split] = {place: column for place, column in found if not np.isnan(column).any()}
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

    def _deciding(self, spec: MetaModelSpec) -> MetaModel | BaselineScore:
        """The score that was chosen for a spec."""
        folder = self._folder(spec)
        return chosen_model(folder, self._models[folder], self._choice(spec))

    def _choice(self, spec: MetaModelSpec) -> ScoreChoice:
        """The choice for a spec: figures of sets that were left out are those of the score of the model of all sets."""
        of_all = self._run.meta_path / ood_place("known")
        if spec.task == "ood" and spec.protocol == "leave_one_dataset_out" and of_all.is_dir():
            return ScoreChoice.of_notes(read_notes(of_all), where=of_all)
        folder = self._folder(spec)
        return ScoreChoice.of_notes(self._models[folder].notes, where=folder)

    def _folder(self, spec: MetaModelSpec) -> Path:
        return self._run.meta_path / (MISCLASSIFICATION_MODEL if spec.task == "shifted" else spec.label)


def _probability(plan: _Plan, decision: FloatArray) -> FloatArray:
    """As bundles say it: of a wrong prediction at the prevalence of the fit, of an OOD sample as if half were."""
    return plan.deciding.probability(decision, at_prevalence=plan.spec.task != "ood")


def scores_seen(spec: MetaModelSpec, inputs: MetaInputs) -> list[str]:
    """The inputs of the regression that a spec's model has to beat: those without gradients; none if there is none."""
    if not spec.has_two_classes:
        return []
    return [name for name, group in zip(inputs.names, inputs.groups, strict=True) if group != "gradients"]


def score_columns(table: pd.DataFrame) -> list[str]:
    """The names of the scores, in order: those after `LEADING`."""
    return [name for name in table.columns if name not in LEADING]


def scores_of(scored: pd.DataFrame) -> list[str]:
    """The scores that every sample of a data set has; a score that does not apply to it is missing throughout."""
    return [name for name in score_columns(scored) if bool(scored[name].notna().all())]


def made_of(run: RunFolder) -> dict[str, str]:
    """The hashes of all that the scores of a run are made of: its meta models, and the features of each split.

    Raises:
        StoreError: the run is not finished, or a file is missing.
    """
    tables = {info.name: run.table_sha256(info.name) for info in run.splits() if info.name != CALIBRATION}
    models = sorted(path for path in run.meta_path.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(run.path).as_posix()} {file_sha256(path)}\n" for path in models]
    return {_META: sha256("".join(lines).encode()), **tables}


@contextmanager
def writing_scores(
    folder: Path, columns: Sequence[str], *, of: Mapping[str, str]
) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Writes `scores.parquet` to a folder, part by part and in one step: all of it, or nothing.

    Args:
        folder: of the evaluation.
        columns: of the scores, after `LEADING`; a score that a part lacks is missing there.
        of: what they are made of, see `made_of`.

    Yields:
        What is given parts of the table, each of one data set, those of a data set one after the other.
    """
    types = {"label": pa.int64(), "prediction": pa.int64(), "positive": pa.bool_(), "probability": pa.float64()}
    text = {name: pa.large_string() for name in LEADING}
    schema = pa.schema({**text, **types, **dict.fromkeys(columns, pa.float64())})
    schema = schema.with_metadata({MADE_OF: json.dumps(dict(of))})
    with (
        replacing(folder / NAME) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):

        def write(part: pd.DataFrame) -> None:
            writer.write_table(pa.Table.from_pandas(part.reindex(columns=schema.names), schema, preserve_index=False))

        yield write


def read_scores(run: RunFolder) -> pd.DataFrame:
    """Reads the scores of the last evaluation of a run, if they are of the features and meta models that it has now.

    Returns:
        One row for each reported sample of each data set: `LEADING`, then one float64 column per score, higher = more
        likely wrong or OOD.

    Raises:
        StoreError: they are missing, not those that were recorded, or older than the features or meta models.
    """
    file = ScoreFile(run.evaluation_path)
    known, now = file.made_of(), made_of(run)
    others = [name for name in dict.fromkeys([*known, *now]) if known.get(name) != now.get(name)]
    if others:
        tables = [name for name in others if name != _META]
        found = [
            *(["the meta models"] if _META in others else []),
            *([f"the features of {some(tables)}"] if tables else []),
        ]
        first = f"gradscore fit-meta {quote(str(run.path))}` and `" if tables else ""
        raise StoreError(
            f"{run.evaluation_path}: not of what the run holds now: {' and '.join(found)} changed since; "
            f"run `{first}gradscore evaluate {quote(str(run.path))}`"
        )
    refuse_other_content(run.path, [f"{run.evaluation_path.name}/{NAME}"], again="evaluate again")
    return file.table()


@dataclass(frozen=True)
class ScoreFile:
    """The `scores.parquet` of an evaluation folder, of which one data set is read at a time.

    Attributes:
        folder: of the evaluation.
    """

    folder: Path

    def made_of(self) -> dict[str, str]:
        """What the scores were made of, see `made_of`; nothing where the file does not say.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with _reading(self.folder) as path:
            found = json.loads((pq.read_schema(path).metadata or {}).get(MADE_OF, b"{}"))
            if not isinstance(found, dict):
                raise ValueError(f"{MADE_OF.decode()} is no JSON object")
        return found

    def table(self) -> pd.DataFrame:
        """All of it; see `read_scores`.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with _reading(self.folder) as path:
            table: pd.DataFrame = pq.read_table(path).to_pandas(ignore_metadata=True)
        missing = [name for name in LEADING if name not in table.columns]
        if missing or not score_columns(table):
            raise StoreError(f"{path}: no column {', '.join(missing) or 'of scores'}; run `gradscore evaluate` again")
        return table

    def columns(self, task: str, protocol: str, dataset: str, names: Sequence[str]) -> pd.DataFrame:
        """Some columns of one reported data set; those that the file lacks are left out.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with _reading(self.folder) as path:
            there = [name for name in names if name in pq.read_schema(path).names]
            found = ds.dataset(path).to_table(columns=there, filter=_is_of(task, protocol, dataset))
        frame: pd.DataFrame = found.to_pandas(ignore_metadata=True)
        return frame

    def rows(self, task: str, protocol: str, dataset: str, places: IntArray) -> pd.DataFrame:
        """Some rows of one reported data set, whole and in the order of their places; see `columns`."""
        order = np.argsort(places, kind="stable")
        with _reading(self.folder) as path:
            scanner = ds.dataset(path).scanner(filter=_is_of(task, protocol, dataset))
            found = scanner.take(pa.array(np.asarray(places)[order]))
        frame: pd.DataFrame = found.to_pandas(ignore_metadata=True)
        return frame.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


@contextmanager
def _reading(folder: Path) -> Iterator[Path]:
    path = folder / NAME
    try:
        yield path
    except FileNotFoundError:
        raise StoreError(
            f"{path}: there are no scores; run `gradscore evaluate {quote(str(folder.parent))}` to write them"
        ) from None
    except PermissionError:
        raise StoreError(f"{path}: {FORBIDDEN}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(
            f"{path}: damaged ({error}); run `gradscore evaluate {quote(str(folder.parent))}` again"
        ) from None


def _is_of(task: str, protocol: str, dataset: str) -> pc.Expression:
    return (pc.field("task") == task) & (pc.field("protocol") == protocol) & (pc.field("dataset") == dataset)


def positive_of(scored: pd.DataFrame) -> BoolArray:
    """Which samples of a data set are wrong or OOD, as (N,) bool."""
    return scored["positive"].to_numpy(dtype=bool)
