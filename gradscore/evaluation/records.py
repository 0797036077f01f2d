"""From the scores of samples to the records of `metrics.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ..scores import SCORES, plain_name
from ..system import BoolArray
from .areas import area_bounds
from .calibration import brier, brier_interval, expected_calibration_error
from .delong import (
    DifferenceTest,
    Interval,
    Placements,
    auroc_interval,
    mean_auroc_interval,
    paired_delong,
    paired_mean_delong,
    placements,
)
from .metrics import METRICS, one_class_reason
from .rates import Bounds, rate_bounds
from .score_table import BLOCK, positive_of, scores_of
from .scoring import LOGIT_LR, SCORE_LR
from .selective import augrc, aurc, eaurc

FEW = 20
"""Fewer samples than this of either class are said to be few.

Of normal scores that make an AUROC of 0.86, 95 % intervals are 0.16 wide with 20 positives and hold the true value in
91 of 100 cases; with 5 they are 0.29 wide and hold it in 82.
"""

GAIN = "auroc_gain_over_"
"""Start of the names of the metrics that compare `meta` with another score; the other score's name follows."""

AREAS = {"aurc": aurc, "eaurc": eaurc, "augrc": augrc}
KINDS = {
    "misclassification": ("misclassified sample", "correctly classified sample"),
    "ood": ("OOD sample", "in-distribution sample"),
    "shifted": ("misclassified sample", "correctly classified sample"),
}
CLASSIFIER = "classifier"
"""Name in the place of a score for what is true of the classifier itself."""


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
    low: float | None
    high: float | None
    p_value: float | None = None
    n: int
    n_positive: int

    def entry(self) -> dict[str, str | float | None]:
        """The record as `metrics.json` and `metrics.csv` hold it; only gains have a `p_value`."""
        return {
            name: value for name, value in asdict(self).items() if name != "p_value" or self.metric.startswith(GAIN)
        }


class _Figure(NamedTuple):
    """A figure of merit, before it is said of what."""

    metric: str
    value: float | None
    bounds: Bounds | None = None
    p_value: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What all records of a data set have in common."""

    task: str
    dataset: str
    protocol: str
    n: int
    n_positive: int

    def record(self, score: str, figure: _Figure) -> Record:
        low, high = figure.bounds or (None, None)
        return Record(
            task=self.task,
            dataset=self.dataset,
            protocol=self.protocol,
            score=score,
            metric=figure.metric,
            value=figure.value,
            low=low,
            high=high,
            p_value=figure.p_value,
            n=self.n,
            n_positive=self.n_positive,
        )


def score_records(table: pd.DataFrame) -> Iterator[Record]:
    """Records of each data set: figures of merit of each score, and the gains of `meta` over the others.

    Intervals (`low`, `high`, 95 %) are DeLong's for AUROC and its gains, from influence functions for other areas, from
    Wilson's and order statistics for FPR95, a normal one for the Brier score, and None where none would cover; values
    are None with one class only. Covariate-shifted sets also have an accuracy, of the score `classifier`, with Wilson's
    interval.

    Args:
        table: as `read_scores` gives it.

    Yields:
        The records, score by score.
    """
    known: dict[tuple[str, bytes, bytes], list[_Figure]] = {}  # baselines score alike under several protocols
    for _, block in table.groupby(BLOCK, sort=False):
        positive = positive_of(block)
        subject = _subject_of(block)
        for name in scores_of(block):
            key = (subject.task, block[name].to_numpy().tobytes(), positive.tobytes())
            if key not in known:
                known[key] = list(_figures(block, name, positive))
            for figure in [*known[key], *(_calibration(block, positive) if name == "meta" else ())]:
                yield subject.record(name, figure)
        if subject.task == "shifted":
            yield subject.record(CLASSIFIER, _accuracy(positive))
        for other in rivals(block):
            yield subject.record("meta", _gain(other, paired_delong(block["meta"], block[other], positive)))


def group_records(table: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> Iterator[Record]:
    """Records of groups of OOD sets: the mean over sets (every set the same weight), and pooled (every sample).

    Pooled AUROCs compare each OOD sample with the in-distribution samples as the model of its set scores them. Means of
    other figures than AUROC come without an interval.

    Args:
        table: as `read_scores` gives it.
        groups: name of a group -> names of its data sets; a protocol that lacks one of them is left out.

    Yields:
        Records as of `score_records`, with the data set `<group> (mean)` or `<group> (pooled)`.
    """
    for _, of_protocol in table[table["task"] == "ood"].groupby("protocol", sort=False):
        blocks = {str(name): block for name, block in of_protocol.groupby("dataset", sort=False)}
        sets = {name: _placed(block) for name, block in blocks.items()}
        for group, names in groups.items():
            if all(sets.get(name) for name in names):
                yield from _group(group, [blocks[name] for name in names], [sets[name] for name in names])


def rivals(block: pd.DataFrame) -> list[str]:
    """The scores `meta` is compared with: what logits and penultimate features give without gradients."""
    return [name for name in scores_of(block) if name in (LOGIT_LR, SCORE_LR) or plain_name(name) in SCORES]


def remarks(table: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """What a reader should know of the data sets: one class only, few samples, scores that point the wrong way."""
    lines = []
    for _, block in table.groupby(BLOCK, sort=False):
        task, protocol, dataset = _block_key(block)
        where = f"{task}, {protocol}, {dataset}"
        positive = positive_of(block)
        reason = one_class_reason(positive, positive_name=KINDS[task][0], negative_name=KINDS[task][1])
        if reason is not None:
            lines.append(f"{where}: {reason}; the values are null")
            continue
        lines += [f"{where}: {few}" for few in _few(positive, KINDS[task])]
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
    return dataset.endswith((" (mean)", " (pooled)"))


def _figures(block: pd.DataFrame, name: str, positive: BoolArray) -> Iterator[_Figure]:
    values = block[name].to_numpy(dtype=np.float64)
    ood = block["task"].iloc[0] == "ood"
    functions = METRICS if ood else {**METRICS, **AREAS}
    # How many OOD samples there are was chosen; how many predictions are wrong is as uncertain as anything.
    areas = ["aupr_in", "aupr_out", *([] if ood else AREAS)]
    bounds = rate_bounds(values, positive) | area_bounds(values, positive, names=areas, fixed_sizes=ood)
    for metric, function in functions.items():
        span = _bounds(auroc_interval(values, positive)) if metric == "auroc" else bounds.get(metric)
        yield _Figure(metric, function(values, positive), span)


def _calibration(block: pd.DataFrame, positive: BoolArray) -> Iterator[_Figure]:
    """Brier score and calibration error, for misclassification: the prevalence of OOD samples here is arbitrary."""
    if block["task"].iloc[0] == "ood":
        return
    p = block["probability"].to_numpy(dtype=np.float64)
    both = bool(positive.any() and not positive.all())
    yield _Figure("brier", brier(p, positive) if both else None, brier_interval(p, positive) if both else None)
    yield _Figure("ece", expected_calibration_error(p, positive) if both else None)


def _accuracy(wrong: BoolArray) -> _Figure:
    """Share of right predictions, with Wilson's interval."""
    interval = binomtest(int((~wrong).sum()), len(wrong)).proportion_ci(method="wilson")
    return _Figure("accuracy", float((~wrong).mean()), (float(interval.low), float(interval.high)))


