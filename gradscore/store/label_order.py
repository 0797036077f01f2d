"""Whether the labels of a run are in the order of the network's classes, as far as accuracy can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np

from ..columns import LOGIT
from ..data import FIT, TEST, planned_splits
from .agreement import are_in_order, is_at_chance
from .renaming import EVERYWHERE, raw_labels, renaming_advice
from .run_folder import RunFolder

GAP = 0.1
"""Accuracies of `in_dist.fit` and `in_dist.test` nearer than this are not worth a warning."""

SIGNIFICANT = 1e-6
"""Chance that two equal accuracies come out as far apart as a warning wants."""

OVERCONFIDENT = 0.3
"""Mean confidence less accuracy from which on the labels are doubted, or else the preprocessing and the network."""

ENOUGH = 50
"""Labelled samples from which on the accuracy of a split is judged by itself."""

RANDOM = "random weights"
"""What a run notes of a network whose weights come from no file."""


@dataclass(frozen=True)
class _Labelled:
    """What is known of the labelled samples of a split."""

    split: str
    count: int
    accuracy: float
    confidence: float
    advice: str = ""
    is_at_chance: bool = False
    are_in_order: bool = True


def label_warnings(run: RunFolder) -> list[str]:
    """Warns when the labels of `in_dist.fit` or `in_dist.test` are probably not those that the network learned.

    They are when the two accuracies differ by more than `GAP` and more than chance explains (two-proportion test), or
    when an accuracy is at chance or by `OVERCONFIDENT` below the mean largest softmax probability.

    Args:
        run: a finished run folder.

    Returns:
        One sentence, or none; it names the map of labels that would repair it, where there is one.

    Raises:
        StoreError: a damaged file.
    """
    classes = run.config.model.num_classes
    there = {info.name for info in run.splits()}
    found = [_labelled(run, split, classes) for split in (FIT, TEST) if split in there]
    alone = [doubt for each in found for doubt in _alone(each)]
    doubts = [*(_gap(*found) if len(found) == 2 else []), *alone]
    if not doubts:
        return []
    return [f"{'; '.join(doubts)}: {_reason(run, found, gap_alone=not alone)}"]


def _reason(run: RunFolder, found: Sequence[_Labelled], *, gap_alone: bool) -> str:
    """What is probably the matter, and what to do."""
    advices = {each.split: each.advice for each in found if each.advice}
    if any(RANDOM in notice for notice in run.manifest["notices"]):
        why = f"the network was not trained (model.checkpoint is null: {RANDOM}), and figures about it mean nothing"
    elif len(set(advices.values())) == 1 and len(advices) == len(found):
        why = f"{found[0].advice}{EVERYWHERE}; figures that depend on labels mean nothing until then"
    elif advices:
        named = "; ".join(f"{advice} in data.{split}" for split, advice in advices.items())
        why = f"{named}; figures that depend on labels mean nothing until then"
    elif gap_alone:
        low, high = (each.split for each in sorted(found, key=lambda each: each.accuracy))
        why = (
            f"either the labels of {low} are partly in another order than the network's classes, or the network was "
            f"trained on {high}, or {low} is made of other samples; figures that depend on labels mean little then"
        )
    elif all(each.are_in_order and not each.is_at_chance for each in found):
        why = (
            "labels are in the order of the network's classes, but it is far surer than it is right: it is overfitted, "
            "or the data or their preprocessing are not those of its training, and then figures mean little"
        )
    else:
        why = (
            "labels are probably in another order than the network's classes, and figures that depend on labels mean "
            "nothing then"
        )
    return f"{why}; run gradscore doctor"


def _labelled(run: RunFolder, split: str, classes: int) -> _Labelled:
    logits = [f"{LOGIT}{place}" for place in range(classes)]
    frame = run.read(split, columns=["label", "prediction", *logits])
    values = frame[logits].to_numpy(dtype=np.float64)
    usable = (frame["label"] >= 0).to_numpy() & np.isfinite(values).all(axis=1)
    if not usable.any():
        return _Labelled(split, 0, 0.0, 0.0)
    values = values[usable]
    largest = 1 / np.exp(values - values.max(axis=1, keepdims=True)).sum(axis=1)
    labels, predictions = (frame[name].to_numpy(dtype=np.int64)[usable] for name in ("label", "prediction"))
    spec = planned_splits(run.config.data)[split][1]
    advice = renaming_advice(
        labels, predictions, classes=classes, label_map=raw_labels(spec.label_map, run.class_names)
    )
    return _Labelled(
        split,
        count=len(values),
        accuracy=float((labels == predictions).mean()),
        confidence=float(largest.mean()),
        advice=advice,
        is_at_chance=is_at_chance(labels, predictions, classes=classes),
        are_in_order=are_in_order(labels, predictions, classes=classes),
    )


def _gap(first: _Labelled, second: _Labelled) -> list[str]:
    gap = abs(first.accuracy - second.accuracy)
    if not first.count or not second.count or gap <= GAP:
        return []
    pooled = (first.accuracy * first.count + second.accuracy * second.count) / (first.count + second.count)
    error = sqrt(pooled * (1 - pooled) * (1 / first.count + 1 / second.count))
    if erfc(gap / error / sqrt(2)) >= SIGNIFICANT:
        return []
    return [f"accuracy is {first.accuracy:.2f} on {first.split} and {second.accuracy:.2f} on {second.split}"]


def _alone(found: _Labelled) -> list[str]:
    if found.count < ENOUGH:
        return []
    if found.is_at_chance:
        return [f"accuracy on {found.split} is {found.accuracy:.2f}, which is chance"]
    if found.confidence - found.accuracy > OVERCONFIDENT:
        return [
            f"accuracy on {found.split} is {found.accuracy:.2f}, and the network's mean confidence there is "
            f"{found.confidence:.2f}"
        ]
    return []
