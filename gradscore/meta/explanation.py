"""What drove a score: the share of each input of a meta model in the score of each sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..columns import FORWARD
from ..system import FloatArray
from .inputs import SCORE_PREFIX
from .models import ENERGY, MetaModel

LOGITS = "logits"
"""The layer that scores of the logits alone are filed under."""


class Driver(NamedTuple):
    """An input of a meta model and what it adds to the score of a sample; `loss` is None where it depends on none."""

    layer: str
    statistic: str
    loss: str | None
    contribution: float

    def __str__(self) -> str:
        """For example `8.weight l2:l1 of uniform +1.25`."""
        of = "" if self.loss is None else f" of {self.loss}"
        return f"{self.layer} {self.statistic}{of} {self.contribution:+.3g}"


def contributions(model: MetaModel, frame: pd.DataFrame) -> FloatArray:
    """What each input adds to the score of each sample.

    For log-odds that is coefficient x scaled value, so a row sums to `model.decision` less the intercept; a scaled
    value of zero is that of the median ordinary sample. For a distance d = z P z it is z_i (P z)_i, and a row sums to
    the distance. A combined model has the first, the excess of the distance shared out by the second, and the excess of
    the energy at the input of that name; a row sums to `model.decision` less the intercept.

    Args:
        model: the meta model.
        frame: a feature table with its columns, N rows.

    Returns:
        (N, inputs) float64, in the order of `model.inputs`.

    Raises:
        EvaluationError: a value that is not finite.
    """
    scaled, energy = model.scaled(frame)
    if model.kind == "logistic":
        return np.asarray(scaled * model.arrays["coefficients"])
    offsets = scaled - model.arrays["location"]
    terms = np.asarray((offsets @ model.arrays["precision"]) * offsets)
    if model.kind == "distance":
        return terms
    excess = model.excess(scaled, energy)
    found = scaled * model.arrays["coefficients"] + terms * (excess[:, 0] / terms.sum(axis=1))[:, None]
    found[:, model.inputs.index(ENERGY)] += excess[:, 1]
    return np.asarray(found)


def drivers(model: MetaModel, frame: pd.DataFrame, *, k: int) -> list[list[Driver]]:
    """The `k` inputs that move the score of each sample most, by magnitude, the strongest first.

    Args:
        model: the meta model.
        frame: a feature table with its columns, N rows.
        k: how many.

    Returns:
        N lists of at most k drivers; inputs that add nothing are left out.

    Raises:
        EvaluationError: a value that is not finite.
    """
    table = contributions(model, frame)
    order = np.argsort(-np.abs(table), axis=1, kind="stable")[:, :k]
    return [
        [_driver(model.inputs[place], float(row[place])) for place in places if row[place]]
        for row, places in zip(table, order, strict=True)
    ]


def _driver(name: str, contribution: float) -> Driver:
    if name.startswith(SCORE_PREFIX):
        return Driver(LOGITS, name.removeprefix(SCORE_PREFIX), None, contribution)
    loss, _, rest = name.partition("/")
    layer, _, statistic = rest.rpartition("/")
    return Driver(layer, statistic, None if loss == FORWARD else loss, contribution)
