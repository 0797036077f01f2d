"""From the scores of samples to the records of `metrics.json`: of data sets, and of groups of OOD sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from ..baselines import BASELINES, plain_name
from ..system import BoolArray, FloatArray, sha256
from .delong import DifferenceTest, Placements, mean_auroc_interval, paired_mean_delong, placements
from .duplicates import count_distinct
from .intervals import Bounds, area_bounds, brier_interval, rate_bounds, wilson
from .metrics import METRICS, SELECTIVE, brier, expected_calibration_error, one_class_reason
from .score_tables import LOGIT_LR, SCORE_LR, Block

FEW_SAMPLES = 20
"""Fewer samples than this of either class are said to be few.

Of normal scores that make an AUROC of 0.86, 95 % intervals are 0.16 wide with 20 positives and hold the true value in
91 of 100 cases; with 5 they are 0.29 wide and hold it in 82.
"""

GAIN = "auroc_gain_over_"
"""Start of the names of the metrics that compare `meta` with another score; the other score's name follows."""

CLASSIFIER = "classifier"
"""Name in the place of a score for what is true of the classifier itself."""

MEAN = " (mean)"
"""End of the name of the data set that is the mean over a group of OOD sets, every one of the same weight."""

POOLED = " (pooled)"
"""The same for the pooled sets: every sample of the same weight."""

_WRONG = ("misclassified sample", "correctly classified sample")
_KINDS = {"misclassification": _WRONG, "ood": ("OOD sample", "in-distribution sample"), "shifted": _WRONG}


