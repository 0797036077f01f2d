"""Whether a classifier is as accurate as it should be, and if not, what may be the matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .findings import Finding, note, problem, some, warning

DEVIATIONS = 4.0
"""Standard errors by which an accuracy may miss what is declared; a right one misses by more once in 16,000 times."""

MARGIN = 0.02
"""Besides: declared accuracies are rounded, and measured with slightly other preprocessing.

Pixels shifted by a tenth or scaled by 20 % move the accuracy of the digits model by 0.01, resizing to 9 x 9 and back by
0.02 to 0.03.
"""

RELABELLED = 0.8
"""Share of the inputs that the best renaming of the classes must get right to be suggested.

With its pixels inverted, which no renaming repairs, the digits model reaches 0.6; with classes in another order, 0.93.
"""

ENOUGH = 50
"""Labels from which on an accuracy at chance level is worth a word.

With 50 labels of ten classes whatever is below 0.31 may be chance, with 20 whatever is below 0.44.
"""


def check_accuracy(
    predictions: Tensor,
    labels: Tensor,
    batch: Tensor,
    classes: int,
    declared: float | None,
    *,
    label_map: Mapping[int, int] | None = None,
) -> Iterator[Finding]:
    """Compares the accuracy with what is declared, or with chance.

    Args:
        predictions: (N,) int64.
        labels: (N,) int64, -1 for none.
        batch: (N, ...) the inputs; if they are images (N, C, H, W), their mean and deviation are reported.
        classes: K.
        declared: the accuracy there should be; None if unknown.
        label_map: from the labels of the data to `labels`, so that advice can be given in terms of the former; None
            where they are the same.

    Yields:
        The findings.
    """
    labels = labels.to(predictions.device)
    known = labels >= 0
    count = int(known.sum())
    if not count:
        yield note("accuracy", "unknown: no input has a label")
        return
    predictions, labels = predictions[known], labels[known]
    accuracy = float((predictions == labels).double().mean())
    measured = f"{accuracy:.3f} on {count} inputs"
    own = {label: label for label in range(classes)} if label_map is None else label_map
    if declared is None:
        chance = 1 / classes
        if count >= ENOUGH and accuracy <= chance + _allowed(chance, count):
            yield warning(
                "accuracy", f"{measured}, which is chance; {_suspicions(predictions, labels, batch, classes, own)}"
            )
        else:
            yield note("accuracy", f"{measured}; set model.declared_accuracy to have it checked")
    elif accuracy < declared - _allowed(declared, count):
        yield problem(
            "accuracy",
            f"{measured}, declared is {declared:.3f}; {_suspicions(predictions, labels, batch, classes, own)}",
        )
    elif accuracy > declared + _allowed(declared, count):
        yield warning("accuracy", f"{measured}, declared is {declared:.3f}; are these inputs the training data?")
    else:
        yield note("accuracy", f"{measured}, declared is {declared:.3f}")


def _allowed(share: float, count: int) -> float:
    """How far a share counted on `count` inputs may be off."""
    return float(DEVIATIONS * (share * (1 - share) / count) ** 0.5 + 1 / count + MARGIN)


def _suspicions(predictions: Tensor, labels: Tensor, batch: Tensor, classes: int, label_map: Mapping[int, int]) -> str:
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    counts.index_put_((labels.cpu(), predictions.cpu()), torch.ones(len(labels), dtype=torch.int64), accumulate=True)
    seen = {label: int(counts[label].argmax()) for label in range(classes) if counts[label].any()}
    right = int(counts.amax(1).sum())
    distinct = len(set(seen.values())) == len(seen) > 1
    renamed = any(label != found for label, found in seen.items())
    if distinct and renamed and right >= RELABELLED * len(labels):
        return _renaming(seen, classes, label_map)
    return f"check weights, label_map, resize, crop, mean and std{_levels(batch)}"


def _renaming(seen: Mapping[int, int], classes: int, label_map: Mapping[int, int]) -> str:
    """Advises the whole map: `label_map` has to say something of every label.

    Args:
        seen: from the labels as they are mapped now to the classes that the model means.
        classes: K.
        label_map: from the labels of the data to those of now.
    """
    named = dict(seen)
    free = [each for each in range(classes) if each not in named.values()]
    unseen = [label for label in range(classes) if label not in named]
    for label in sorted(unseen, key=lambda label: label not in free):
        named[label] = free.pop(free.index(label) if label in free else 0)
    pairs = [f"{raw}: {named.get(label, label)}" for raw, label in sorted(label_map.items())]
    guessed = [raw for raw, label in sorted(label_map.items()) if label in unseen]
    doubt = (
        f" (no input had label {some([str(raw) for raw in guessed])}, so check what stands there)" if guessed else ""
    )
    return (
        f"the classes are named otherwise: set label_map to {{{', '.join(pairs)}}}{doubt} in data.in_dist.fit, "
        "data.in_dist.test and every other set with these labels, in place of the one there is"
    )


def _levels(batch: Tensor) -> str:
    if batch.dim() != 4 or not batch.is_floating_point():
        return ""
    means, deviations = batch.mean((0, 2, 3)), batch.std((0, 2, 3))
    shown = [", ".join(f"{float(value):.2f}" for value in values) for values in (means, deviations)]
    return f" (the inputs have mean {shown[0]} and standard deviation {shown[1]} per channel)"
