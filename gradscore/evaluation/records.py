"""From the scores of samples to the records of `metrics.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ..scores import SCORES
from .bootstrap import RANKING, SELECTIVE, calibration_bounds, draw_counts, ranking_bounds
from .calibration import brier, expected_calibration_error
from .delong import (
    Interval,
    PairedTest,
    Placements,
    auroc_interval,
    mean_auroc_interval,
    paired_delong,
    paired_mean_delong,
    placements,
)
from .metrics import METRICS, one_class_reason
from .score_table import BLOCK, positive_of, scores_of
from .scoring import LOGIT_LR
from .selective import augrc, aurc, eaurc

Record = dict[str, Any]

FEW = 20
"""Fewer samples than this of either class are said to be few."""

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


def score_records(table: pd.DataFrame, *, seed: int) -> Iterator[Record]:
    """Records of each data set: figures of merit of each score, and the gains of `meta` over the others.

    Intervals (`low`, `high`, 95 %) are DeLong's for AUROC and its gains, from a stratified bootstrap for the rest, and
    None where none can be estimated; values are None with one class only. Covariate-shifted sets also have
    an accuracy, of the score `classifier`, with Wilson's interval.

    Args:
        table: as `read_scores` gives it.
        seed: of the bootstrap.

    Yields:
        `{task, dataset, protocol, score, metric, value, n, n_positive, low, high}`, gains also with `p_value`.
    """
    known: dict[tuple[Any, ...], list[Record]] = {}  # a baseline gives the same figures under several protocols
    for _, block in table.groupby(BLOCK, sort=False):
        positive = positive_of(block)
        both = bool(positive.any() and not positive.all())
        counts = draw_counts(positive, seed=seed) if both else None
        common = _common(block)
        for name in scores_of(block):
            key = (common["task"], block[name].to_numpy().tobytes(), positive.tobytes())
            if key not in known:
                known[key] = list(_figures(block, name, positive, counts))
            for figures in [*known[key], *(_calibration(block, positive, counts) if name == "meta" else ())]:
                yield common | {"score": name} | figures | _counted(positive)
        if common["task"] == "shifted":
            yield common | {"score": CLASSIFIER, "metric": "accuracy"} | _accuracy(positive) | _counted(positive)
        for other in rivals(block):
            gain = paired_delong(block["meta"], block[other], positive)
            yield common | {"score": "meta", "metric": GAIN + other} | _tested(gain) | _counted(positive)


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
    return [name for name in scores_of(block) if name == LOGIT_LR or name in SCORES]


def remarks(table: pd.DataFrame, records: Sequence[Record]) -> list[str]:
    """What a reader should know of the data sets: one class only, few samples, scores that point the wrong way."""
    lines = []
    for _, block in table.groupby(BLOCK, sort=False):
        task, protocol, dataset = (str(block[name].iloc[0]) for name in BLOCK)
        where = f"{task}, {protocol}, {dataset}"
        positive = positive_of(block)
        reason = one_class_reason(positive, positive_name=KINDS[task][0], negative_name=KINDS[task][1])
        if reason is not None:
            lines.append(f"{where}: {reason}; the values are null")
            continue
        lines += [f"{where}: {few}" for few in _few(positive, KINDS[task])]
        inverted = [
            f"{record['score']} ({record['value']:.3f})"
            for record in records
            if (record["task"], record["protocol"], record["dataset"]) == (task, protocol, dataset)
            and record["metric"] == "auroc"
            and record["value"] < 0.5
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


def _figures(block: pd.DataFrame, name: str, positive: Any, counts: Any) -> Iterator[Record]:
    values = block[name].to_numpy(dtype=np.float64)
    wrong = block["task"].iloc[0] != "ood"
    functions = {**METRICS, **(AREAS if wrong else {})}
    counted = {**RANKING, **(SELECTIVE if wrong else {})}
    bounds = {} if counts is None else ranking_bounds(values, positive, counts, metrics=counted)
    for metric, function in functions.items():
        value = function(values, positive)
        yield {"metric": metric, "value": value} | (
            _interval(auroc_interval(values, positive)) if metric == "auroc" else _pair(bounds.get(metric))
        )


def _calibration(block: pd.DataFrame, positive: Any, counts: Any) -> Iterator[Record]:
    """Brier score and calibration error, for misclassification: the prevalence of OOD samples here is arbitrary."""
    if block["task"].iloc[0] == "ood":
        return
    p = block["probability"].to_numpy(dtype=np.float64)
    bounds = {} if counts is None else calibration_bounds(p, positive, counts)
    for metric, function in {"brier": brier, "ece": expected_calibration_error}.items():
        value = None if counts is None else function(p, positive)
        yield {"metric": metric, "value": value} | _pair(bounds.get(metric))


def _accuracy(wrong: Any) -> Record:
    """Share of right predictions, with Wilson's interval."""
    interval = binomtest(int((~wrong).sum()), len(wrong)).proportion_ci(method="wilson")
    return {"value": float((~wrong).mean()), "low": float(interval.low), "high": float(interval.high)}


