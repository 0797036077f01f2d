"""Whether a classifier is as accurate as it should be, and if not, what may be the matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from ..store import EVERYWHERE, agreement_of, renaming_advice
from .findings import Finding, note, problem, warning

DEVIATIONS = 4.0
"""Standard errors by which an accuracy may miss what is declared; a right one misses by more once in 16,000 times."""

MARGIN = 0.02
"""Besides: declared accuracies are rounded, and measured with slightly other preprocessing.

Pixels shifted by a tenth or scaled by 20 % move the accuracy of the digits model by 0.01, resizing to 9 x 9 and back by
0.02 to 0.03.
"""


def check_accuracy(
    logits: Tensor,
    labels: Tensor,
    batch: object,
    declared: float | None,
    *,
    label_map: Mapping[int | str, int] | None = None,
) -> Iterator[Finding]:
    """Compares the accuracy with what is declared, with chance, and with how sure the classifier is.

    Args:
        logits: (N, K), finite.
        labels: (N,) int64, -1 for none.
        batch: the inputs; if they are images (N, C, H, W), their mean and deviation are reported.
        declared: the accuracy there should be; None if unknown.
        label_map: from the labels of the data to `labels`, so that advice can be given in terms of the former; None
            where they are the same.

    Yields:
        The findings.
    """
    known = labels.to(logits.device) >= 0
    count = int(known.sum())
    if not count:
        yield note("accuracy", "unknown: no input has a label")
        return
    classes, scores, labels = logits.shape[1], logits[known], labels.to(logits.device)[known]
    outside = int((labels >= classes).sum())
    if outside:
        yield problem("labels", f"{outside} of {count} are outside the model's classes 0..{classes - 1}")
        return
    predictions = scores.argmax(1)
    pair = labels.cpu().numpy(), predictions.cpu().numpy()
    agreement = agreement_of(*pair, classes=classes)
    accuracy, other = agreement.accuracy, agreement.in_another_order
    confidence = float(scores.double().softmax(1).amax(1).mean())
    measured = f"{accuracy:.3f} on {count} inputs"
    advice = renaming_advice(*pair, classes=classes, label_map=label_map)
    suspicions = (
        f"{advice}{EVERYWHERE}" if advice else f"check weights, label_map, resize, crop, mean and std{_levels(batch)}"
    )
    if declared is not None and accuracy < declared - _allowed(declared, count):
        yield problem("accuracy", f"{measured}, declared is {declared:.3f}; {suspicions}")
    elif declared is not None and accuracy > declared + _allowed(declared, count):
        yield warning("accuracy", f"{measured}, declared is {declared:.3f}; are these inputs the training data?")
    elif declared is not None:
        yield note("accuracy", f"{measured}, declared is {declared:.3f}")
    elif other is not None:
        yield problem("accuracy", f"{measured}, and {other:.3f} with the classes in another order; {suspicions}")
    elif agreement.is_at_chance:
        yield problem("accuracy", f"{measured}, which is chance; {suspicions}")
    elif agreement.is_surer(confidence):
        make = problem if advice else warning
        cause = "" if advice else "; or it is overfitted"
        yield make("accuracy", f"{measured}, and the mean confidence is {confidence:.3f}; {suspicions}{cause}")
    else:
        yield note("accuracy", f"{measured}; set model.declared_accuracy to have it checked")


def _allowed(share: float, count: int) -> float:
    """How far a share counted on `count` inputs may be off."""
    return float(DEVIATIONS * (share * (1 - share) / count) ** 0.5 + 1 / count + MARGIN)


def _levels(batch: object) -> str:
    if not isinstance(batch, Tensor) or batch.dim() != 4 or not batch.is_floating_point():
        return ""
    means, deviations = batch.mean((0, 2, 3)), batch.std((0, 2, 3))
    shown = [", ".join(f"{float(value):.2f}" for value in values) for values in (means, deviations)]
    return f" (the inputs have mean {shown[0]} and standard deviation {shown[1]} per channel)"
