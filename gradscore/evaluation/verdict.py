"""What a reader wants to know first: how well wrong predictions and OOD samples are found, and what is gained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..baselines import BASELINES, plain_name
from ..system import some
from .records import GAIN, MEAN, Record
from .score_tables import SCORE_LR

HEADLINE_PROTOCOLS = ("leave_one_dataset_out", "auxiliary", "in_dist_only", "known")
"""Protocols of the task `ood`; the first one there is makes the verdict."""

CHANCE = 0.5
"""The AUROC of a score that knows nothing; what is not shown to be above it is not called better than others."""

SIGNIFICANCE = 0.05
"""The share of comparisons with scores that are no better in which one is called better, at most."""

NOTHING_TO_TELL = (
    "no prediction is wrong (or none is right), and no OOD sample is reported, so there is nothing to tell from the "
    "rest; report more labelled samples (data.in_dist.test), or OOD sets (data.ood)"
)
"""Why there is no verdict where no label is doubted."""

COMPARED = (
    "better: the 95 % intervals of the gains over all baselines are above 0, and that of the AUROC above 0.5; "
    "worse: the gain over the best one is below 0, with a p-value below 0.05 over the number of baselines; open: "
    "neither; each set is compared with the baseline that is best on it"
)
"""What the words of a verdict stand for."""

Outcome = Literal["better", "ahead", "mixed", "open", "worse"]
"""Of the meta model against the best baseline: `ahead` is better, but than weaker ones than there could be; `mixed`
is better in the mean over sets, and worse on one or more of them; `open` is neither shown to be better nor worse."""

OTHERWISE = {"open": "not shown to be better than", "worse": "worse than"}
"""What is said of an outcome that is not in favour of the meta model."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well one kind of samples is found.

    Attributes:
        what: `wrong predictions`, or the OOD set or group of sets.
        protocol: what the meta model was fitted on.
        area: the AUROC of the meta model.
        best: the baseline with the highest AUROC on these very samples.
        gain: the AUROC gained over that score, None where it cannot be compared.
        over_all: whether the 95 % interval of the gain over every baseline is above 0.
        baselines: how many baselines there are.
        by_gradients: the AUROC gained over a regression on all scores without gradients.
        false_alarms: share of ordinary (or right) ones flagged when at least 95 % of the others are.
        complete: whether the baselines that are often the strongest were computed, at their best.
        sets: of a group of several OOD sets the verdict on each, against the baseline that is best on that set.
    """

    what: str
    protocol: str
    area: Record
    best: str | None
    gain: Record | None
    over_all: bool
    baselines: int
    by_gradients: Record | None
    false_alarms: float | None
    complete: bool = True
    sets: tuple[Verdict, ...] = ()

    @property
    def best_auroc(self) -> float | None:
        """The AUROC of the best baseline on the same samples; None where it cannot be compared."""
        if self.gain is None or self.gain.value is None or self.area.value is None:
            return None
        return self.area.value - self.gain.value

    @property
    def outcome(self) -> Outcome:
        """Whether the meta model is shown to be better than the best baseline, or worse.

        `better` needs an interval above 0 over every baseline, not only over the one that came out best here:
        chance may put a weak one first that is nearly a copy of the meta model, and a small gain over it is easy to
        show. All of them together need no correction (intersection-union), and where one of them is as good, `better`
        comes at most once in 40 sets. The best of many scores on these very samples looks better than it is: of 40
        that are no better than the meta model, one is called better in a quarter of cases. So `worse` needs a p-value
        below 0.05 over the number of scores (Bonferroni). Nothing is corrected for the number of sets.
        """
        found = self._against_best
        if found != "better":
            return found
        if any(each.outcome == "worse" for each in self.sets):
            return "mixed"
        return "better" if self.complete else "ahead"

    @property
    def by_set(self) -> str:
        """On how many sets of a group it is better or open, and on which it is worse; empty where there is no group."""
        if not self.sets:
            return ""
        named: dict[str, list[str]] = {"better": [], "ahead": [], "open": [], "worse": []}
        for each in self.sets:
            named[each.outcome].append(each.what)
        won = "better" if self.complete else "ahead"
        counts = [f"{word} on {len(named[word])}" for word in (won, "open") if named[word]]
        counts[:1] = [f"{count} of {len(self.sets)} sets" for count in counts[:1]]
        counts += [f"worse on {some(named['worse'], shown=len(self.sets))}"] if named["worse"] else []
        return ", ".join(counts)

    @property
    def in_words(self) -> str:
        """What is shown, as what follows "the meta model is": the same words wherever a verdict is said."""
        if self.best is None:
            return "not compared with any baseline"
        outcome = self.outcome
        won = "better than the best baseline" if self.complete else "ahead of the best baseline computed"
        is_ahead = outcome in ("better", "ahead", "mixed")
        said = won if is_ahead else f"{OTHERWISE[outcome]} the best baseline"
        overall = f"{said}{' in the mean' if self.sets else ''}, {self.best}"
        parts = [self.by_set, overall] if outcome == "mixed" else [overall, self.by_set]
        missing = "" if self.complete or not is_ahead else "; stronger ones may be missing"
        return "; ".join(part for part in parts if part) + missing

    @property
    def _against_best(self) -> Literal["better", "open", "worse"]:
        gain = self.gain
        if gain is None or gain.value is None or gain.low is None or gain.p_value is None:
            return "open"
        if self.over_all and self.area.low is not None and self.area.low > CHANCE:
            return "better"
        return "worse" if gain.value < 0 and gain.p_value * self.baselines < SIGNIFICANCE else "open"


def verdicts(
    records: Sequence[Record], *, groups: Mapping[str, Sequence[str]] | None = None, complete: bool = True
) -> list[Verdict]:
    """The verdicts on wrong predictions and on OOD sets, groups of them where there are any.

    Args:
        records: as `evaluate_run` gives them.
        groups: name of a group -> names of its data sets.
        complete: whether the baselines that are often the strongest were computed, at their best; without them
            nothing is called better.

    Returns:
        Those that have an AUROC.
    """
    return list(_verdicts(records, groups or {}, complete))


def baselines(records: Iterable[Record]) -> list[Record]:
    """The AUROCs of baselines among the records of one data set, the highest first."""
    found = [each for each in records if each.metric == "auroc" and plain_name(each.score) in BASELINES]
    return sorted((each for each in found if each.value is not None), key=lambda each: -(each.value or 0.0))


def _verdicts(records: Sequence[Record], groups: Mapping[str, Sequence[str]], complete: bool) -> Iterator[Verdict]:
    areas = [each for each in records if each.metric == "auroc" and each.score == "meta" and each.value is not None]
    for area in (each for each in areas if each.task == "misclassification"):
        yield _verdict("wrong predictions", area, records, complete)
    there = {each.protocol for each in areas if each.task == "ood"}
    protocol = next((name for name in HEADLINE_PROTOCOLS if name in there), None)
    ood = {each.dataset: each for each in areas if each.task == "ood" and each.protocol == protocol}
    means = {name: each for name, each in ood.items() if name.endswith(MEAN)}
    for dataset, area in (means or ood).items():
        group = dataset.removesuffix(MEAN)
        sets = [_verdict(name, ood[name], records, complete) for name in groups.get(group, ()) if name in ood]
        yield _verdict(group, area, records, complete, sets=sets if len(sets) > 1 else ())


def _verdict(
    what: str, area: Record, records: Sequence[Record], complete: bool, *, sets: Sequence[Verdict] = ()
) -> Verdict:
    same = [
        each
        for each in records
        if (each.task, each.dataset, each.protocol) == (area.task, area.dataset, area.protocol)
        and each.value is not None
    ]
    singles = baselines(same)
    best = singles[0].score if singles else None
    meta = {each.metric: each for each in same if each.score == "meta"}
    alarms = meta.get("fpr95_ood_positive")
    return Verdict(
        complete=complete,
        sets=tuple(sets),
        baselines=len(singles),
        by_gradients=meta.get(GAIN + SCORE_LR),
        what=what,
        protocol=area.protocol,
        area=area,
        best=best,
        gain=None if best is None else meta.get(GAIN + best),
        over_all=bool(singles) and all(_is_above(meta.get(GAIN + each.score)) for each in singles),
        false_alarms=None if alarms is None else alarms.value,
    )


def _is_above(gain: Record | None) -> bool:
    return gain is not None and gain.low is not None and gain.low > 0
