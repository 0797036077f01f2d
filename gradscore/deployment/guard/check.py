"""Compare a run with a baseline, gate by gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ...data import TEST
from ...store import RunFolder
from .baseline import Baseline, Detector, Policy, baseline_of
from .drift import feature_drift
from .gates import Gate, Metric, difference_gate, feature_gate, speed_gate
from .noninferiority import (
    Difference,
    Status,
    auroc_difference_other,
    auroc_difference_same,
    rate_difference_other,
    rate_difference_same,
)

ENOUGH_IN_COMMON = 0.5
"""From this share of the baseline's samples on, two runs are compared on the samples they have in common:
a paired test on half of them sees as much as one of different samples where errors correlate by 0.5."""

WORDS = {"wrong": "wrong predictions", "ood": "OOD samples"}


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The outcome of a check.

    Attributes:
        run: name of the run folder.
        gates: what was checked.
        notices: what could not be, and what else to know.
        current: the run as a baseline, under the policy it was checked with.
    """

    run: str
    gates: list[Gate]
    notices: list[str]
    current: Baseline

    @property
    def status(self) -> Status:
        """`fail` if a gate failed, else `inconclusive` if one was, else `pass`."""
        found = {gate.status for gate in self.gates}
        return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 inconclusive."""
        return {"fail": 1, "inconclusive": 3}.get(self.status, 0)

    @property
    def summary(self) -> str:
        """One sentence."""
        words = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive", "info": "for information"}
        counts = {word: sum(gate.status == status for gate in self.gates) for status, word in words.items()}
        listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        return f"{self.run}: {words[self.status]} ({listed})"


def check_run(run: RunFolder, baseline: Baseline, *, policy: Policy | None = None) -> CheckReport:
    """Compares a run that was evaluated with a baseline.

    Args:
        run: the run folder.
        baseline: what it is held to.
        policy: margins other than those of the baseline.

    Returns:
        The report.

    Raises:
        StoreError: the run is not finished or not evaluated.
        BaselineError: the run has no scores to compare.
    """
    policy = policy or baseline.policy
    test = run.read(TEST)
    current = baseline_of(run, test, policy=policy, protocol=baseline.protocol)
    same_model = current.model == baseline.model
    differences = list(_differences(baseline, current, same_model=same_model))
    drift = feature_drift(baseline.probe, test, tolerance=policy.feature)
    same_weights = current.model["weights_sha256"] == baseline.model["weights_sha256"]
    gates = [
        difference_gate(name, metric, found, policy=policy, gates=len(differences))
        for name, metric, found in differences
    ]
    gates.append(feature_gate(drift, policy=policy, same_weights=same_weights))
    gates.append(speed_gate(baseline.samples_per_second, current.samples_per_second))
    notices = [*baseline.notices, *_notices(baseline, current)]
    return CheckReport(run=Path(run.path).name, gates=gates, notices=notices, current=current)


def _differences(
    baseline: Baseline, current: Baseline, *, same_model: bool
) -> Iterator[tuple[str, Metric, Difference]]:
    pairs = {
        name: _Pair(samples.frame(), current.splits[name].frame())
        for name, samples in baseline.splits.items()
        if name in current.splits
    }
    test = pairs[TEST]
    if baseline.accuracy is not None:
        yield "accuracy of the classifier", "accuracy", test.rate("correct", above=0.5, exact=same_model)
    for name in ("wrong", "ood"):
        if {name} <= {*test.before.columns} & {*test.now.columns}:
            yield from _of_detector(name, baseline, pairs)


def _of_detector(
    name: Detector, baseline: Baseline, pairs: dict[str, _Pair]
) -> Iterator[tuple[str, Metric, Difference]]:
    test = pairs[TEST]
    others = {split: pair for split, pair in pairs.items() if split != TEST}
    if name == "wrong":
        yield "AUROC for wrong predictions", "auroc", test.auroc(name)
    else:
        for split, pair in others.items():
            yield f"AUROC for {split}", "auroc", test.joined(pair).auroc(name)
    limit = baseline.thresholds.get(name)
    if limit is None:
        return
    ordinary = test.where(correct=True) if name == "wrong" else test
    yield f"false alarms for {WORDS[name]}", "false_alarm", ordinary.rate(name, above=limit)
    if name == "wrong":
        yield "detection of wrong predictions", "detection", test.where(correct=False).rate(name, above=limit)
    else:
        for split, pair in others.items():
            yield f"detection of {split}", "detection", pair.rate(name, above=limit)


@dataclass(frozen=True)
class _Pair:
    """The samples of a split in the baseline and in the run: those in common where that is most of them."""

    before: pd.DataFrame
    now: pd.DataFrame

    @property
    def common(self) -> pd.Index[str] | None:
        both = self.before.index[self.before.index.isin(self.now.index)]
        return both if len(both) and len(both) >= ENOUGH_IN_COMMON * len(self.before) else None

    def joined(self, ood: _Pair) -> _Pair:
        """These samples as negatives, and others as positives."""
        return _Pair(*(pd.concat([mine.assign(correct=1.0), theirs.assign(correct=0.0)]).pipe(_distinct)
                       for mine, theirs in ((self.before, ood.before), (self.now, ood.now))))  # fmt: skip

    def where(self, *, correct: bool) -> _Pair:
        """The samples each model predicts right, or wrong."""
        return _Pair(*(frame[frame["correct"] == float(correct)] for frame in (self.before, self.now)))

    def known(self, column: str) -> _Pair:
        """The samples that have a value there; a sample without a label is neither right nor wrong."""
        return _Pair(*(frame[frame[column].notna()] for frame in (self.before, self.now)))

    def rate(self, column: str, *, above: float, exact: bool = False) -> Difference:
        known = self.known(column)
        before, now, common = known.before[column], known.now[column], known.common
        if common is None:
            return rate_difference_other(before > above, now > above)
        found = rate_difference_same(before.loc[common] > above, now.loc[common] > above)
        if exact and found.value == 0:
            return Difference(before=found.before, now=found.now, error=0.0, method="same model", n=found.n)
        return found

    def auroc(self, column: str) -> Difference:
        labelled = self.known("correct")
        before, now, common = labelled.before, labelled.now, labelled.common
        if common is not None:
            before, now = before.loc[common], now.loc[common]
        compare = auroc_difference_other if common is None else auroc_difference_same
        return compare(before[column], now[column], before["correct"] == 0, now["correct"] == 0)


def _distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Samples that are in one of two joined splits only."""
    return frame[~frame.index.duplicated(keep=False)]


def _notices(baseline: Baseline, current: Baseline) -> list[str]:
    gone = [name for name in baseline.splits if name not in current.splits]
    lines = [f"{name} is in the baseline and not in the run; it was not compared" for name in gone]
    if baseline.protocol != current.protocol:
        lines.append(f"the baseline is of protocol {baseline.protocol}, the run of {current.protocol}")
    changed = [f"{name} {old} -> {current.versions.get(name)}" for name, old in baseline.versions.items()
               if current.versions.get(name) != old]  # fmt: skip
    if changed:
        lines.append(f"versions changed: {', '.join(changed)}")
    if baseline.model != current.model:
        keys = [key for key in baseline.model if baseline.model[key] != current.model.get(key)]
        lines.append(f"the model is another one: {', '.join(keys)} changed")
    return lines
