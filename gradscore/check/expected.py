"""The expected figures: what a checked model did, sample by sample, and how much worse a later one may be.

They are a small JSON file to be committed and reviewed. It holds scores of samples, named by a hash of their pixels, so
that a later run can be compared sample by sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from ..columns import feature_columns, logit_columns
from ..config import Protocol
from ..data import TEST
from ..deployment import DETECTORS, threshold
from ..errors import EvaluationError, ExpectedFiguresError, StoreError
from ..evaluation import (
    deployed_protocol,
    places_of_models,
    read_scores,
    score_columns,
)
from ..meta import CHOSEN, ScoreChoice, read_notes
from ..store import RunFolder, package_versions
from ..system import as_address, followed, is_address, parse_document, some, write_text
from .freshness import outdated

_ADVICE = "restore it from version control, or make it anew with --update and its margins"
PANEL = 2000
"""Samples kept of each split: those with the smallest hashes, which later runs choose as well. Each takes 38
bytes of the file."""

FEW = 30
"""OOD samples with which two models that are as good pass the test of an AUROC of 0.86 or 0.98, at a margin of 0.05, in
37 to 51 % of cases (simulated, 300 draws; with 20 in 1 to 24 %, with 50 in 75 to 98 %)."""

PROBE = 8
"""Samples whose features are kept: 14 KB for the 96 features of the digits run."""

HASH_DIGITS = 12
"""Hexadecimal digits of a content hash that are kept: the chance that two of 2,000 samples share them is 1e-8."""

SCORE = "compared score"
"""The column of the score that figures are of."""

Version = Literal[8]
"""Version of the format of expected figures."""

Share = Annotated[float, Field(ge=0, lt=1)]
Hash = Annotated[str, Field(pattern=f"^[0-9a-f]{{{HASH_DIGITS}}}$")]
Target = Literal["wrong", "ood"]
"""Target of scores: wrong predictions, or OOD samples."""

Sources = Literal["compared", "extracted", "left out"]
"""What is done about the model and the data that a run was made from: they are compared with it; they were, by an
extraction just now; or the stored run alone is meant."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Policy(_Part):
    """Margins: how much worse is too much.

    The margins were chosen on trials of the digits model, see docs/evidence.md. Features of the same weights
    moved by 3e-6 with the batch size and the memory format there, and by 0.07 where ReLU had a slope of 0.001.

    Attributes:
        accuracy: accepted drop of the classifier's accuracy.
        auroc: accepted drop of an AUROC.
        false_alarm: accepted rise of the false-alarm rate at the frozen threshold.
        detection: accepted drop of the detection rate at the frozen threshold.
        feature: accepted change of a feature relative to its size, for a model with the same weights.
        alpha: false-alarm rate the thresholds are frozen at.
        level: confidence of an outcome.
    """

    accuracy: Share = 0.02
    auroc: Share = 0.05
    false_alarm: Share = 0.05
    detection: Share = 0.2
    feature: Annotated[float, Field(gt=0)] = 1e-3
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.95


class SplitScores(_Part):
    """Samples of a split: `correct` has `1`, `0` or `-` (no label) for each, `scores` a number for each.

    `classes` has the label of each, of a sample without one the predicted class.
    """

    content_hash: list[Hash]
    correct: str
    classes: list[Annotated[int, Field(ge=0)]]
    scores: dict[Target, list[float]]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.content_hash)) < len(self.content_hash):
            raise ValueError("a hash is there twice, and each names one sample")
        lengths = {len(self.content_hash), len(self.correct), len(self.classes), *map(len, self.scores.values())}
        if len(lengths) > 1 or set(self.correct) - set("10-"):
            raise ValueError("hashes, correct, classes and scores must belong to the same samples")
        return self

    def frame(self) -> pd.DataFrame:
        """Data frame of a row per sample by its hash: `correct` (1.0, 0.0 or missing), `class`, and each score."""
        correct = [{"1": 1.0, "0": 0.0}.get(mark, np.nan) for mark in self.correct]
        scores = {str(name): values for name, values in self.scores.items()}
        return pd.DataFrame({"correct": correct, "class": self.classes, **scores}, index=pd.Index(self.content_hash))


