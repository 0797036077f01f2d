"""From the scores of samples to the records of `metrics.json`, of data sets and groups of OOD sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from ..baselines import BASELINES, plain_name
from ..data import FIT
from ..meta import CHOSEN, META, Placements
from ..system import BoolArray, FloatArray, sha256, some
from .duplicates import count_distinct
from .intervals import (
    Bounds,
    DifferenceTest,
    brier_interval,
    mean_auroc_interval,
    metric_bounds,
    paired_mean_delong,
    placements,
    wilson,
)
from .metrics import METRICS, aurc, brier, double_scoring, expected_calibration_error, rarer_of
from .near_duplicates import NearDuplicates
from .score_tables import SCORE_LR, JointlyScoredSet, ScoredSet

FEW_SAMPLES = 20
"""Fewer samples than this of either class are few.

Of normal scores that make an AUROC of 0.86, 95 % intervals are 0.16 wide with 20 positives and hold the true value in
91 of 100 cases; with 5 they are 0.29 wide and hold it in 82.
"""

NAMED = 3
"""Scores that rank samples the wrong way, in a remark: the worst."""

GAIN = "auroc_gain_over_"
"""Start of the names of the metrics that compare `chosen` or `meta` with another score, whose name follows."""

CLASSIFIER = "classifier"
"""Name in the place of a score for what is true of the classifier itself."""

JOINT = "joint"
"""The task of rejecting what is wrong or OOD."""

MEAN = " (mean)"
"""End of the name of the data set that is the mean over a group of OOD sets, every one of the same weight."""

_WRONG = ("misclassified sample", "correctly classified sample")
_KINDS = {"misclassification": _WRONG, "ood": ("OOD sample", "in-distribution sample"), "shifted": _WRONG}


@dataclass(frozen=True, kw_only=True)
class Record:
    """A figure of a score on a data set: an entry of `metrics.json`, with its fields in their order.

    Attributes:
        task: `misclassification`, `ood`, `shifted` or `joint`; `control` for the number of near-duplicates.
        dataset: the data set or group of data sets.
        protocol: what the meta model was fitted on.
        score: whose figure it is.
        metric: what figure; `GAIN` and another score for the AUROC gained over that score.
        value: the figure; None where it needs samples of both classes and there are of one only.
        low: lower bound of the 95 % interval; None where none can be estimated.
        high: upper bound.
        p_value: of a gain, two-sided, for a true gain of zero; None for other figures.
        n: samples.
        n_positive: wrong or OOD ones among them; of the control, near-duplicates.
    """

    task: str
    dataset: str
    protocol: str
    score: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    n: int
    n_positive: int

    def entry(self) -> dict[str, str | float | None]:
        """The record as `metrics.json` and `metrics.csv` hold it; only gains have a `p_value`."""
        return {name: value for name, value in vars(self).items() if name != "p_value" or self.metric.startswith(GAIN)}


class Estimate(NamedTuple):
    """The value of a metric, its 95 % interval, and the p-value of a gain."""

    metric: str
    value: float | None
    bounds: Bounds | None = None
    p_value: float | None = None

    def record(self, data: Record, score: str) -> Record:
        """The record of a score; `data` is any other one of the same data set."""
        low, high = self.bounds or (None, None)
        return replace(
            data, score=score, metric=self.metric, value=self.value, low=low, high=high, p_value=self.p_value
        )


def score_records(scored_sets: Iterable[ScoredSet]) -> Iterator[Record]:
    """Records of each data set: figures of merit of each score, and the gains of `chosen` and `meta` over others.

    Intervals (`low`, `high`, 95 %) are DeLong's for AUROC and its gains, from influence functions for other areas, from
    Wilson's and order statistics for FPR95, a normal one for the Brier score, and None where none would cover; values
    are None with one class only. Covariate-shifted sets also have an accuracy, of the score `classifier`, with Wilson's
    interval.

    Args:
        scored_sets: the data sets; of each, `chosen`, `meta` and one other score are held at a time.

    Yields:
        The records, score by score.
    """
    known: dict[tuple[str, str], list[Estimate]] = {}  # baselines score alike under several protocols
    for scored in scored_sets:
        positive, data = scored.positive, _of_data(scored)
        ours = {name: placements(scored.score(name), positive) for name in (CHOSEN, META) if name in scored.names}
        gains: dict[str, list[Estimate]] = {name: [] for name in ours}
        for name in scored.names:
            values = scored.score(name)
            placed = ours[name] if name in ours else placements(values, positive)
            key = (scored.task, sha256(values.tobytes() + positive.tobytes()))
            if key not in known:
                known[key] = list(_estimates(values, positive, placed, ood=scored.task == "ood"))
            for estimate in [*known[key], *(_calibration(scored) if name == CHOSEN else ())]:
                yield estimate.record(data, name)
            if is_compared(name):
                for our, by in ours.items():
                    test = None if by is None or placed is None else paired_mean_delong([by], [placed])
                    alike = test is not None and not test.difference and rank_alike(values, scored.score(our))
                    gains[our].append(_gain(name, test, alike=alike))
        if scored.task == "shifted":
            right = int((~positive).sum())
            accuracy = Estimate("accuracy", float((~positive).mean()), wilson(right, len(positive)))
            yield accuracy.record(data, CLASSIFIER)
        yield from (gain.record(data, name) for name in ours for gain in gains[name])


def group_records(
    scored_sets: Sequence[ScoredSet], groups: Mapping[str, Sequence[str]], records: Iterable[Record]
) -> Iterator[Record]:
    """Records of groups of OOD sets.

    Every set has the same weight. Means of other figures than AUROC come without an interval.

    Args:
        scored_sets: the data sets; `chosen`, `meta` and one other score of those of a protocol are held at a time.
        groups: name of a group -> names of its data sets; a protocol that lacks one of them is left out.
        records: those of the data sets, as of `score_records`.

    Yields:
        Records as of `score_records`, with the data set `<group> (mean)`.
    """
    ood = [scored for scored in scored_sets if scored.task == "ood"]
    of_ood = {(each.protocol, each.dataset, each.score, each.metric): each for each in records if each.task == "ood"}
    for protocol in dict.fromkeys(scored.protocol for scored in ood):
        sets = {each.dataset: each for each in ood if each.protocol == protocol and _count_of_fewer(each) >= 2}
        there = {group: names for group, names in groups.items() if all(name in sets for name in names)}
        figures: dict[str, list[Record]] = {group: [] for group in there}
        gains: dict[str, list[Record]] = {group: [] for group in there}
        ours = {
            our: {name: _placed(scored, our) for name, scored in sets.items()}
            for our in (CHOSEN, META)
            if all(our in scored.names for scored in sets.values())
        }
        for score in dict.fromkeys(score for scored in sets.values() for score in scored.names):
            placed = ours.get(score) or {
                name: _placed(scored, score) for name, scored in sets.items() if score in scored.names
            }
            for group, names in there.items():
                if not all(name in placed for name in names):
                    continue
                of_sets = [placed[name] for name in names]
                positives = sum(len(each.of_positives) for each in of_sets)
                first = _of_data(sets[names[0]])
                n = positives + first.n - first.n_positive
                data = replace(first, dataset=group + MEAN, n=n, n_positive=positives)
                area = mean_auroc_interval(of_sets)
                figures[group].append(Estimate("auroc", area.value, (area.low, area.high)).record(data, score))
                for metric in METRICS:
                    if metric != "auroc":
                        found = [of_ood[protocol, name, score, metric].value for name in names]
                        mean = float(np.mean(np.array(found, dtype=float)))
                        figures[group].append(Estimate(metric, mean).record(data, score))
                if is_compared(score):
                    for our, of_ours in ours.items():
                        compared = paired_mean_delong([of_ours[name] for name in names], of_sets)
                        of_each = [of_ood[protocol, name, our, GAIN + score] for name in names]
                        alike = all(each.low == each.high == 0 for each in of_each)
                        gains[group].append(_gain(score, compared, alike=alike).record(data, our))
        for group in there:
            yield from figures[group]
            yield from gains[group]


def joint_records(scored_sets: Iterable[JointlyScoredSet]) -> Iterator[Record]:
    """Records of rejecting what is wrong or OOD: task `joint`, whose positives are both kinds.

    Args:
        scored_sets: the OOD sets, each with `in_dist.test`.

    Yields:
        Of each set `aurc` of the order by which a bundle rejects, `ds_aurc` and `ds_f1`.
    """
    for scored in scored_sets:
        data = Record(
            task=JOINT,
            dataset=scored.dataset,
            protocol=scored.protocol,
            score=CHOSEN,
            metric="",
            value=None,
            n=len(scored.good),
            n_positive=int((~scored.good).sum()),
        )
        order = rarer_of(scored.wrong_score, scored.ood_score, scored.good)
        yield Estimate("aurc", aurc(order, ~scored.good)).record(data, CHOSEN)
        double = double_scoring(scored.wrong_score, scored.ood_score, scored.good, scored.in_dist)
        yield Estimate("ds_aurc", None if double is None else double.aurc).record(data, CHOSEN)
        yield Estimate("ds_f1", None if double is None else double.f1).record(data, CHOSEN)


def near_duplicate_records(near: NearDuplicates) -> list[Record]:
    """The numbers of images nearly in `in_dist.fit` as records: task `control`, score `near_duplicates`."""
    return [
        Record(
            task="control",
            dataset=split,
            protocol="all",
            score="near_duplicates",
            metric="count",
            value=float(count),
            n=number,
            n_positive=count,
        )
        for (known, split), number in near.searched.items()
        if known == FIT
        for count in [len({pair.content_hash for pair in near.in_fit if pair.split == split})]
    ]


def remarks(scored_sets: Iterable[ScoredSet], records: Sequence[Record]) -> list[str]:
    """What a reader should know of the data sets: one class only, few samples, scores that point the wrong way."""
    lines = []
    for scored in scored_sets:
        task, protocol, dataset, positive = scored.task, scored.protocol, scored.dataset, scored.positive
        missing = [kind for kind, rows in zip(_KINDS[task], (positive, ~positive), strict=True) if not rows.any()]
        if missing:
            lines.append(
                f"{task}, {dataset}: no {' and no '.join(missing)} among {len(positive)} samples; both kinds are "
                "needed; the values are null"
            )
            continue
        lines += [f"{task}, {dataset}: {few}" for few in _few(scored)]
        inverted = {
            record.score: record.value
            for record in records
            if (record.task, record.protocol, record.dataset, record.metric) == (task, protocol, dataset, "auroc")
            and record.value is not None
            and record.value < 0.5
        }
        # Baselines are the same under every protocol.
        of_baselines = {score: value for score, value in inverted.items() if plain_name(score) in BASELINES}
        of_models = {score: value for score, value in inverted.items() if score not in of_baselines}
        for where, found in ((f"{task}, {dataset}", of_baselines), (f"{task}, {protocol}, {dataset}", of_models)):
            worst = [f"{score} ({found[score]:.3f})" for score in sorted(found, key=found.__getitem__)]
            lines += [f"{where}: ranked below the rest (AUROC below 0.5) by {some(worst, NAMED)}"] if worst else []
    return list(dict.fromkeys(lines))


def is_group(dataset: str) -> bool:
    """Whether a data set of a record is the mean over a group of OOD sets."""
    return dataset.endswith(MEAN)


def _of_data(scored: ScoredSet) -> Record:
    """What all records of a data set have in common."""
    return Record(
        task=scored.task,
        dataset=scored.dataset,
        protocol=scored.protocol,
        score="",
        metric="",
        value=None,
        n=len(scored.positive),
        n_positive=int(scored.positive.sum()),
    )


def is_compared(name: str) -> bool:
    """Whether `chosen` and `meta` are compared with a score: what logits and penultimate features give alone."""
    return name == SCORE_LR or plain_name(name) in BASELINES


def rank_alike(first: FloatArray, second: FloatArray) -> bool:
    """Whether two scores have one ranking, as a baseline has with a meta model that kept nothing else.

    Few samples may be ranked alike by chance.
    """
    return len(first) >= FEW_SAMPLES and np.array_equal(rankdata(first), rankdata(second))


def _gain(other: str, test: DifferenceTest | None, *, alike: bool) -> Estimate:
    """The AUROC that `chosen` or `meta` gains over another score: of one ranking none, and certainly so."""
    if test is None:
        return Estimate(GAIN + other, None)
    return Estimate(GAIN + other, test.difference, (0.0, 0.0) if alike else (test.low, test.high), test.p_value)


def _estimates(values: FloatArray, positive: BoolArray, placed: Placements | None, *, ood: bool) -> Iterator[Estimate]:
    # How many OOD samples there are was chosen; how many predictions are wrong is as uncertain as anything.
    functions = METRICS if ood else {**METRICS, "aurc": aurc}
    areas = ["aupr_in", "aupr_out", *([] if ood else ["aurc"])]
    found = metric_bounds(values, positive, areas=areas, fixed_sizes=ood)
    if placed is not None:
        interval = mean_auroc_interval([placed])
        found["auroc"] = (interval.low, interval.high)
    for metric, function in functions.items():
        yield Estimate(metric, function(values, positive), found.get(metric))


def _calibration(scored: ScoredSet) -> Iterator[Estimate]:
    """Brier score and calibration error, for misclassification: the prevalence of OOD samples here is arbitrary."""
    if scored.task == "ood":
        return
    p, positive = scored.score("probability"), scored.positive
    both = bool(positive.any() and not positive.all())
    yield Estimate("brier", brier(p, positive) if both else None, brier_interval(p, positive) if both else None)
    yield Estimate("ece", expected_calibration_error(p, positive) if both else None)


def _few(scored: ScoredSet) -> list[str]:
    """Says of which kind there are few samples; copies count once, since they tell nothing new."""
    content, kinds, whole = scored.content(), _KINDS[scored.task], len(scored.positive)
    lines = []
    for kind, mask in zip(kinds, (scored.positive, ~scored.positive), strict=True):
        count, distinct = int(mask.sum()), count_distinct(content[mask])
        if distinct < FEW_SAMPLES:
            different, copies = ("different ", f" ({count} with copies)") if distinct < count else ("", "")
            found = f"only {distinct} {different}{kind}{'' if distinct == 1 else 's'} among {whole}{copies}"
            lines.append(f"{found}: take its figures as a hint")
    return lines


def _count_of_fewer(scored: ScoredSet) -> int:
    positives = int(scored.positive.sum())
    return min(positives, len(scored.positive) - positives)


def _placed(scored: ScoredSet, score: str) -> Placements:
    found = placements(scored.score(score), scored.positive)
    assert found is not None, "both classes are there"
    return found


def baseline_areas(records: Iterable[Record]) -> list[Record]:
    """The AUROCs of baselines among the records of one data set, the highest first."""
    found = [each for each in records if each.metric == "auroc" and plain_name(each.score) in BASELINES]
    return sorted((each for each in found if each.value is not None), key=lambda each: -(each.value or 0.0))


class Records:
    """Looks records up.

    Args:
        records: as `evaluate_run` gives them.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = {(each.task, each.protocol, each.dataset, each.score, each.metric): each for each in records}

    def get(self, task: str, protocol: str, dataset: str, score: str, metric: str = "auroc") -> Record | None:
        """The record, or None where there is none that has a value."""
        record = self._records.get((task, protocol, dataset, score, metric))
        return None if record is None or record.value is None else record

    def protocols(self, task: str) -> list[str]:
        """The protocols of a task, in order, that of the verdict first."""
        return _distinct(key[1] for key in self._records if key[0] == task)

    def datasets(self, task: str, protocol: str) -> list[str]:
        """The data sets of a protocol, without groups of them."""
        return [name for name in self._all_datasets(task, protocol) if not is_group(name)]

    def groups(self, protocol: str) -> list[str]:
        """The names of the groups of OOD sets of a protocol."""
        return [name.removesuffix(MEAN) for name in self._all_datasets("ood", protocol) if is_group(name)]

    def scores(self, task: str, protocol: str) -> list[str]:
        """The scores of a protocol, `chosen` and `meta` first."""
        return _distinct(key[3] for key in self._records if key[:2] == (task, protocol) and key[4] == "auroc")

    def best_baseline(self, task: str, protocol: str, dataset: str) -> str | None:
        """The baseline of the highest AUROC on these very samples, or None without any value."""
        areas = baseline_areas(record for key, record in self._records.items() if key[:3] == (task, protocol, dataset))
        return areas[0].score if areas else None

    def _all_datasets(self, task: str, protocol: str) -> list[str]:
        return _distinct(key[2] for key in self._records if key[:2] == (task, protocol))


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