@dataclass(frozen=True, kw_only=True)
class Record:
    """A figure of a score on a data set: an entry of `metrics.json`, with its fields in their order.

    Attributes:
        task: `misclassification`, `ood` or `shifted`; `control` for the number of near-duplicates.
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
        return {
            name: value for name, value in asdict(self).items() if name != "p_value" or self.metric.startswith(GAIN)
        }


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


def score_records(blocks: Iterable[Block]) -> Iterator[Record]:
    """Records of each data set: figures of merit of each score, and the gains of `meta` over the others.

    Intervals (`low`, `high`, 95 %) are DeLong's for AUROC and its gains, from influence functions for other areas, from
    Wilson's and order statistics for FPR95, a normal one for the Brier score, and None where none would cover; values
    are None with one class only. Covariate-shifted sets also have an accuracy, of the score `classifier`, with Wilson's
    interval.

    Args:
        blocks: the data sets; of each, `meta` and one other score are held at a time.

    Yields:
        The records, score by score.
    """
    known: dict[tuple[str, str], list[Estimate]] = {}  # baselines score alike under several protocols
    for block in blocks:
        positive, data = block.positive, _of_data(block)
        meta = placements(block.score("meta"), positive)
        gains = []
        for name in block.names:
            values = block.score(name)
            placed = meta if name == "meta" else placements(values, positive)
            key = (block.task, sha256(values.tobytes() + positive.tobytes()))
            if key not in known:
                known[key] = list(_estimates(values, positive, placed, ood=block.task == "ood"))
            for estimate in [*known[key], *(_calibration(block) if name == "meta" else ())]:
                yield estimate.record(data, name)
            if _is_compared(name):
                compared = None if meta is None or placed is None else paired_mean_delong([meta], [placed], [1])
                gains.append(_gain(name, compared))
        if block.task == "shifted":
            right = int((~positive).sum())
            accuracy = Estimate("accuracy", float((~positive).mean()), wilson(right, len(positive)))
            yield accuracy.record(data, CLASSIFIER)
        yield from (gain.record(data, "meta") for gain in gains)


def group_records(
    blocks: Sequence[Block], groups: Mapping[str, Sequence[str]], records: Iterable[Record]
) -> Iterator[Record]:
    """Records of groups of OOD sets.

    Pooled AUROCs compare each OOD sample with the in-distribution samples as the model of its set scores them. Means of
    other figures than AUROC come without an interval.

    Args:
        blocks: the data sets; `meta` and one other score of those of a protocol are held at a time.
        groups: name of a group -> names of its data sets; a protocol that lacks one of them is left out.
        records: those of the data sets, as of `score_records`.

    Yields:
        Records as of `score_records`, with the data set `<group> (mean)` or `<group> (pooled)`.
    """
    ood = [block for block in blocks if block.task == "ood"]
    of_ood = (each for each in records if each.task == "ood")
    values = {(each.protocol, each.dataset, each.score, each.metric): each.value for each in of_ood}
    for protocol in dict.fromkeys(block.protocol for block in ood):
        sets = {each.dataset: each for each in ood if each.protocol == protocol and _count_of_fewer(each) >= 2}
        there = {group: names for group, names in groups.items() if all(name in sets for name in names)}
        sizes = {name: int(block.positive.sum()) for name, block in sets.items()}
        figures: dict[str, list[Record]] = {group + kind: [] for group in there for kind in (MEAN, POOLED)}
        gains: dict[str, list[Record]] = {dataset: [] for dataset in figures}
        meta = {name: _placed(block, "meta") for name, block in sets.items()}
        for score in dict.fromkeys(score for block in sets.values() for score in block.names):
            placed = meta if score == "meta" else {
                name: _placed(block, score) for name, block in sets.items() if score in block.names
            }  # fmt: skip
            for group, names in there.items():
                if not all(name in placed for name in names):
                    continue
                of_sets, of_meta = [placed[name] for name in names], [meta[name] for name in names]
                positives = sum(sizes[name] for name in names)
                first = _of_data(sets[names[0]])
                n = positives + first.n - first.n_positive
                for kind, weights in ((MEAN, [1] * len(names)), (POOLED, [sizes[name] for name in names])):
                    data = replace(first, dataset=group + kind, n=n, n_positive=positives)
                    area = float(np.average([each.of_positives.mean() for each in of_sets], weights=weights))
                    interval = mean_auroc_interval(of_sets, weights)
                    figures[group + kind].append(
                        Estimate("auroc", area, (interval.low, interval.high)).record(data, score)
                    )
                    if kind == MEAN:
                        for metric in METRICS:
                            if metric != "auroc":
                                found = [values[protocol, name, score, metric] for name in names]
                                mean = float(np.mean(np.array(found, dtype=float)))
                                figures[group + kind].append(Estimate(metric, mean).record(data, score))
                    if _is_compared(score):
                        gain = _gain(score, paired_mean_delong(of_meta, of_sets, weights))
                        gains[group + kind].append(gain.record(data, "meta"))
        for dataset, found_records in figures.items():
            yield from found_records
            yield from gains[dataset]


def remarks(blocks: Iterable[Block], records: Sequence[Record]) -> list[str]:
    """What a reader should know of the data sets: one class only, few samples, scores that point the wrong way."""
    lines = []
    for block in blocks:
        task, protocol, dataset, positive = block.task, block.protocol, block.dataset, block.positive
        where = f"{task}, {protocol}, {dataset}"
        reason = one_class_reason(positive, positive_name=_KINDS[task][0], negative_name=_KINDS[task][1])
        if reason is not None:
            lines.append(f"{where}: {reason}; the values are null")
            continue
        lines += [f"{where}: {few}" for few in _few(block)]
        inverted = [
            f"{record.score} ({record.value:.3f})"
            for record in records
            if (record.task, record.protocol, record.dataset, record.metric) == (task, protocol, dataset, "auroc")
            and record.value is not None
            and record.value < 0.5
        ]
        if inverted:
            lines.append(f"{where}: direction inverted for {', '.join(inverted)}")
    if any("direction inverted" in line for line in lines):
        lines.append(
            "direction inverted: an AUROC below 0.5 means that the score ranks what it should find below the rest"
        )
    return lines


def is_group(dataset: str) -> bool:
    """Whether a data set of a record is a group of OOD sets."""
    return dataset.endswith((MEAN, POOLED))


def _of_data(block: Block) -> Record:
    """What all records of a data set have in common."""
    return Record(
        task=block.task,
        dataset=block.dataset,
        protocol=block.protocol,
        score="",
        metric="",
        value=None,
        n=len(block.positive),
        n_positive=int(block.positive.sum()),
    )


def _is_compared(name: str) -> bool:
    """Whether `meta` is compared with a score: what logits and penultimate features give without gradients."""
    return name in (LOGIT_LR, SCORE_LR) or plain_name(name) in BASELINES


def _gain(other: str, test: DifferenceTest | None) -> Estimate:
    """The AUROC that `meta` gains over another score."""
    if test is None:
        return Estimate(GAIN + other, None)
    return Estimate(GAIN + other, test.difference, (test.low, test.high), test.p_value)


def _estimates(values: FloatArray, positive: BoolArray, placed: Placements | None, *, ood: bool) -> Iterator[Estimate]:
    # How many OOD samples there are was chosen; how many predictions are wrong is as uncertain as anything.
    functions = METRICS if ood else {**METRICS, **SELECTIVE}
    areas = ["aupr_in", "aupr_out", *([] if ood else SELECTIVE)]
    found = rate_bounds(values, positive) | area_bounds(values, positive, names=areas, fixed_sizes=ood)
    if placed is not None:
        interval = mean_auroc_interval([placed], [1])
        found["auroc"] = (interval.low, interval.high)
    for metric, function in functions.items():
        yield Estimate(metric, function(values, positive), found.get(metric))


def _calibration(block: Block) -> Iterator[Estimate]:
    """Brier score and calibration error, for misclassification: the prevalence of OOD samples here is arbitrary."""
    if block.task == "ood":
        return
    p, positive = block.score("probability"), block.positive
    both = bool(positive.any() and not positive.all())
    yield Estimate("brier", brier(p, positive) if both else None, brier_interval(p, positive) if both else None)
    yield Estimate("ece", expected_calibration_error(p, positive) if both else None)


def _few(block: Block) -> list[str]:
    """Says of which kind there are few samples; copies count once, since they tell nothing new."""
    content, kinds, whole = block.content(), _KINDS[block.task], len(block.positive)
    lines = []
    for kind, mask in zip(kinds, (block.positive, ~block.positive), strict=True):
        count, distinct = int(mask.sum()), count_distinct(content[mask])
        if distinct < FEW_SAMPLES:
            different, copies = ("different ", f" ({count} with copies)") if distinct < count else ("", "")
            found = f"only {distinct} {different}{kind}{'' if distinct == 1 else 's'} among {whole}{copies}"
            lines.append(f"{found}: take its figures as a hint")
    return lines


def _count_of_fewer(block: Block) -> int:
    positives = int(block.positive.sum())
    return min(positives, len(block.positive) - positives)


def _placed(block: Block, score: str) -> Placements:
    found = placements(block.score(score), block.positive)
    assert found is not None, "both classes are there"
    return found
