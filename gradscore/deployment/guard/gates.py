"""From what was found to gates: did this pass, and in which words?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .drift import Drift
from .expected import Policy
from .missing import Missing, why_not
from .noninferiority import Difference, Status, Verdict, judge

Metric = Literal["accuracy", "auroc", "false_alarm", "detection", "feature", "speed", "samples"]


NOT_IN_THE_RUN = Difference(before=None, now=None, error=None, method="not in the run", n=0)
"""What becomes of a comparison where the run has nothing to compare."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One thing that was checked.

    Attributes:
        name: what, in words.
        metric: its kind, which names its margin in the policy.
        status: see `noninferiority.Verdict`; `info` for what cannot fail.
        before: value of the expected figures.
        now: value of the run.
        margin: the accepted change for the worse; None for what cannot fail.
        low: lower bound of the change for the better.
        high: upper bound of the change for the better.
        smallest_drop: smallest change for the worse that would have shown.
        method: how it was compared.
        n: samples it rests on.
        message: a sentence on the outcome.
    """

    name: str
    metric: Metric
    status: Status
    before: float | None
    now: float | None
    margin: float | None
    low: float | None
    high: float | None
    smallest_drop: float | None
    method: str
    n: int
    message: str


def difference_gate(name: str, metric: Metric, found: Difference, *, policy: Policy, gates: int) -> Gate:
    """The gate of a difference; its margin is that of its kind in the policy.

    Args:
        name: what is compared, in words.
        metric: its kind.
        found: the difference.
        policy: margins and confidence.
        gates: how many differences are judged together.
    """
    margin = float(getattr(policy, metric))
    verdict = judge(found, margin=margin, level=policy.level, gates=gates, higher_is_better=metric != "false_alarm")
    worse = "rise" if metric == "false_alarm" else "drop"
    change = "" if found.value is None else f"{found.before:.4f} -> {found.now:.4f} ({found.value:+.4f})"
    endings = {
        "pass": f"no {worse} of more than {margin:g}",
        "fail": f"a {worse} of more than {margin:g}",
        "inconclusive": f"{found.n} samples cannot tell whether it is a {worse} of more than {margin:g}",
    }
    message = f"{name}: {change or 'no value'}, {endings[verdict.status]}"
    if found is NOT_IN_THE_RUN:
        message = f"{name}: the expected figures has it, the run has no such scores"
    elif verdict.status == "inconclusive":
        message += f"; {_why_not(verdict, metric, worse)}"
    return Gate(
        name=name,
        metric=metric,
        status=verdict.status,
        before=found.before,
        now=found.now,
        margin=margin,
        low=verdict.low,
        high=verdict.high,
        smallest_drop=verdict.smallest_drop,
        method=found.method,
        n=found.n,
        message=message,
    )


def _why_not(verdict: Verdict, metric: Metric, worse: str) -> str:
    """What an inconclusive gate lacks, or what change it would have shown."""
    if verdict.low is None:
        return "fewer than two samples of a class" if metric == "auroc" else "no sample to compare"
    if verdict.smallest_drop is None:
        return f"so few cannot show any {worse}"
    return f"in four of five cases they would have shown a {worse} of {verdict.smallest_drop:.3f}"


def feature_gate(drift: Drift, *, policy: Policy, same_weights: bool) -> Gate:
    """The gate of the features of the probe: columns have to be the same, and values where the weights are."""
    moved = len(drift.moved)
    status: Status = "fail" if drift.schema or (moved and same_weights) else "info"
    if not drift.schema and same_weights and not moved:
        status = "pass" if drift.samples else "inconclusive"
    far = f"{moved} columns moved by more than {policy.feature:g}, most of all the {drift.place} ({drift.largest:.3g})"
    message = far if moved else f"no column moved by more than {policy.feature:g} (at most {drift.largest:.2g})"
    if not drift.samples:
        message = "no sample of the probe is in the run"
    if moved and not same_weights:
        message += "; the weights are others, so that is for information"
    if drift.schema:
        message = f"the columns differ: {drift.schema}"
    return Gate(
        name="features of the probe",
        metric="feature",
        status=status,
        before=0.0,
        now=drift.largest if np.isfinite(drift.largest) else None,
        margin=policy.feature,
        low=None,
        high=None,
        smallest_drop=None,
        method="relative change",
        n=drift.samples,
        message=f"features of the probe: {message}",
    )


def missing_gate(split: str, found: Missing, *, margin: float) -> Gate:
    """The gate of samples that are gone and no random part: what is left cannot tell."""
    return Gate(
        name=f"samples of {split}",
        metric="samples",
        status="inconclusive",
        before=float(found.samples),
        now=float(found.samples - found.gone),
        margin=margin,
        low=None,
        high=None,
        smallest_drop=None,
        method="gone at random?",
        n=found.samples,
        message=why_not(split, found),
    )


def speed_gate(before: float | None, now: float | None) -> Gate:
    """How fast features were computed: machines differ and so do their loads, so it never decides."""
    values = ["unknown" if value is None else f"{value:.0f}" for value in (before, now)]
    ratio = f" ({now / before:.2f} times)" if before and now else ""
    return Gate(
        name="samples per second",
        metric="speed",
        status="info",
        before=before,
        now=now,
        margin=None,
        low=None,
        high=None,
        smallest_drop=None,
        method="wall clock",
        n=1,
        message=f"extraction: {' -> '.join(values)} samples per second{ratio}, for information",
    )