def _placed(block: pd.DataFrame) -> dict[str, Placements]:
    """The placements of each score of a data set; none with too few samples of either class."""
    found = {name: placements(block[name], positive_of(block)) for name in scores_of(block)}
    return {name: placed for name, placed in found.items() if placed is not None}


def _group(group: str, blocks: Sequence[pd.DataFrame], sets: Sequence[Mapping[str, Placements]]) -> Iterator[Record]:
    truths = [positive_of(block) for block in blocks]
    sizes = [int(truth.sum()) for truth in truths]
    counts = {"n": sum(sizes) + int((~truths[0]).sum()), "n_positive": sum(sizes)}
    names = [name for name in sets[0] if all(name in each for each in sets)]
    for kind, weights in {"mean": [1] * len(sizes), "pooled": sizes}.items():
        common = _common(blocks[0]) | {"dataset": f"{group} ({kind})"}
        for name in names:
            placed = [each[name] for each in sets]
            value = np.average([each.of_positives.mean() for each in placed], weights=weights)
            span = _interval(mean_auroc_interval(placed, weights))
            yield common | {"score": name, "metric": "auroc", "value": float(value)} | span | counts
            for metric in METRICS if kind == "mean" else ():
                if metric != "auroc":
                    figures = [METRICS[metric](block[name], truth) for block, truth in zip(blocks, truths, strict=True)]
                    record = {"score": name, "metric": metric, "value": float(np.mean(np.array(figures, dtype=float)))}
                    yield common | record | _pair(None) | counts
        for other in rivals(blocks[0]):
            if other in names:
                gain = paired_mean_delong([each["meta"] for each in sets], [each[other] for each in sets], weights)
                yield common | {"score": "meta", "metric": GAIN + other} | _tested(gain) | counts


def _few(positive: Any, kinds: tuple[str, str]) -> list[str]:
    found = {kinds[0]: int(positive.sum()), kinds[1]: int((~positive).sum())}
    return [
        f"only {count} {kind}{'' if count == 1 else 's'} among {len(positive)}: take its figures as a hint"
        for kind, count in found.items()
        if count < FEW
    ]


def _common(block: pd.DataFrame) -> Record:
    first = block.iloc[0]
    return {"task": first["task"], "dataset": first["dataset"], "protocol": first["protocol"]}


def _counted(positive: Any) -> Record:
    return {"n": len(positive), "n_positive": int(positive.sum())}


def _interval(interval: Interval | None) -> Record:
    return _pair(None if interval is None else (interval.low, interval.high))


def _pair(bounds: tuple[float, float] | None) -> Record:
    low, high = bounds or (None, None)
    return {"low": low, "high": high}


def _tested(test: PairedTest | None) -> Record:
    if test is None:
        return {"value": None, "low": None, "high": None, "p_value": None}
    return {"value": test.difference, "low": test.low, "high": test.high, "p_value": test.p_value}
