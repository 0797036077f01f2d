"""What a check of a model tells, and what its modules, its accuracy and its gradients tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from ..data import SIGNED, are_signed
from ..models import to_eval
from ..store import EVERYWHERE, agreement_of, renaming_advice
from ..system import some

OF_SAMPLES = "samples of "
"""Start of topics that are about the samples of a split, whose name follows."""

Severity = Literal["problem", "warning", "note"]
"""What a remark means for the scores. "problem": they would be meaningless, or there would be none. "warning": they are
right, but probably not what is wanted. "note": good to know."""


@dataclass(frozen=True)
class Remark:
    """One thing to know about a model.

    Attributes:
        severity: how bad it is.
        topic: what it is about, in a few words that stay the same from model to model.
        message: what was found, where, and what to do.
    """

    severity: Severity
    topic: str
    message: str

    def __str__(self) -> str:
        """How bad it is, of what, and the message."""
        return f"{self.severity}: {self.topic}: {self.message}"


problem, warning, note = (partial(Remark, severity) for severity in get_args(Severity))


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found.

    Attributes:
        remarks: problems first, then warnings, then notes.
        coverage: for every parameter that was looked at, how its gradients are computed: "rule", "parameter-side
            product", "reference", "unused" or "frozen"; empty where a problem made it impossible to tell.
    """

    remarks: tuple[Remark, ...]
    coverage: dict[str, str]

    @classmethod
    def of(cls, remarks: Iterable[Remark], coverage: dict[str, str]) -> Diagnosis:
        """Sorts the remarks by severity."""
        order = get_args(Severity)
        return cls(tuple(sorted(remarks, key=lambda remark: order.index(remark.severity))), coverage)

    def __repr__(self) -> str:
        """How many of what there are, in one line; `remarks` has what they say."""
        counts = Counter(remark.severity for remark in self.remarks)
        found = [f"{number} {severity}{'s' * (number != 1)}" for severity, number in counts.items()]
        looked_at = f"{len(self.coverage)} parameters looked at"
        return f"Diagnosis({', '.join(['usable' if self.usable else 'unusable', *found, looked_at])})"

    @property
    def usable(self) -> bool:
        """False if scores of this model would be meaningless, or cannot be had of samples that are wanted."""
        return not self.problems

    @property
    def is_of_samples(self) -> bool:
        """Whether all problems are with samples of some split: scores of other samples would mean something."""
        return all(remark.topic.startswith(OF_SAMPLES) for remark in self.problems)

    @property
    def problems(self) -> list[Remark]:
        """What makes scores meaningless or impossible."""
        return [remark for remark in self.remarks if remark.severity == "problem"]


def check_modes(model: nn.Module) -> Iterator[Remark]:
    """Looks for modules in training mode, and for batch norm that depends on the batch in eval mode, too."""
    training = {name or "the model": module for name, module in model.named_modules() if module.training}
    norms = [
        name
        for name, module in training.items()
        if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm)
    ]
    dropouts = [name for name, module in training.items() if isinstance(module, _DropoutNd) and module.p > 0]
    if norms:
        yield problem(
            "batch norm in training mode",
            f"{some(norms)}: the output of a sample depends on its batch; call model.eval() before scoring",
        )
    if dropouts:
        yield problem(
            "dropout in training mode",
            f"{some(dropouts)}: outputs change from call to call; call model.eval() before scoring",
        )
    if training and not norms and not dropouts:
        yield warning(
            "training mode",
            f"{some(list(training))}: none of the usual layers that care, but call model.eval() before scoring",
        )
    frozen_norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not module.training and module.running_mean is None
    ]
    if frozen_norms:
        yield problem(
            "batch norm without running statistics",
            f"{some(frozen_norms)}: it normalises over the batch in eval mode too; train with track_running_stats=True",
        )


