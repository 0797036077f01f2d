"""Compares a run with expected figures, test by test, and reports it as JUnit XML.

The samples are the same: where one of those that are expected is not in the run, nothing is compared. What is left says
nothing of it, and a network that never predicts a class passes every comparison of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree as Xml

import numpy as np
import pandas as pd

from ..data import TEST
from ..deployment import DETECTORS
from ..errors import ExpectedFiguresError, OutputError
from ..evaluation import signed, specs_of
from ..store import RunFolder
from .differences import (
    Difference,
    FeatureDrift,
    Judgement,
    Status,
    auroc_difference_same,
    feature_drift,
    judge,
    rate_difference_overlapping,
)
from .expected import HASH_DIGITS, ExpectedFigures, Policy, Sources, Target, caveats_of, chosen_scores, expected_of

_XML = b"<?xml"

Metric = Literal["accuracy", "auroc", "false_alarm", "detection", "feature"]


ROUNDING = 1e-3
"""Change of a score, in its standard deviations, up to which a model is the same, if its weights and code are: other
batches, threads and processors moved scores by 2e-5. Samples as near as that change ranks by chance alone."""


@dataclass(frozen=True, kw_only=True)
class CheckTest:
    """Result of one test of a check.

    Attributes:
        name: what, in words.
        metric: its kind, which names its margin in the policy.
        status: see `Judgement`; `info` for what cannot fail.
        before: the expected value.
        now: value of the run.
        margin: the accepted change for the worse; None for what cannot fail.
        low: lower bound of the change for the better.
        high: upper bound of the change for the better.
        method: how it was compared.
        n: samples it rests on.
        message: a sentence on the outcome.
    """

    name: str
    metric: Metric
    status: Status
    before: float | None
    now: float | None
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    method: str
    n: int
    message: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The outcome of a check.

    Attributes:
        run: name of the run folder.
        tests: what was tested.
        caveats: what has to be known beside the outcome: what was not looked at.
        notices: what could not be tested, and what else to know.
        current: the run as expected figures of the scores it chose, under the policy it was checked with.
    """

    run: str
    tests: list[CheckTest]
    caveats: list[str]
    notices: list[str]
    current: ExpectedFigures

    @property
    def status(self) -> Status:
        """`fail` if a test failed, else `undecided` if one was or none was decided, else `pass`."""
        found = {test.status for test in self.tests}
        return next((status for status in ("fail", "undecided", "pass") if status in found), "undecided")

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 undecided."""
        return {"fail": 1, "undecided": 3}.get(self.status, 0)

    @property
    def summary(self) -> str:
        """The outcome with its caveats."""
        return "; ".join([self.verdict, *self.caveats])

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        words = {
            "pass": ("no worse than expected", " pass"),
            "fail": (self._failed, " fail"),
            "undecided": ("undecided", ""),
        }
        outcome, verb = words[self.status]
        judged: list[Status] = [test.status for test in self.tests if test.status != "info"]
        return f"{outcome}: {judged.count(self.status)} of {len(judged)} tests{verb}"

    @property
    def _failed(self) -> str:
        """Worse where a figure is; other features alone are not."""
        are_figures = any(test.status == "fail" and test.metric != "feature" for test in self.tests)
        return "worse than expected" if are_figures else "other features than expected"

    @property
    def problems(self) -> list[str]:
        """A sentence on each test that failed or was undecided."""
        return [test.message for test in self.tests if test.status in ("fail", "undecided")]


def check_run(
    run: RunFolder, expected: ExpectedFigures, *, policy: Policy | None = None, sources: Sources = "compared"
) -> CheckReport:
    """Compares a run that was evaluated with expected figures.

    Args:
        run: the run folder.
        expected: what it is held to.
        policy: margins other than the expected ones.
        sources: what is done about the model and the data that the run was made from, see `caveats_of`.

    Returns:
        The report.

    Raises:
        StoreError: the run is not finished, not evaluated since, or not of its model and data as they are now.
        ExpectedFiguresError: the run lacks samples or scores that are expected.
    """
    caveats = caveats_of(run, sources)
    policy = policy or expected.policy
    table = run.read(TEST)
    found = expected_of(run, table, policy=policy, protocol=expected.protocol, scored_by=expected.scored_by, count=None)
    pairs = _pairs(run, expected, found, table)
    compared = list(_compared(expected, pairs, same_model=not found.changed_from(expected)))
    tests = [_difference_test(each, policy=policy, tests=len(compared)) for each in compared]
    same_weights = found.model["weights_sha256"] == expected.model["weights_sha256"]
    drift = feature_drift(expected.probe, table, tolerance=policy.feature)
    tests.append(_feature_test(drift, policy=policy, same_weights=same_weights))
    notices = [*expected.notices, *_notices(expected, found), *_duplicates(run, pairs)]
    chosen = chosen_scores(run, expected.protocol)
    changed = [target for target, name in expected.scored_by.items() if chosen.get(target, name) != name]
    notices += [
        f"{DETECTORS[target].what}: the expected figures are of score '{expected.scored_by[target]}', which is "
        f"compared, and the run now chooses '{chosen[target]}'; where that is meant, --update makes figures of it"
        for target in changed
    ]
    current = expected_of(run, table, policy=policy, protocol=expected.protocol)
    return CheckReport(run=Path(run.path).name, tests=tests, caveats=caveats, notices=notices, current=current)


class _Compared(NamedTuple):
    """A difference that is to be judged: what it is of, in words and by its kind."""

    name: str
    metric: Metric
    difference: Difference


class _Pair(NamedTuple):
    """Scores of the same samples, as expected and in the run, in the same order.

    Attributes:
        before: as expected.
        now: in the run.
    """

    before: pd.DataFrame
    now: pd.DataFrame

    def has_same(self, column: str) -> bool:
        """Whether every sample has the same score but for rounding, if the split has such scores at all."""
        if column not in self.before:
            return True
        before, now = (each[column].to_numpy(dtype=np.float64) for each in self)
        known = before[np.isfinite(before)]
        rounding = ROUNDING * float(known.std()) if len(known) else 0.0
        return bool(np.isclose(now, before, rtol=0.0, atol=rounding, equal_nan=True).all())

    def unchanged(self) -> _Pair:
        """The expected scores twice, where all else is rounding: it would move samples past a frozen threshold."""
        return _Pair(self.before, self.before)

    def joined(self, ood: _Pair) -> _Pair:
        """These samples as negatives, and others as positives."""
        return _Pair(
            *(
                pd.concat([mine.assign(correct=1.0), theirs.assign(correct=0.0)])
                for mine, theirs in zip(self, ood, strict=True)
            )
        )

    def where(self, *, correct: bool) -> _Pair:
        """The samples each model predicts right, or wrong: some may be in one only."""
        return _Pair(*(frame[frame["correct"] == float(correct)] for frame in self))

    def labelled(self) -> _Pair:
        """The samples that have a label; others are neither right nor wrong."""
        known = self.before["correct"].notna() & self.now["correct"].notna()
        return _Pair(self.before[known], self.now[known])

    def rate(self, column: str, *, above: float, unchanged: bool) -> Difference:
        """The change of the share of samples above a limit; `unchanged` if it is known that nothing did."""
        found = rate_difference_overlapping(self.before[column] > above, self.now[column] > above)
        return _exactly(found) if unchanged else found

    def auroc(self, column: str, *, unchanged: bool) -> Difference:
        """The change of the AUROC of a score for what is wrong, or for what was joined."""
        before, now = self.labelled()
        found = auroc_difference_same(before[column], now[column], before["correct"] == 0, now["correct"] == 0)
        return _exactly(found) if unchanged else found


def _pairs(run: RunFolder, expected: ExpectedFigures, found: ExpectedFigures, test: pd.DataFrame) -> dict[str, _Pair]:
    """The expected samples of each split and what the run has of them, all of which it has to have."""
    pairs = {}
    for split, samples in expected.splits.items():
        before = samples.frame()
        now = found.splits[split].frame() if split in found.splits else before.iloc[:0]
        gone = before.index[~before.index.isin(now.index)]
        lacking = [f"{len(gone)} of the {len(before)} samples"] if len(gone) else []
        there = test["content_hash"].str[:HASH_DIGITS] if split == TEST else ()
        if unlabelled := int(gone.isin(there).sum()):
            raise ExpectedFiguresError(
                f"{run.path}: {split}: {unlabelled} of the {len(before)} samples of the expected figures have no label "
                "any more, and figures are compared on the same samples; label them, or delete the expected figures "
                "and make them anew with --update"
            )
        lacking += [f"the scores for {DETECTORS[target].what}" for target in samples.scores if target not in now]
        if lacking:
            raise ExpectedFiguresError(
                f"{run.path}: {split}: {' and '.join(lacking)} of the expected figures are not in the run, and figures "
                "are compared on the same samples; bring them back, or delete the expected figures and make them anew "
                "with --update"
            )
        pairs[split] = _Pair(before, now.loc[before.index])
    return pairs


def _exactly(found: Difference) -> Difference:
    """A difference without doubt, where model and scores are the expected ones."""
    return replace(found, error=0.0, rates=None, method="same model") if found.value is not None else found


def _compared(expected: ExpectedFigures, pairs: Mapping[str, _Pair], *, same_model: bool) -> Iterator[_Compared]:
    """All differences, of the accuracy and of each score."""
    test = pairs[TEST]
    if expected.accuracy is not None:
        unchanged = same_model and test.has_same("correct")
        accuracy = test.labelled().rate("correct", above=0.5, unchanged=unchanged)
        yield _Compared("accuracy of the classifier", "accuracy", accuracy)
    for target in expected.splits[TEST].scores:
        unchanged = same_model and all(pair.has_same("correct") and pair.has_same(target) for pair in pairs.values())
        compared = {split: pair.unchanged() for split, pair in pairs.items()} if unchanged else pairs
        yield from _compared_scores(target, expected, compared, unchanged=unchanged)


def _compared_scores(
    target: Target, expected: ExpectedFigures, pairs: Mapping[str, _Pair], *, unchanged: bool
) -> Iterator[_Compared]:
    """The differences of one score: its AUROC, and its rates at the frozen threshold."""
    test, limit = pairs[TEST], expected.thresholds.get(target)
    ood = {split: pair for split, pair in pairs.items() if split != TEST and target == "ood"}

    def auroc(of: _Pair) -> Difference:
        return of.auroc(target, unchanged=unchanged)

    if target == "wrong":
        yield _Compared("AUROC for wrong predictions", "auroc", auroc(test))
    for split, pair in ood.items():
        yield _Compared(f"AUROC for {split}", "auroc", auroc(test.joined(pair)))
    if limit is None:
        return

    def rate(of: _Pair) -> Difference:
        return of.rate(target, above=limit, unchanged=unchanged)

    ordinary = test.where(correct=True) if target == "wrong" else test
    yield _Compared(f"false alarms for {DETECTORS[target].what}", "false_alarm", rate(ordinary))
    if target == "wrong":
        yield _Compared("detection of wrong predictions", "detection", rate(test.where(correct=False)))
    for split, pair in ood.items():
        yield _Compared(f"detection of {split}", "detection", rate(pair))


def _difference_test(compared: _Compared, *, policy: Policy, tests: int) -> CheckTest:
    """The test of a difference, one of so many that are judged together; its margin is that of its kind."""
    name, metric, found = compared
    margin = float(getattr(policy, metric))
    judged = judge(found, margin=margin, level=policy.level, tests=tests, higher_is_better=metric != "false_alarm")
    worse = "rise" if metric == "false_alarm" else "drop"
    change = "no value" if found.value is None else f"{found.before:.4f} -> {found.now:.4f} ({signed(found.value, 4)})"
    endings = {
        "pass": f"no {worse} of more than {margin:g}",
        "fail": f"a {worse} of more than {margin:g}",
        "undecided": f"{found.n} samples leave undecided whether it is a {worse} of more than {margin:g}",
    }
    message = f"{name}: {change}, {endings[judged.status]}"
    if judged.status == "undecided":
        message += f"; {_why_undecided(judged, metric)}"
    return CheckTest(
        name=name,
        metric=metric,
        before=found.before,
        now=found.now,
        margin=margin,
        method=found.method,
        n=found.n,
        message=message,
        **judged._asdict(),
    )


def _why_undecided(judged: Judgement, metric: Metric) -> str:
    """Reason why a test is undecided, or the interval of the change."""
    if judged.low is None or judged.high is None:
        return "fewer than two samples of a class" if metric == "auroc" else "no sample to compare"
    return f"the change for the better is from {signed(judged.low, 3)} to {signed(judged.high, 3)}"


def _feature_test(drift: FeatureDrift, *, policy: Policy, same_weights: bool) -> CheckTest:
    """The test of features of samples that were kept: columns have to be the same, and values where the weights are."""
    moved = len(drift.moved)
    status: Status = "pass" if same_weights else "info"
    message = f"no column moved by more than {policy.feature:g} (at most {drift.largest:.2g})"
    if drift.schema:
        status, message = "fail", f"the columns differ: {drift.schema}; where other features are meant, add --update"
    elif moved:
        far = f"most of all the {drift.place} ({drift.largest:.3g})"
        message = f"{moved} columns moved by more than {policy.feature:g}, {far}"
        status = "fail" if same_weights else "info"
        message += "" if same_weights else "; the weights are others, so that is for information"
    elif not drift.samples:
        status, message = "undecided" if same_weights else "info", "none of these is in the run"
    return CheckTest(
        name="features of samples that were kept",
        metric="feature",
        status=status,
        before=0.0,
        now=drift.largest if np.isfinite(drift.largest) else None,
        margin=policy.feature,
        method="relative change",
        n=drift.samples,
        message=f"features of samples that were kept: {message}",
    )


def _notices(expected: ExpectedFigures, current: ExpectedFigures) -> list[str]:
    lines = []
    if expected.protocol != current.protocol:
        lines.append(f"the expected figures are of protocol {expected.protocol}, the run of {current.protocol}")
    versions = {name: (old, current.versions.get(name)) for name, old in expected.versions.items()}
    changed = [f"{name} {old} -> {new}" for name, (old, new) in versions.items() if old != new]
    if changed:
        lines.append(f"versions changed: {', '.join(changed)}")
    if keys := current.changed_from(expected):
        lines.append(f"the model is another one: {', '.join(keys)} changed")
    return lines


def _duplicates(run: RunFolder, compared: Collection[str]) -> list[str]:
    """Says how many copies there are in the splits that are compared, and what follows."""
    found, both = specs_of(run), set(compared)
    copies = [
        f"{each.split.name}: {each.phrase}, and each is compared once"
        for each in found.copies
        if each.split.name in both
    ]
    overlaps = [
        f"{each}; {each.consequence}"
        for each in found.overlaps
        if not both.isdisjoint((each.first.name, each.second.name))
    ]
    return [f"duplicates: {each}" for each in (*copies, *overlaps)]


def check_junit_target(path: Path) -> None:
    """Refuses to replace a file that is no XML: a configuration or weights, for example.

    Raises:
        OutputError: there is such a file at `path`.
    """
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(_XML))
        if head not in (b"", _XML):
            raise OutputError(f"{path}: this file is there already and is no XML; give another path, or remove it")


def to_junit(report: CheckReport) -> str:
    """The report as JUnit XML: a test case for each test; what is undecided is an error, not a failure."""
    kinds = {"fail": "failure", "undecided": "error", "info": "skipped"}
    counts = {kind: sum(test.status == status for test in report.tests) for status, kind in kinds.items()}
    suite = Xml.Element(
        "testsuite",
        name=f"gradscore check {report.run}",
        tests=str(len(report.tests)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    for test in report.tests:
        case = Xml.SubElement(suite, "testcase", classname=f"gradscore.{test.metric}", name=test.name)
        if test.status in kinds:
            Xml.SubElement(case, kinds[test.status], message=test.message)
        Xml.SubElement(case, "system-out").text = test.message
    if report.caveats:
        Xml.SubElement(suite, "system-out").text = "\n".join(report.caveats)
    Xml.indent(suite)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def refusal_to_junit(source: Path, error: str) -> str:
    """A check that could not be made as JUnit XML: one test case with an error.

    Args:
        source: what was to be compared.
        error: why it was not.
    """
    suite = Xml.Element("testsuite", name=f"gradscore check {source}", tests="1", failures="0", errors="1", skipped="0")
    case = Xml.SubElement(suite, "testcase", classname="gradscore.check", name="could be made")
    Xml.SubElement(case, "error", message=error)
    Xml.indent(suite)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