class Probe(_Part):
    """Features of a few samples, by column."""

    content_hash: list[Hash]
    columns: dict[str, list[float | None]]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        odd = [name for name, values in self.columns.items() if len(values) != len(self.content_hash)]
        if odd:
            raise ValueError(f"{odd[0]}: wanted {len(self.content_hash)} values, one for each sample of content_hash")
        return self


class ExpectedFigures(_Part):
    """A run in numbers, and the policy later runs are held to.

    Attributes:
        model: the classifier as in the manifest of the run: source, number of classes, hashes of code and weights.
        protocol: which OOD samples fitted the meta model for OOD samples.
        scored_by: the name of the score that figures are of, such as `meta` or `knn`: the one that was chosen then.
        thresholds: frozen at `policy.alpha`, by split-conformal calibration.
        accuracy: of the classifier on all samples of `in_dist.test`.
        splits: `in_dist.test` and the reported OOD sets.
        probe: features of samples of `in_dist.test`.
        notices: what cannot be checked with it.
    """

    format: Literal["gradscore expected figures"]
    version: Version
    policy: Policy
    model: dict[str, JsonValue]
    versions: dict[str, str]
    protocol: Protocol | None
    scored_by: Annotated[dict[Target, str], Field(min_length=1)]
    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    thresholds: dict[Target, float]
    notices: list[str]
    splits: dict[str, SplitScores]
    probe: Probe

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if TEST not in self.splits:
            raise ValueError(f"splits: no {TEST}")
        test = self.splits[TEST]
        if not self.scored_by.keys() == test.scores.keys():
            raise ValueError(f"scored_by: wanted a name for each of the scores of {TEST} ({', '.join(test.scores)})")
        if "ood" in self.scored_by and self.protocol is None:
            raise ValueError("protocol: none, though scored_by has 'ood'")
        for target in self.scored_by:
            is_said = any(line.startswith(no_threshold(target)) for line in self.notices)
            if target not in self.thresholds and not is_said:
                raise ValueError(f"thresholds: none for '{target}', and no notice says why")
        return self

    def changed_from(self, other: ExpectedFigures) -> list[str]:
        """Names of the parts of the model that differ from those of other figures."""
        before, now = other.model, self.model
        return [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]


def make_expected(run: RunFolder, policy: Policy | None = None, *, sources: Sources = "compared") -> ExpectedFigures:
    """Takes down a run that was evaluated.

    Args:
        run: the run folder.
        policy: how much worse later runs may be.
        sources: what is done about the model and the data that the run was made from, see `caveats_of`.

    Returns:
        The expected figures.

    Raises:
        ExpectedFiguresError: the run has no scores to keep.
        StoreError: the run is not finished, not evaluated since, or not of its model and data as they are now.
    """
    caveats_of(run, sources)
    return expected_of(run, run.read(TEST), policy=policy or Policy(), protocol=deployed_protocol(run))


def chosen_scores(run: RunFolder, protocol: str | None) -> dict[Target, str]:
    """The names of the scores that a run uses, as a bundle of it does, with the OOD model of a protocol."""
    targets: dict[str, Target] = {DETECTORS[target].task: target for target in get_args(Target)}
    folders = {targets[task]: run.meta_path / place for task, place in places_of_models(protocol).items()}
    return {
        target: ScoreChoice.of_notes(read_notes(folder), where=folder).score
        for target, folder in folders.items()
        if folder.is_dir()
    }