def _gain(other: str, test: DifferenceTest | None) -> _Figure:
    if test is None:
        return _Figure(GAIN + other, None)
    return _Figure(GAIN + other, test.difference, (test.low, test.high), test.p_value)


def _placed(block: pd.DataFrame) -> dict[str, Placements]:
    """The placements of each score of a data set; none with too few samples of either class."""
    found = {name: placements(block[name], positive_of(block)) for name in scores_of(block)}
    return {name: placed for name, placed in found.items() if placed is not None}


def _group(group: str, blocks: Sequence[pd.DataFrame], sets: Sequence[Mapping[str, Placements]]) -> Iterator[Record]:
    truths = [positive_of(block) for block in blocks]
    sizes = [int(truth.sum()) for truth in truths]
    names = [name for name in sets[0] if all(name in each for each in sets)]
    for kind, weights in {"mean": [1] * len(sizes), "pooled": sizes}.items():
        subject = replace(
            _subject_of(blocks[0]),
            dataset=f"{group} ({kind})",
            n=sum(sizes) + int((~truths[0]).sum()),
            n_positive=sum(sizes),
        )
        for name in names:
            placed = [each[name] for each in sets]
            value = float(np.average([each.of_positives.mean() for each in placed], weights=weights))
            yield subject.record(name, _Figure("auroc", value, _bounds(mean_auroc_interval(placed, weights))))
            for metric in METRICS if kind == "mean" else ():
                if metric != "auroc":
                    figures = [METRICS[metric](block[name], truth) for block, truth in zip(blocks, truths, strict=True)]
                    yield subject.record(name, _Figure(metric, float(np.mean(np.array(figures, dtype=float)))))
        for other in rivals(blocks[0]):
            if other in names:
                gain = paired_mean_delong([each["meta"] for each in sets], [each[other] for each in sets], weights)
                yield subject.record("meta", _gain(other, gain))


def _few(positive: BoolArray, kinds: tuple[str, str]) -> list[str]:
    found = {kinds[0]: int(positive.sum()), kinds[1]: int((~positive).sum())}
    return [
        f"only {count} {kind}{'' if count == 1 else 's'} among {len(positive)}: take its figures as a hint"
        for kind, count in found.items()
        if count < FEW
    ]


def _subject_of(block: pd.DataFrame) -> _Subject:
    task, protocol, dataset = _block_key(block)
    positive = positive_of(block)
    return _Subject(task=task, dataset=dataset, protocol=protocol, n=len(positive), n_positive=int(positive.sum()))


def _block_key(block: pd.DataFrame) -> tuple[str, str, str]:
    task, protocol, dataset = (str(block[name].iloc[0]) for name in BLOCK)
    return task, protocol, dataset


def _bounds(interval: Interval | None) -> Bounds | None:
    return None if interval is None else (interval.low, interval.high)