def check_parameters(model: nn.Module) -> Iterator[Remark]:
    """Looks for parameters that are frozen, shared or not finite."""
    parameters = dict(model.named_parameters())
    if not parameters:
        yield problem("no parameters", "the model has none, so there are no gradients; pass the classifier itself")
        return
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if len(frozen) == len(parameters):
        yield problem("frozen parameters", "all of them; call model.requires_grad_(True) before scoring")
    elif frozen:
        yield warning(
            "frozen parameters",
            f"{some(frozen)}: requires_grad is False, so their features are zero; set it to True, or name the others "
            "in features.parameters",
        )
    broken = [name for name, parameter in parameters.items() if not bool(torch.isfinite(parameter).all())]
    if broken:
        yield problem(
            "parameters that are not finite", f"{some(broken)}: the checkpoint is damaged or training diverged"
        )
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared = [" = ".join(group) for group in names.values() if len(group) > 1]
    if shared:
        yield note(
            "shared parameters", f"{some(shared)}: one tensor, whose gradient adds up all uses under its first name"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model in eval mode, and every module back in its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    to_eval(model)
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


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
    are_names: bool = False,
    in_config: bool = False,
) -> Iterator[Remark]:
    """Compares the accuracy with what is declared, with chance, and with how sure the classifier is.

    Args:
        logits: (N, K), finite.
        labels: (N,) int64, -1 for none.
        batch: the inputs; if they are images (N, C, H, W), their mean and deviation are reported.
        declared: the accuracy there should be; None if unknown.
        label_map: from the labels of the data to `labels`, so that advice can be given in terms of the former; None
            where they are the same.
        are_names: see `renaming_advice`.
        in_config: whether a configuration says what labels mean, so that advice is to change it, not the labels.

    Yields:
        The remarks.
    """
    known = labels.to(logits.device) >= 0
    count = int(known.sum())
    if not count:
        yield note("accuracy", "unknown: no input has a label")
        return
    classes = logits.shape[1]
    if label_map is None and are_signed(labels.tolist(), classes):
        yield problem("labels", f"inputs: {SIGNED}; give 0 and 1")
        return
    scores, labels = logits[known], labels.to(logits.device)[known]
    outside = int((labels >= classes).sum())
    if outside:
        yield problem("labels", f"{outside} of {count} are outside the model's classes 0..{classes - 1}")
        return
    predictions = scores.argmax(1)
    pair = labels.cpu().numpy(), predictions.cpu().numpy()
    agreement = agreement_of(*pair, classes=classes)
    accuracy, confidence = agreement.accuracy, float(scores.double().softmax(1).amax(1).mean())
    doubt = agreement.doubt(confidence)
    levels = _levels(batch)
    measured = f"{accuracy:.3f} on {count} inputs"
    how, where = ("set label_map to", EVERYWHERE) if in_config else ("change labels by", "")
    advise = partial(renaming_advice, *pair, classes=classes, label_map=label_map, are_names=are_names, how=how)
    advice = advise()
    names = "label_map" if in_config else "labels"
    suspicions = f"check weights, {names}{', resize, crop' if levels else ''}, mean and std{levels}"
    if advice:
        suspicions = f"{advice}{where}"
    elif agreement.is_mostly_in_another_order and (order := advise(least=0)):
        suspicions += f". If the order is the cause, {order}{where}"
    if declared is not None and accuracy < declared - _allowed(declared, count):
        yield problem("accuracy", f"{measured}, declared is {declared:.3f}; {suspicions}")
    elif declared is not None and accuracy > declared + _allowed(declared, count):
        yield warning("accuracy", f"{measured}, declared is {declared:.3f}; are these inputs the training data?")
    elif declared is not None:
        yield note("accuracy", f"{measured}, declared is {declared:.3f}")
    elif doubt is not None:
        make = problem if doubt.is_severe or (advice and agreement.is_surer(confidence)) else warning
        cause = "; or it is overfitted" if doubt.cause == "confidence" and not advice else ""
        yield make("accuracy", f"{measured}{doubt.after(doubt.number, digits=3)}; {suspicions}{cause}")
    else:
        yield note("accuracy", f"{measured}{levels}; set {'model.' * in_config}declared_accuracy to have it checked")


def _allowed(share: float, count: int) -> float:
    """How far a share counted on `count` inputs may be off."""
    return float(DEVIATIONS * (share * (1 - share) / count) ** 0.5 + 1 / count + MARGIN)


def _levels(batch: object) -> str:
    if not isinstance(batch, Tensor) or batch.dim() != 4 or not batch.is_floating_point():
        return ""
    means, deviations = batch.mean((0, 2, 3)), batch.std((0, 2, 3))
    shown = [", ".join(f"{float(value):.2f}" for value in values) for values in (means, deviations)]
    return f" (the inputs have mean {shown[0]} and standard deviation {shown[1]} per channel)"


UNDERFLOW_SHARE = 0.05
"""Share of samples with gradients too small for their type from which on it is a finding.

A choice: fewer hardly move the figures of a data set. On the digits model it is none, even in float16.
"""

UNDERFLOW_FACTOR = 8
"""A gradient whose largest element is below this many times the smallest normal number has lost most of its digits.

What is an eighth of the largest element, or less, is subnormal and loses a bit with every further power of two.
"""


def check_magnitudes(largest: Mapping[str, Tensor], types: Mapping[str, torch.dtype]) -> Iterator[Remark]:
    """Looks for gradients that are not finite, vanish, or are too small for the type they are computed in.

    Args:
        largest: magnitude (N,) float64 of each sample's gradient, NaN or infinite where an element is, by name of
            parameters whose gradient is not zero by construction; that at the logits is between 0.5 and 1.
        types: of these parameters.

    Yields:
        The remarks.
    """
    if not largest:
        return
    together = torch.stack(list(largest.values()))
    finite = torch.isfinite(together)
    broken = [name for name, row in zip(largest, finite, strict=True) if not bool(row.all())]
    if broken:
        yield problem(
            "gradients that are not finite",
            f"{some(broken)}, for {int((~finite.all(0)).sum())} of {together.shape[1]} inputs; look for divisions by "
            "zero, square roots and logarithms of zero, or compute in float32",
        )
        return
    lost = together.amax(0) == 0
    if bool(lost.any()):
        make = problem if float(lost.double().mean()) > 0.5 else warning
        yield make(
            "gradients that vanish",
            f"all are zero for {int(lost.sum())} of {len(lost)} inputs, so their features carry nothing; the network "
            f"saturates, or {_named(types)} underflows: compute in a wider type",
        )
    vanished = [name for name, row in largest.items() if not bool(row.any())]
    if vanished and not bool(lost.all()):
        yield warning(
            "parameters without effect",
            f"{some(vanished)}: their gradient is zero for every input, because units are dead or {_named(types)} "
            "underflows; name the others in features.parameters, or compute in a wider type",
        )
    small = {
        name: float(((row > 0) & (row < UNDERFLOW_FACTOR * torch.finfo(types[name]).tiny)).double().mean())
        for name, row in largest.items()
    }
    underflowing = [name for name, share in small.items() if share > UNDERFLOW_SHARE]
    if underflowing:
        worst = max(small.values())
        yield warning(
            "underflow",
            f"{some(underflowing)}: for up to {worst:.0%} of the inputs the gradient is so small that {_named(types)} "
            "rounds it to a few bits or to zero; compute in a wider type",
        )


def _named(types: Mapping[str, torch.dtype]) -> str:
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in types.values()}))