def caveats_of(run: RunFolder, sources: Sources) -> list[str]:
    """Makes sure that a run is of its model and data as they are now; nothing of them runs.

    Returns:
        What was not compared.

    Raises:
        StoreError: something changed since the run was made, or is no longer there.
    """
    if sources == "left out":
        return ["the stored run alone was compared, without a look at its model and data"]
    found = outdated(run) if sources == "compared" else None
    if found is None:
        return []
    if found.changed:
        raise StoreError(
            f"{run.path}: this run was made from something else than there is now: {some(found.changed, shown=4)}; "
            "give the configuration in place of the run (gradscore check CONFIG), with --out where the model changed, "
            "or --without-sources to compare the stored run as it is"
        )
    if found.gone:
        raise StoreError(
            f"{run.path}: what this run was made from is missing, so it cannot be compared with that: "
            f"{some(found.gone, shown=4)}; bring it back, give the configuration in place of the run, or "
            "--without-sources to compare the stored run"
        )
    return [f"not looked at: {each}" for each in found.unseen]


def expected_of(
    run: RunFolder,
    test: pd.DataFrame,
    *,
    policy: Policy,
    protocol: Protocol | None,
    scored_by: Mapping[Target, str] | None = None,
    count: int | None = PANEL,
) -> ExpectedFigures:
    """Expected figures, from the feature table of the run's test split and the protocol of OOD scores.

    Figures are of the scores that the run chose, or of those named in `scored_by`, as far as it has them. Of each split
    `count` samples are kept, or all.
    """
    table = read_scores(run)
    wrong = table[table["task"] == "misclassification"]
    ood = table[(table["task"] == "ood") & (table["protocol"] == protocol)]
    if protocol is not None and ood.empty and any(info.is_reported_ood for info in run.splits()):
        raise ExpectedFiguresError(
            f"{run.path}: the last evaluation has no OOD scores of protocol {protocol}, which a bundle would use, so "
            "that nothing of OOD detection would be checked; run gradscore evaluate again without --set"
        )
    if wrong.empty and ood.empty:
        raise ExpectedFiguresError(
            f"{run.path}: no scores of a protocol that can be deployed; fit-meta and evaluate again"
        )
    by = chosen_scores(run, protocol) if scored_by is None else scored_by
    tables: dict[Target, pd.DataFrame] = {"wrong": wrong, "ood": ood}
    for target, name in by.items():
        there = tables[target]
        if not there.empty and (name == CHOSEN or name not in score_columns(there) or there[name].isna().all()):
            raise ExpectedFiguresError(
                f"{run.path}: the expected figures for '{target}' are of score '{name}', which this run does not have; "
                "give it the settings that bring this score, and run it again, or delete the expected figures and make "
                "them anew with --update"
            )
    scores = {
        target: found.rename(columns={by[target]: SCORE}) for target, found in tables.items() if by.get(target) in found
    }
    names = [TEST, *(name for name in dict.fromkeys(ood["split"]) if name != TEST)]
    splits = {name: _split_scores(name, scores, test, count) for name in names}
    thresholds, notices = _frozen_thresholds(splits[TEST], policy.alpha)
    if unscored := [info.name for info in run.splits() if info.is_reported_ood and info.name not in splits]:
        notices.append(f"nothing is compared on {some(unscored)}: the evaluation has no OOD scores there, and says why")
    inputs = run.manifest.inputs
    return ExpectedFigures(
        format="gradscore expected figures",
        version=get_args(Version)[0],
        policy=policy,
        model={**inputs.model.model_dump(), "preprocessing": inputs.preprocessing},
        versions=package_versions(),
        protocol=None if ood.empty else protocol,
        scored_by={target: by[target] for target in splits[TEST].scores},
        accuracy=run.manifest.splits[TEST].accuracy,
        thresholds=thresholds,
        notices=[*notices, *_few(splits)],
        splits=splits,
        probe=_probe(test),
    )


def write_expected(path: Path, expected: ExpectedFigures) -> None:
    """Writes expected figures as JSON, every list on a line of its own."""
    write_text(followed(path), _pretty(expected.model_dump(mode="json")) + "\n")


def read_expected(path: Path) -> ExpectedFigures:
    """Reads expected figures.

    Raises:
        ExpectedFiguresError: they are missing, damaged or of another version, or at an address.
    """
    if is_address(path):
        raise ExpectedFiguresError(
            f"{as_address(path)}: expected figures are a file of this machine; copy it, and give its path"
        )
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ExpectedFiguresError(
            f"{path}: there are no expected figures; make them with gradscore check CONFIG --expected {path} --update"
        ) from None
    except OSError as error:
        raise ExpectedFiguresError(f"{path}: cannot be read ({error.strerror}); {_ADVICE}") from None
    adapter = TypeAdapter(ExpectedFigures)
    return parse_document(content, adapter, where=path, error=ExpectedFiguresError, advice=_ADVICE)


