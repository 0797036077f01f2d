"""What a reader wants to know first: how well wrong predictions and OOD samples are found, and what is gained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..scores import SCORES, plain_name
from .records import GAIN, Record
from .scoring import SCORE_LR

HEADLINE_PROTOCOLS = ("leave_one_out", "auxiliary", "in_dist_only", "known")
"""Protocols of the task `ood`; the first one there is makes the verdict."""

CHANCE = 0.5
"""The AUROC of a score that knows nothing; what is not shown to be above it is not called better than others."""

LEVEL = 0.05
"""The share of comparisons with scores that are no better in which one is called better, at most."""

NOTHING_TO_TELL = (
    "no prediction is wrong (or none is right), and no OOD sample is reported, so there is nothing to tell from the "
    "rest; report more labelled samples (data.in_dist.test), or OOD sets (data.ood)"
)
"""Why there is no verdict where no label is doubted."""

Outcome = Literal["better", "open", "worse"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well one kind of samples is found.

    Attributes:
        what: `wrong predictions`, or the OOD set or group of sets.
        protocol: what the meta model was fitted on.
        area: the AUROC of the meta model.
        best: the single score with the highest AUROC on these very samples.
        gain: the AUROC gained over that score, None where it cannot be compared.
        rivals: how many single scores there are.
        by_gradients: the AUROC gained over a regression on all scores without gradients.
        false_alarms: share of ordinary (or right) ones flagged when at least 95 % of the others are.
    """

    what: str
    protocol: str
    area: Record
    best: str | None
    gain: Record | None
    rivals: int
    by_gradients: Record | None
    false_alarms: float | None

    @property
    def best_auroc(self) -> float | None:
        """The AUROC of the best single score on the same samples; None where it cannot be compared."""
        if self.gain is None or self.gain.value is None or self.area.value is None:
            return None
        return self.area.value - self.gain.value

    @property
    def outcome(self) -> Outcome:
        """Whether the meta model is shown to be better than the best single score, or worse.

        The best of many scores on these very samples looks better than it is. That makes `better` hard to reach and
        `worse` easy: of 40 scores that are no better than the meta model, one is called better in a quarter of cases.
        So `worse` needs a p-value below 0.05 over the number of scores (Bonferroni).
        """
        gain = self.gain
        if gain is None or gain.value is None or gain.low is None or gain.p_value is None:
            return "open"
        if gain.low > 0 and self.area.low is not None and self.area.low > CHANCE:
            return "better"
        return "worse" if gain.value < 0 and gain.p_value * self.rivals < LEVEL else "open"


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """The verdicts on wrong predictions and on OOD sets, groups of them where there are any.

    Args:
        records: as `evaluate_run` gives them.

    Returns:
        Those that have an AUROC.
    """
    return list(_verdicts(records))


def single_scores(records: Iterable[Record]) -> list[Record]:
    """The AUROCs of single scores among the records of one data set, the highest first."""
    found = [each for each in records if each.metric == "auroc" and plain_name(each.score) in SCORES]
    return sorted((each for each in found if each.value is not None), key=lambda each: -(each.value or 0.0))


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    areas = [each for each in records if each.metric == "auroc" and each.score == "meta" and each.value is not None]
    for area in (each for each in areas if each.task == "misclassification"):
        yield _verdict("wrong predictions", area, records)
    there = {each.protocol for each in areas if each.task == "ood"}
    protocol = next((name for name in HEADLINE_PROTOCOLS if name in there), None)
    ood = [each for each in areas if each.task == "ood" and each.protocol == protocol]
    groups = [each for each in ood if each.dataset.endswith(" (mean)")]
    for area in groups or ood:
        yield _verdict(area.dataset.removesuffix(" (mean)"), area, records)


def _verdict(what: str, area: Record, records: Sequence[Record]) -> Verdict:
    same = [
        each
        for each in records
        if (each.task, each.dataset, each.protocol) == (area.task, area.dataset, area.protocol)
        and each.value is not None
    ]
    singles = single_scores(same)
    best = singles[0].score if singles else None
    meta = {each.metric: each for each in same if each.score == "meta"}
    alarms = meta.get("fpr95_ood_positive")
    return Verdict(
        rivals=len(singles),
        by_gradients=meta.get(GAIN + SCORE_LR),
        what=what,
        protocol=area.protocol,
        area=area,
        best=best,
        gain=None if best is None else meta.get(GAIN + best),
        false_alarms=None if alarms is None else alarms.value,
    )
