"""What drove a score: the share of each input of a meta model in the score of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..columns import FORWARD
from ..system import FloatArray, product
from .inputs import SCORE_PREFIX, Group, group_of
from .models import MetaModel

_MEANING: dict[Group, str] = {
    "gradients": "the gradients of these layers are unusual",
    "columns": "the extra columns are unusual",
    "logits": "the logits are unusual",
    "penultimate": "the features before the last layer are unusual",
    "neighbours": "no sample of the bank is near",
    "augmentations": "augmentations of the sample are unusual, or change the prediction",
}


class Driver(NamedTuple):
    """An input of a meta model and what it adds to the score of a sample.

    Attributes:
        layer: the parameter or module whose gradients it comes from; of a score, its group.
        statistic: of these gradients; of a score, its name.
        loss: whose gradients; None where it depends on none.
        contribution: what it adds.
    """

    layer: str
    statistic: str
    loss: str | None
    contribution: float

    def __str__(self) -> str:
        """For example `8.weight l2:l1 of uniform +1.25`."""
        of = "" if self.loss is None else f" of {self.loss}"
        return f"{self.layer} {self.statistic}{of} {self.contribution:+.3g}"


class GroupShare(NamedTuple):
    """What a group of inputs adds to the score of a sample, and what that means."""

    group: Group
    contribution: float
    meaning: str


def contributions(model: MetaModel, scaled: FloatArray) -> FloatArray:
    """What each input adds to the score of each sample.

    For a linear function that is coefficient x scaled value, so a row sums to `model.decision` less the intercept; a
    scaled value of zero is that of the median ordinary sample. The standardised logarithm of a distance d = z P z is
    shared out by z_i (P z)_i, z being the inputs along the axes of the distance.

    Args:
        model: the meta model.
        scaled: (N, D) the scaled inputs of the samples, as `model.inputs.scaled` gives them.

    Returns:
        (N, D) float64, in the order of `model.inputs.names`.
    """
    linear = np.asarray(scaled * model.arrays["coefficients"])
    if model.kind != "one_class":
        return linear
    axes = model.arrays["axes"]
    offsets = product(scaled, axes.T) - model.arrays["location"]
    centred = scaled - model.arrays["location"] @ axes
    terms = product(product(offsets, model.arrays["precision"]), axes) * centred
    whole = terms.sum(axis=1, keepdims=True)
    shares = np.divide(terms, whole, out=np.zeros_like(terms), where=whole != 0)
    return np.asarray(linear + shares * model.distance(scaled)[:, None])


def drivers(names: Sequence[str], table: FloatArray, *, k: int) -> list[list[Driver]]:
    """The `k` inputs that move the score of each sample most, by magnitude, the strongest first.

    Args:
        names: of the D inputs.
        table: (N, D) their `contributions`.
        k: how many.

    Returns:
        N lists of at most k drivers; inputs that add nothing are left out.
    """
    order = np.argsort(-np.abs(table), axis=1, kind="stable")[:, :k]
    return [
        [_driver(names[place], float(row[place])) for place in places if row[place]]
        for row, places in zip(table, order, strict=True)
    ]


def loudest_group(names: Sequence[str], table: FloatArray) -> list[str]:
    """The group of inputs that speaks loudest for each sample being wrong or OOD, and what that means.

    Args:
        names: of the D inputs.
        table: (N, D) their `contributions`.

    Returns:
        N sentences such as `neighbours +1.3: no sample of the bank is near`; empty where no group adds anything.
    """
    sentences = []
    for row in table:
        # Shares come strongest first.
        speaking = [share for share in group_shares(names, row) if share.contribution > 0]
        sentences.append("".join(f"{share.group} {share.contribution:+.3g}: {share.meaning}" for share in speaking[:1]))
    return sentences


def group_shares(names: Sequence[str], row: FloatArray) -> list[GroupShare]:
    """What groups of inputs add to the score of one sample, the strongest first.

    Args:
        names: of the inputs.
        row: (inputs,) a row of `contributions`.
    """
    totals: dict[Group, float] = {}
    for name, value in zip(names, row, strict=True):
        totals[group_of(name)] = totals.get(group_of(name), 0.0) + float(value)
    ordered = sorted(totals.items(), key=lambda item: -abs(item[1]))
    return [GroupShare(group, total, _MEANING[group]) for group, total in ordered if total]


def _driver(name: str, contribution: float) -> Driver:
    if name.startswith(SCORE_PREFIX):
        return Driver(group_of(name), name.removeprefix(SCORE_PREFIX), None, contribution)
    loss, _, rest = name.partition("/")
    layer, _, statistic = rest.rpartition("/")
    return Driver(layer, statistic, None if loss == FORWARD else loss, contribution)