def no_threshold(target: Target) -> str:
    """Beginning of a notice on why a target has no frozen threshold."""
    return f"no frozen threshold for '{target}'"


def _split_scores(
    split: str, scores: Mapping[Target, pd.DataFrame], test: pd.DataFrame, count: int | None
) -> SplitScores:
    """So many distinct samples of a split with the smallest hashes, or all."""
    rows = {
        name: table[table["split"] == split].drop_duplicates("content_hash").set_index("content_hash")
        for name, table in scores.items()
    }
    columns = {name: table[SCORE] for name, table in rows.items() if len(table)}
    classes = pd.concat([table["label"].where(table["label"] >= 0, table["prediction"]) for table in rows.values()])
    frame = pd.DataFrame(columns).dropna().sort_index()
    frame = frame[~pd.Index([str(name)[:HASH_DIGITS] for name in frame.index]).duplicated()].iloc[:count]
    correct = test.drop_duplicates("content_hash").set_index("content_hash")["correct"]
    marks = correct.reindex(frame.index) if split == TEST else pd.Series(pd.NA, index=frame.index, dtype="boolean")
    return SplitScores(
        content_hash=[str(name)[:HASH_DIGITS] for name in frame.index],
        correct="".join("-" if mark is pd.NA else str(int(mark)) for mark in marks),
        classes=classes[~classes.index.duplicated()].reindex(frame.index).astype(int).tolist(),
        scores={name: _rounded(frame[name]) for name in columns},
    )


def _frozen_thresholds(test: SplitScores, alpha: float) -> tuple[dict[Target, float], list[str]]:
    """The threshold of each score on the expected test samples, and why one has none."""
    frame, found, notices = test.frame(), dict[Target, float](), []
    ordinary: dict[Target, pd.DataFrame] = {"wrong": frame[frame["correct"] == 1], "ood": frame}
    for name in test.scores:
        try:
            found[name] = _rounded([threshold(ordinary[name][name], alpha).value])[0]
        except EvaluationError as error:
            notices.append(f"{no_threshold(name)}: {error}")
    return found, notices


def _few(splits: Mapping[str, SplitScores]) -> list[str]:
    """Says where there are too few samples, or wrong predictions, to tell a model that is as good."""
    sizes = {f"{name} has {{}} samples": len(each.content_hash) for name, each in splits.items()}
    if "wrong" in splits[TEST].scores and sizes[f"{TEST} has {{}} samples"] >= FEW:
        sizes[f"of {TEST} {{}} are predicted wrong"] = int((splits[TEST].frame()["correct"] == 0).sum())
    return [
        f"{said.format(size)}: with fewer than {FEW}, a model that is as good but trained anew passes in half of the "
        "cases at most, and otherwise cannot be told (exit code 3); give more"
        for said, size in sizes.items()
        if size < FEW
    ]


def _probe(test: pd.DataFrame) -> Probe:
    """The features of a few distinct test samples."""
    rows = test.drop_duplicates("content_hash").sort_values("content_hash").iloc[:PROBE]
    columns = {
        name: [number if np.isfinite(number) else None for number in _rounded(rows[name], 9)]
        for name in (*logit_columns(test.columns), *feature_columns(test.columns))
    }
    return Probe(content_hash=[name[:HASH_DIGITS] for name in rows["content_hash"]], columns=columns)


def _rounded(values: Sequence[float] | pd.Series[float], digits: int = 7) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _pretty(value: object, depth: int = 0) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    pad = " " * (depth + 1)
    entries = [f"{pad}{json.dumps(key)}: {_pretty(entry, depth + 1)}" for key, entry in value.items()]
    return "{\n" + ",\n".join(entries) + "\n" + " " * depth + "}"
