"""Whether the labels of a run are in the order of the network's classes, as far as accuracy can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np

from ..columns import LOGIT
from ..data import FIT, TEST, planned_splits
from .agreement import Agreement, agreement_of
from .renaming import EVERYWHERE, raw_labels, renaming_advice
from .run_folder import RunFolder

GAP = 0.1
"""Accuracies of `in_dist.fit` and `in_dist.test` nearer than this are not worth a warning."""

SIGNIFICANT = 1e-6
"""Chance that two equal accuracies come out as far apart as a warning wants."""

RANDOM = "random weights"
"""What a run notes of a network whose weights come from no file."""


@dataclass(frozen=True)
class _Labelled:
    """What is known of the labelled samples of a split."""

    split: str
    count: int
    agreement: Agreement
    confidence: float
    advice: str = ""

    @property
    def accuracy(self) -> float:
        """Share that is predicted as labelled."""
        return self.agreement.accuracy

    @property
    def doubt(self) -> str:
        """What speaks against its labels by itself; empty for nothing, and where there are too few to say."""
        measured, other = f"accuracy on {self.split} is {self.accuracy:.2f}", self.agreement.in_another_order
        if other is not None:
            return f"{measured}, and would be {other:.2f} with the classes in another order"
        if self.agreement.is_at_chance:
            return f"{measured}, which is chance"
        if self.agreement.is_surer(self.confidence):
            return f"{measured}, and the network's mean confidence there is {self.confidence:.2f}"
        return ""


def label_warnings(run: RunFolder) -> list[str]:
    """Warns when the labels of `in_dist.fit` or `in_dist.test` are probably not those that the network learned.

    They are when the two accuracies differ by more than `GAP` and more than chance explains (two-proportion test), or
    when an accuracy is at chance, would be more than twice as high with the classes in another order, or is far below
    the mean largest softmax probability (`Agreement`).

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
    doubts = [*(_gap(*found) if len(found) == 2 else []), *(each.doubt for each in found if each.doubt)]
    return [f"{'; '.join(doubts)}: {_reason(run, found)}"] if doubts else []


def _reason(run: RunFolder, found: Sequence[_Labelled]) -> str:
    """What is probably the matter, and what to do."""
    doubted = [each for each in found if each.doubt]
    advices = {each.split: each.advice for each in found if each.advice}
    if any(RANDOM in notice for notice in run.manifest["notices"]):
        why = f"the network was not trained (model.checkpoint is null: {RANDOM}), and figures about it mean nothing"
    elif len(set(advices.values())) == 1 and len(advices) == len(found):
        why = f"{found[0].advice}{EVERYWHERE}; figures that depend on labels mean nothing until then"
    elif advices:
        named = "; ".join(f"{advice} in data.{split}" for split, advice in advices.items())
        why = f"{named}; figures that depend on labels mean nothing until then"
    elif not doubted:
        low, high = (each.split for each in sorted(found, key=lambda each: each.accuracy))
        why = (
            f"either the labels of {low} are partly in another order than the network's classes, or the network was "
            f"trained on {high}, or {low} is made of other samples; figures that depend on labels mean little then"
        )
    elif any(each.agreement.in_another_order is not None for each in doubted):
        why = (
            "labels are probably in another order than the network's classes; say with label_map, in every labelled "
            "set of data, which is which; figures that depend on labels mean nothing until then"
        )
    elif any(each.agreement.is_at_chance for each in doubted):
        why = (
            "weights, labels or preprocessing are not those of the network's training, or it tells these classes no "
            "better than so many samples can show; figures that depend on labels mean little then"
        )
    else:
        why = (
            "the network is far surer than it is right: it is overfitted, or the data or their preprocessing are not "
            "those of its training, and then figures mean little"
        )
    return f"{why}; run gradscore doctor"


def _labelled(run: RunFolder, split: str, classes: int) -> _Labelled:
    logits = [f"{LOGIT}{place}" for place in range(classes)]
    frame = run.read(split, columns=["label", "prediction", *logits])
    values = frame[logits].to_numpy(dtype=np.float64)
    usable = (frame["label"] >= 0).to_numpy() & np.isfinite(values).all(axis=1)
    if not usable.any():
        return _Labelled(split, 0, Agreement(0.0), 0.0)
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
        agreement=agreement_of(labels, predictions, classes=classes),
        confidence=float(largest.mean()),
        advice=advice,
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
