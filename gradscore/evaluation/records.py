"""From the scores of samples to the records of `metrics.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

from scipy.stats import binomtest

from ..baselines import BASELINES, plain_name
from ..system import BoolArray, FloatArray, sha256
from .areas import area_bounds
from .calibration import brier, brier_interval, expected_calibration_error
from .contents import count_distinct
from .delong import (
    DifferenceTest,
    Interval,
    Placements,
    mean_auroc_interval,
    paired_mean_delong,
    placements,
)
from .metrics import METRICS, one_class_reason
from .rates import Bounds, rate_bounds
from .score_table import Block
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


class Figure(NamedTuple):
    """A figure of merit, before it is said of what."""

    metric: str
    value: float | None
    bounds: Bounds | None = None
    p_value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What all records of a data set have in common; the attributes are those of `Record`."""

    task: str
    dataset: str
    protocol: str
    n: int
    n_positive: int

    @classmethod
    def of(cls, block: Block) -> Self:
        """The data set of a block."""
        return cls(
            task=block.task,
            dataset=block.dataset,
            protocol=block.protocol,
            n=len(block.positive),
            n_positive=int(block.positive.sum()),
        )

    def record(self, score: str, figure: Figure) -> Record:
        """A figure of a score, as a record."""
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
    known: dict[tuple[str, str], list[Figure]] = {}  # baselines score alike under several protocols
    for block in blocks:
        positive, subject = block.positive, Subject.of(block)
        meta = placements(block.score("meta"), positive)
        gains = []
        for name in block.names:
            values = block.score(name)
            placed = meta if name == "meta" else placements(values, positive)
            key = (block.task, sha256(values.tobytes() + positive.tobytes()))
            if key not in known:
                known[key] = list(_figures(values, positive, placed, ood=block.task == "ood"))
            for figure in [*known[key], *(_calibration(block) if name == "meta" else ())]:
                yield subject.record(name, figure)
            if is_compared(name):
                compared = None if meta is None or placed is None else paired_mean_delong([meta], [placed], [1])
                gains.append(gain(name, compared))
        if block.task == "shifted":
            yield subject.record(CLASSIFIER, _accuracy(positive))
        yield from (subject.record("meta", figure) for figure in gains)


def is_compared(name: str) -> bool:
    """Whether `meta` is compared with a score: what logits and penultimate features give without gradients."""
    return name in (LOGIT_LR, SCORE_LR) or plain_name(name) in BASELINES


def gain(other: str, test: DifferenceTest | None) -> Figure:
    """The AUROC that `meta` gains over another score."""
    if test is None:
        return Figure(GAIN + other, None)
    return Figure(GAIN + other, test.difference, (test.low, test.high), test.p_value)


def bounds(interval: Interval) -> Bounds:
    """The bounds of an interval."""
    return interval.low, interval.high


def remarks(blocks: Iterable[Block], records: Sequence[Record]) -> list[str]:
    """What a reader should know of the data sets: one class only, few samples, scores that point the wrong way."""
    lines = []
    for block in blocks:
        task, protocol, dataset, positive = block.task, block.protocol, block.dataset, block.positive
        where = f"{task}, {protocol}, {dataset}"
        reason = one_class_reason(positive, positive_name=KINDS[task][0], negative_name=KINDS[task][1])
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
    return dataset.endswith((" (mean)", " (pooled)"))


def _figures(values: FloatArray, positive: BoolArray, placed: Placements | None, *, ood: bool) -> Iterator[Figure]:
    functions = METRICS if ood else {**METRICS, **AREAS}
    # How many OOD samples there are was chosen; how many predictions are wrong is as uncertain as anything.
    areas = ["aupr_in", "aupr_out", *([] if ood else AREAS)]
    found = rate_bounds(values, positive) | area_bounds(values, positive, names=areas, fixed_sizes=ood)
    if placed is not None:
        found["auroc"] = bounds(mean_auroc_interval([placed], [1]))
    for metric, function in functions.items():
        yield Figure(metric, function(values, positive), found.get(metric))


def _calibration(block: Block) -> Iterator[Figure]:
    """Brier score and calibration error, for misclassification: the prevalence of OOD samples here is arbitrary."""
    if block.task == "ood":
        return
    p, positive = block.score("probability"), block.positive
    both = bool(positive.any() and not positive.all())
    yield Figure("brier", brier(p, positive) if both else None, brier_interval(p, positive) if both else None)
    yield Figure("ece", expected_calibration_error(p, positive) if both else None)


def _accuracy(wrong: BoolArray) -> Figure:
    """Share of right predictions, with Wilson's interval."""
    interval = binomtest(int((~wrong).sum()), len(wrong)).proportion_ci(method="wilson")
    return Figure("accuracy", float((~wrong).mean()), (float(interval.low), float(interval.high)))


def _few(block: Block) -> list[str]:
    """Says of which kind there are few samples; copies count once, since they tell nothing new."""
    content, kinds, whole = block.content(), KINDS[block.task], len(block.positive)
    lines = []
    for kind, mask in zip(kinds, (block.positive, ~block.positive), strict=True):
        count, distinct = int(mask.sum()), count_distinct(content[mask])
        if distinct < FEW:
            different, copies = ("different ", f" ({count} with copies)") if distinct < count else ("", "")
            found = f"only {distinct} {different}{kind}{'' if distinct == 1 else 's'} among {whole}{copies}"
            lines.append(f"{found}: take its figures as a hint")
    return lines
