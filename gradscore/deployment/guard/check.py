"""Compare a run with expected figures, gate by gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ...config import Config
from ...data import TEST
from ...evaluation import evaluate_run, fit_run
from ...features import extract
from ...store import RunFolder
from .drift import feature_drift
from .expected import Detector, Expected, Policy, expected_of
from .gates import NOT_IN_THE_RUN, Gate, Metric, difference_gate, feature_gate, missing_gate, speed_gate
from .missing import in_words as missing_in_words
from .missing import missing_samples
from .noninferiority import (
    Difference,
    Status,
    auroc_difference_other,
    auroc_difference_same,
    rate_difference_other,
    rate_difference_overlapping,
)
from .sources import Sources, caveats_of

ENOUGH_IN_COMMON = 0.5
"""From this share of the expected figures' samples on, two runs are compared on the samples they have in common:
a paired test on half of them sees as much as one of different samples where errors correlate by 0.5."""

METRICS_OF_TEST: tuple[Metric, ...] = ("accuracy", "auroc", "false_alarm")
METRICS_OF_OOD: tuple[Metric, ...] = ("auroc", "detection")
"""Whose margins say how large a drop samples may hide that are gone and no random part."""

WORDS = {"wrong": "wrong predictions", "ood": "OOD samples"}


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The outcome of a check.

    Attributes:
        run: name of the run folder.
        gates: what was checked.
        caveats: what has to be known beside the outcome: samples that are gone, what was not looked at.
        notices: what could not be checked, and what else to know.
        current: the run as expected figures, under the policy it was checked with.
    """

    run: str
    gates: list[Gate]
    caveats: list[str]
    notices: list[str]
    current: Expected

    @property
    def status(self) -> Status:
        """`fail` if a gate failed, else `inconclusive` if one was or none was decided, else `pass`."""
        found = {gate.status for gate in self.gates}
        return next((status for status in ("fail", "inconclusive", "pass") if status in found), "inconclusive")

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 inconclusive."""
        return {"fail": 1, "inconclusive": 3}.get(self.status, 0)

    @property
    def summary(self) -> str:
        """The outcome with its caveats."""
        return "; ".join([self.verdict, *self.caveats])

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        words = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive", "info": "for information"}
        counts = {word: sum(gate.status == status for gate in self.gates) for status, word in words.items()}
        listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        return f"{self.run}: {words[self.status]} ({listed})"


def check_run(
    run: RunFolder, expected: Expected, *, policy: Policy | None = None, sources: Sources = "compared"
) -> CheckReport:
    """Compares a run that was evaluated with expected figures.

    Args:
        run: the run folder.
        expected: what it is held to.
        policy: margins other than those of the expected figures.
        sources: what is done about the model and the data that the run was made from, see `caveats_of`.

    Returns:
        The report.

    Raises:
        StoreError: the run is not finished, not evaluated since, or not of its model and data as they are now.
        ExpectedFiguresError: the run has no scores to compare.
    """
    caveats = caveats_of(run, sources)
    policy = policy or expected.policy
    test = run.read(TEST)
    current = expected_of(run, test, policy=policy, protocol=expected.protocol)
    same_model = not current.changed_from(expected)
    pairs = _pairs(expected, current)
    differences = list(_differences(expected, pairs, same_model=same_model))
    drift = feature_drift(expected.probe, test, tolerance=policy.feature)
    same_weights = current.model["weights_sha256"] == expected.model["weights_sha256"]
    gates = [
        difference_gate(name, metric, found, policy=policy, gates=len(differences))
        for name, metric, found in differences
    ]
    gates.append(feature_gate(drift, policy=policy, same_weights=same_weights))
    for name, pair in pairs.items():
        found = missing_samples(
            expected.splits[name].frame(), current.splits[name].frame(), paired=pair.are_same, names=run.class_names
        )
        caveats += [text for text in [missing_in_words(name, found, paired=pair.are_same)] if text]
        margin = min(getattr(policy, metric) for metric in (METRICS_OF_TEST if name == TEST else METRICS_OF_OOD))
        if found.unseen > margin or (name != TEST and found.gone == found.samples):
            gates.append(missing_gate(name, found, margin=margin))
    gates.append(speed_gate(expected.samples_per_second, current.samples_per_second))
    notices = [*expected.notices, *_notices(expected, current)]
    return CheckReport(run=Path(run.path).name, gates=gates, caveats=caveats, notices=notices, current=current)


def check_config(
    config: Config, expected: Expected, *, policy: Policy | None = None, trust_code: bool = False
) -> CheckReport:
    """Extracts what is missing or changed since, fits, evaluates, and compares with expected figures.

    Args:
        config: the settings, with the folder of the run.
        expected: what it is held to.
        policy: margins other than those of the expected figures.
        trust_code: allow a `python:` model, data and augmentations, whose code is run.

    Raises:
        GradscoreError: as `extract`, `fit_run`, `evaluate_run` and `check_run`.
    """
    run = extract(config, trust_code=trust_code, check_kept=True).run
    fit_run(RunFolder(run))
    evaluate_run(RunFolder(run))
    return check_run(RunFolder(run), expected, policy=policy, sources="extracted")


def _pairs(expected: Expected, current: Expected) -> dict[str, _Pair]:
    return {
        name: _Pair.of(samples.frame(), current.splits[name].frame())
        for name, samples in expected.splits.items()
        if name in current.splits
    }


def _differences(
    expected: Expected, pairs: dict[str, _Pair], *, same_model: bool
) -> Iterator[tuple[str, Metric, Difference]]:
    test = pairs[TEST]
    if expected.accuracy is not None:
        yield (
            "accuracy of the classifier",
            "accuracy",
            test.rate("correct", above=0.5, unchanged=same_model and test.has_same("correct")),
        )
    for name in expected.splits[TEST].scores:
        unchanged = same_model and all(pair.has_same("correct") and pair.has_same(name) for pair in pairs.values())
        yield from _of_detector(name, expected, pairs, unchanged=unchanged)


def _of_detector(
    name: Detector, expected: Expected, pairs: dict[str, _Pair], *, unchanged: bool
) -> Iterator[tuple[str, Metric, Difference]]:
    limit = expected.thresholds.get(name)
    test = pairs[TEST]
    others = [split for split, samples in expected.splits.items() if split != TEST and name in samples.scores]
    is_there = name in test.now

    def auroc(of: _Pair) -> Difference:
        return of.auroc(name, unchanged=unchanged)

    def rate(of: _Pair) -> Difference:
        return of.rate(name, above=limit, unchanged=unchanged) if limit is not None else NOT_IN_THE_RUN

    if name == "wrong":
        yield "AUROC for wrong predictions", "auroc", auroc(test) if is_there else NOT_IN_THE_RUN
    else:
        for split in others:
            pair = pairs.get(split) if is_there else None
            yield f"AUROC for {split}", "auroc", NOT_IN_THE_RUN if pair is None else auroc(test.joined(pair))
    if limit is None:
        return
    ordinary = test.where(correct=True) if name == "wrong" else test
    yield f"false alarms for {WORDS[name]}", "false_alarm", rate(ordinary) if is_there else NOT_IN_THE_RUN
    if name == "wrong":
        errors = test.where(correct=False)
        yield "detection of wrong predictions", "detection", rate(errors) if is_there else NOT_IN_THE_RUN
    else:
        for split in others:
            pair = pairs.get(split) if is_there else None
            yield f"detection of {split}", "detection", NOT_IN_THE_RUN if pair is None else rate(pair)


@dataclass(frozen=True)
class _Pair:
    """The samples of a split in the expected figures and in the run.

    Attributes:
        before: those of the expected figures.
        now: those of the run.
        are_same: whether they are samples of the same names; those of others are not compared with each other.
    """

    before: pd.DataFrame
    now: pd.DataFrame
    are_same: bool

    @classmethod
    def of(cls, before: pd.DataFrame, now: pd.DataFrame) -> _Pair:
        """The samples in common where that is most of the expected figures', or else all."""
        both = before.index[before.index.isin(now.index)]
        if len(both) and len(both) >= ENOUGH_IN_COMMON * len(before):
            return cls(before.loc[both], now.loc[both], are_same=True)
        return cls(before, now, are_same=False)

    def has_same(self, column: str) -> bool:
        """Whether every sample is the same, with the same score, if the split has such scores at all."""
        if column not in self.before or column not in self.now:
            return True
        return self.are_same and self.before[column].equals(self.now[column])

    def joined(self, ood: _Pair) -> _Pair:
        """These samples as negatives, and others as positives; the same ones only if both are."""
        before, now = (
            _distinct(pd.concat([mine.assign(correct=1.0), theirs.assign(correct=0.0)]))
            for mine, theirs in ((self.before, ood.before), (self.now, ood.now))
        )
        return _Pair(before, now, are_same=self.are_same and ood.are_same)

    def where(self, *, correct: bool) -> _Pair:
        """The samples each model predicts right, or wrong: of those of the same names, some may be in one only."""
        before, now = (frame[frame["correct"] == float(correct)] for frame in (self.before, self.now))
        return _Pair(before, now, are_same=self.are_same)

    def known(self, column: str) -> _Pair:
        """The samples that have a value there; a sample without a label is neither right nor wrong."""
        before, now = self.before[column].notna(), self.now[column].notna()
        if self.are_same:
            before = now = before & now
        return _Pair(self.before[before], self.now[now], are_same=self.are_same)

    def rate(self, column: str, *, above: float, unchanged: bool = False) -> Difference:
        """The change of the share of samples above a limit; `unchanged` if it is known that nothing did."""
        known = self.known(column) if column == "correct" else self
        before, now = known.before[column] > above, known.now[column] > above
        found = (rate_difference_overlapping if self.are_same else rate_difference_other)(before, now)
        return _exactly(found) if unchanged else found

    def auroc(self, column: str, *, unchanged: bool = False) -> Difference:
        """The change of the AUROC of a score for what is wrong, or for what was joined."""
        known = self.known("correct")
        before, now = known.before, known.now
        compare = auroc_difference_same if self.are_same else auroc_difference_other
        found = compare(before[column], now[column], before["correct"] == 0, now["correct"] == 0)
        return _exactly(found) if unchanged else found


def _exactly(found: Difference) -> Difference:
    """A difference without doubt, where model and scores are those of the expected figures."""
    if found.value != 0:
        return found
    return Difference(before=found.before, now=found.now, error=0.0, method="same model", n=found.n)


def _distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Samples that are in one of two joined splits only."""
    return frame[~frame.index.duplicated(keep=False)]


def _notices(expected: Expected, current: Expected) -> list[str]:
    gone = [name for name in expected.splits if name not in current.splits]
    lines = [
        f"{name} is in the expected figures and not in the run; write it anew with --update if that is meant"
        for name in gone
    ]
    if expected.protocol != current.protocol:
        lines.append(f"the expected figures is of protocol {expected.protocol}, the run of {current.protocol}")
    changed = [f"{name} {old} -> {current.versions.get(name)}" for name, old in expected.versions.items()
               if current.versions.get(name) != old]  # fmt: skip
    if changed:
        lines.append(f"versions changed: {', '.join(changed)}")
    if keys := current.changed_from(expected):
        lines.append(f"the model is another one: {', '.join(keys)} changed")
    return lines
