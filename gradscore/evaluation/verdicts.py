"""From records to verdicts: what a reader wants to know first.

That is how well wrong predictions and OOD samples are found, and the gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import norm

from ..meta import CHOSEN, MARGIN, META, SOUGHT
from .records import FEW_SAMPLES, GAIN, MEAN, Record, baseline_areas, is_compared, is_group
from .score_tables import SCORE_LR

CHANCE = 0.5
"""The AUROC of a score that knows nothing; what is not shown to be above it is not called better than others."""

USELESS = 0.6
"""An AUROC below this one is of no use: where an interval reaches neither above chance nor below this, too little was
seen to say whether a score finds anything."""

POWER = 0.8
"""The share of reports in which a difference of the size seen is to be shown, where it is said how many samples do."""

SIGNIFICANCE = 0.05
"""The share of comparisons with scores that are no better in which one is called better, at most."""

NOTHING_TO_TELL = (
    "no prediction is wrong (or none is right), and no OOD sample is reported, so there is nothing to tell from the "
    "rest; report more labelled samples (data.in_dist.test), or OOD sets (data.ood)"
)
"""Why there is no verdict where no label is doubted."""

NOTHING_LABELLED = (
    "the samples to report on have no labels, and no OOD sample is reported; give labels (data.in_dist.test, in Python "
    "a Dataset of pairs or a pair of samples and labels), or OOD sets (data.ood, in Python ood=...)"
)
"""The same where no sample has a label."""

COMPARED = (
    "better: the 95 % intervals of the gains over all baselines are above 0, and that of the AUROC above 0.5; "
    "worse: the gain over the best one is below 0, with a p-value below 0.05 over the number of baselines; undecided: "
    "neither; each set is compared with the baseline that is best on it"
)
"""What the words of a verdict stand for."""

Outcome = Literal["better", "provisional", "mixed", "equal", "undecided", "worse"]
"""Of the chosen score against the best baseline: `provisional` is better, but than weaker ones than there could be;
`mixed` is better in the mean over sets, and worse on one or more of them; `equal`: all figures are that baseline's;
`undecided` is neither shown to be better nor worse."""

Gradients = Literal["add", "nothing", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well one kind of samples is found.

    Attributes:
        what: `wrong predictions`, or the OOD set or group of sets.
        protocol: what the meta model was fitted on.
        area: the AUROC of the chosen score.
        best: the baseline with the highest AUROC on these very samples.
        gain: the AUROC gained over that score, None where it cannot be compared.
        over_all: whether the 95 % interval of the gain over every baseline is above 0.
        baselines: how many baselines there are.
        by_gradients: the AUROC that the meta model gains over the best score without gradients.
        gradients: whether gradients add to it: they do where every score without gradients is shown to be behind the
            meta model, nothing where they are shown to add less than 0.01 AUROC over the best one and over the
            regression on all of them, which is not shown to be behind, else it is undecided.
        caught: share of the wrong (or OOD) ones found where 5 % of the others are rejected.
        aurocs: the AUROC of every score.
        shares: what every score catches, as `caught`.
        complete: whether the baselines that are often the strongest were computed, at their best.
        is_best: whether all figures of the chosen score are those of that baseline: it is that, a meta model that kept
            nothing else, or both are perfect, of no fewer than `FEW_SAMPLES`.
        times: how many times as many samples would show whether it is better, see `_times_to_settle`.
        sets: of a group of OOD sets the verdict on each, against the baseline that is best on that set.
    """

    what: str
    protocol: str
    area: Record
    best: str | None
    gain: Record | None
    over_all: bool
    baselines: int
    by_gradients: Record | None
    gradients: Gradients | None
    caught: float | None
    aurocs: Mapping[str, float]
    shares: Mapping[str, float]
    complete: bool
    is_best: bool
    times: float
    sets: tuple[Verdict, ...]

    @property
    def tells(self) -> bool:
        """Whether it is known if the chosen score finds anything: it does or does not, or a baseline finds more."""
        is_behind = self.outcome == "worse" and (self.best_auroc or 0.0) > USELESS
        return self.finds_something or self.finds_nothing or is_behind

    @property
    def finds_something(self) -> bool:
        """Whether the chosen score is shown to be better than chance.

        A perfect order of three and three samples is no proof: it comes by chance once in 20 times.
        """
        count, rare = self.area.n, SIGNIFICANCE / 2
        # There are at least as many orders as samples; of many samples their number takes long to work out.
        is_proof = count * rare >= 1 or math.comb(count, self.area.n_positive) * rare >= 1
        return self.area.low is not None and self.area.low > CHANCE and is_proof

    @property
    def finds_nothing(self) -> bool:
        """Whether the chosen score is shown to be of no use."""
        return self.area.high is not None and self.area.high < USELESS

    @property
    def gained(self) -> float:
        """The AUROC that the chosen score gains over the best baseline; 0 where they cannot be compared."""
        return 0.0 if self.gain is None or self.gain.value is None else self.gain.value

    @property
    def best_caught(self) -> float | None:
        """What the best baseline catches."""
        return None if self.best is None else self.shares.get(self.best)

    @property
    def best_auroc(self) -> float | None:
        """The AUROC of the best baseline on the same samples; None where it cannot be compared."""
        if self.gain is None or self.gain.value is None or self.area.value is None:
            return None
        return self.area.value - self.gain.value

    @property
    def baseline_should_decide(self) -> bool:
        """Whether the best baseline is of use, shown to be better, and by enough to tell it.

        By 0.01 AUROC and by 1 % of what is caught at 5 % rejected, at least.
        """
        if self.outcome != "worse" or (self.best_auroc or 0.0) <= USELESS:
            return False
        return self.gained <= -MARGIN and (self.best_caught or 0.0) >= (self.caught or 0.0) + MARGIN

    @property
    def outcome(self) -> Outcome:
        """Whether the chosen score is shown to be better than the best baseline, or worse.

        `better` needs an interval above 0 over every baseline, not only over the one that came out best here:
        chance may put a weak one first that is nearly a copy of the chosen score, and a small gain over it is easy to
        show. All of them together need no correction (intersection-union), and where one of them is as good, `better`
        comes at most once in 40 sets. The best of many scores on these very samples looks better than it is: of 40
        that are no better than the chosen one, one is called better in a quarter of cases. So `worse` needs a p-value
        below 0.05 over the number of scores (Bonferroni). Nothing is corrected for the number of sets.
        """
        found = self._against_best
        if self.is_best:
            return "equal"
        if found != "better":
            return found
        if any(each.outcome == "worse" for each in self.sets):
            return "mixed"
        return "better" if self.complete else "provisional"

    @property
    def _against_best(self) -> Literal["better", "undecided", "worse"]:
        gain = self.gain
        if gain is None or gain.value is None or gain.low is None or gain.p_value is None:
            return "undecided"
        if self.over_all and self.finds_something:
            return "better"
        return "worse" if gain.value < 0 and gain.p_value * self.baselines < SIGNIFICANCE else "undecided"


def verdicts(
    records: Sequence[Record], *, groups: Mapping[str, Sequence[str]] | None = None, complete: bool = True
) -> list[Verdict]:
    """The verdicts on wrong predictions and on OOD sets, groups of them where there are any.

    Args:
        records: as `evaluate_run` gives them: of OOD sets the first protocol makes the verdict.
        groups: name of a group -> names of its data sets.
        complete: whether the baselines that are often the strongest were computed, at their best; without them
            nothing is called better.

    Returns:
        Those that have an AUROC.
    """
    areas = [each for each in records if each.metric == "auroc" and each.score == CHOSEN and each.value is not None]
    found = [_verdict(SOUGHT[each.task], each, records, complete) for each in areas if each.task == "misclassification"]
    protocol = next((each.protocol for each in areas if each.task == "ood"), None)
    ood = {each.dataset: each for each in areas if each.task == "ood" and each.protocol == protocol}
    means = {name: each for name, each in ood.items() if is_group(name)}
    for dataset, area in (means or ood).items():
        group = dataset.removesuffix(MEAN)
        sets = [_verdict(name, ood[name], records, complete) for name in (groups or {}).get(group, ()) if name in ood]
        found.append(_verdict(group, area, records, complete, sets=sets))
    return found


def groups_by_set(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The group that each OOD set is in, but for `all`; sets in none are left out."""
    return {name: group for group, names in groups.items() if group != "all" for name in names}


def with_single_sets(found: Sequence[Verdict], groups: Mapping[str, Sequence[str]]) -> list[Verdict]:
    """Verdicts, and those on OOD sets that are in no group but `all`: what is advised on, one by one."""
    grouped = groups_by_set(groups)
    return [*found, *(one for each in found for one in each.sets if one.area.dataset not in grouped)]


def _verdict(
    what: str, area: Record, records: Sequence[Record], complete: bool, *, sets: Sequence[Verdict] = ()
) -> Verdict:
    same = [
        each
        for each in records
        if (each.task, each.dataset, each.protocol) == (area.task, area.dataset, area.protocol)
        and each.value is not None
    ]
    areas = baseline_areas(same)
    best = areas[0].score if areas else None
    chosen, meta = ({each.metric: each for each in same if each.score == name} for name in (CHOSEN, META))
    figures = {each.metric: each.value for each in same if each.score == best and not each.metric.startswith(GAIN)}
    missed = chosen.get("fpr95_id_positive")
    without = [each for each in same if each.metric == "auroc" and is_compared(each.score)]
    gain = None if best is None else chosen.get(GAIN + best)
    gains = [meta.get(GAIN + each.score) for each in sorted(without, key=lambda each: -(each.value or 0.0))]
    return Verdict(
        complete=complete,
        is_best=best is not None
        and all(chosen[name].value == value for name, value in figures.items() if name in chosen)
        and (min(area.n_positive, area.n - area.n_positive) >= FEW_SAMPLES or _is_nothing(gain)),
        sets=tuple(sets),
        baselines=len(areas),
        by_gradients=gains[0] if gains else None,
        gradients=_added(gains, meta.get(GAIN + SCORE_LR)),
        what=what,
        protocol=area.protocol,
        area=area,
        best=best,
        gain=gain,
        over_all=bool(areas) and all(_is_above(chosen.get(GAIN + each.score)) for each in areas),
        times=_times_to_settle([chosen.get(GAIN + each.score) for each in areas]),
        caught=None if missed is None or missed.value is None else 1 - missed.value,
        aurocs={each.score: each.value or 0.0 for each in same if each.metric == "auroc"},
        shares={each.score: 1 - (each.value or 0.0) for each in same if each.metric == "fpr95_id_positive"},
    )


def _times_to_settle(gains: Sequence[Record | None]) -> float:
    """Factor of the sample size that gives 80 % power to show which is better, if the true gains are those observed.

    To be better all intervals have to be above 0, to be worse the first gain below it, after Bonferroni's correction.

    Args:
        gains: over every baseline, the one with the highest AUROC first.
    """
    if not gains:
        return math.inf
    lost = gains[0] is not None and (gains[0].value or 0.0) < 0
    level = SIGNIFICANCE / (len(gains) if lost else 1)
    needed = float(norm.isf(level / 2) + norm.ppf(POWER))
    times = []
    for gain in gains[:1] if lost else gains:
        if gain is None or gain.low is None or gain.high is None or not gain.value or (gain.value < 0) != lost:
            return math.inf
        half = gain.high - gain.value if lost else gain.value - gain.low
        times.append((needed * half / float(norm.ppf(0.975)) / gain.value) ** 2)
    return max(1.0, *times)


def _added(gains: Sequence[Record | None], over_regression: Record | None) -> Gradients | None:
    """Whether gradients add, by what the meta model gains over scores without them, the best one first.

    Of many baselines the best on some samples looks better than it is, so the regression on all of them has to show the
    same before it is said that gradients add nothing.
    """
    if not gains or gains[0] is None or gains[0].high is None:
        return None
    if all(map(_is_above, gains)):
        return "add"
    shown = (gains[0], *([] if over_regression is None else [over_regression]))
    adds_little = all(each.high is not None and each.high < MARGIN for each in shown)
    return "nothing" if adds_little and not _is_above(over_regression) else "undecided"


def _is_nothing(gain: Record | None) -> bool:
    """Whether two scores rank all samples alike; a perfect order of few may be chance."""
    return gain is not None and gain.low == gain.high == 0.0


def _is_above(gain: Record | None) -> bool:
    return gain is not None and gain.low is not None and gain.low > 0
