"""Meta models: from the inputs of a sample to how likely its prediction is wrong, or the sample OOD, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit

from ..baselines import Bank
from ..errors import EvaluationError, StoreError
from ..system import BoolArray, FloatArray, IntArray, product
from .inputs import (
    BASELINE_PREFIX,
    Description,
    Folder,
    Group,
    MetaInputs,
    group_of,
    model_files,
    read_description,
    read_model,
)
from .rarity import Rarity

Kind = Literal["logistic", "one_class"]

SOUGHT = {"ood": "OOD samples", "misclassification": "wrong predictions"}
"""What sentences call the samples that a meta model looks for, by its task."""

NEIGHBOURS = 10
"""In-distribution samples nearest to a sample by their gradients, by which its scores are judged."""

_FARTHEST = 1000.0
"""Log-odds beyond which every probability is 0 or 1 in float64."""

_MEANING: dict[Group, str] = {
    "gradients": "the gradients of these layers are unusual",
    "logits": "the logits are unusual",
    "penultimate": "the features before the last layer are unusual",
    "neighbours": "no sample of the bank is near",
    "augmentations": "augmentations of the sample are unusual, or change the prediction",
}


class _Description(Description):
    """What is not arrays of a stored meta model."""

    kind: Kind
    inputs: str
    notes: dict[str, Any]


class Near(NamedTuple):
    """Inputs along the stretched axes (N, A), and the distances and places (N, n) of samples near them."""

    along: NDArray[np.float32]
    distances: FloatArray
    places: IntArray


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """A fitted meta model.

    Attributes:
        kind: `logistic` (log-odds) or `one_class` (how far the nearest of some in-distribution samples is by its
            gradients, for which no positive sample was seen).
        inputs: what makes its inputs, D of them.
        arrays: everything else that was fitted: for `logistic` `coefficients` (D,) and `intercept` (1,) of a linear
            function of the scaled inputs; for `one_class` `axes` (A, D) of unit length, how far each is stretched,
            `stretch` (A,), where in-distribution samples are along them then, `in_dist` (M, A), and the inputs of these
            that raise alarms, `levels` (M, P - 1). Those of `alarms`, where inputs raise alarms beside the own score.
        notes: how it was fitted; plain values.
    """

    kind: Kind
    inputs: MetaInputs
    arrays: Mapping[str, FloatArray]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What its score is called in tables: `meta`, or that of a regression without gradients."""
        return str(self.notes.get("score", "meta"))

    @cached_property
    def alarms(self) -> Rarity | None:
        """What makes one score of the model's own and of some inputs."""
        return Rarity.of_arrays(self.arrays)

    @property
    def shift(self) -> float:
        """What to add to log-odds for probabilities at the prevalence of the fit; see `prevalence_shift`."""
        return float(self.notes["shift"])

    def probability(self, scores: FloatArray, *, at_prevalence: bool) -> FloatArray:
        """Probabilities (N,) of being wrong or OOD, from scores (N,); missing where these are no log-odds.

        Args:
            scores: as `decision` gives them.
            at_prevalence: as common as positives were in the fit, as for wrong predictions; else as if half of all
                samples were positive, since nothing is known of the share of OOD samples.
        """
        if self.kind != "logistic":
            return np.full(len(scores), np.nan)
        return probabilities(self.notes["slope"] * scores, shift=self.shift if at_prevalence else 0.0)

    def decision(self, frame: pd.DataFrame) -> FloatArray:
        """Scores of the rows of a feature table; see `of_scaled`.

        Args:
            frame: a feature table with the columns that were fitted on.

        Returns:
            (N,) float64, higher = more likely wrong or OOD.

        Raises:
            EvaluationError: the columns differ, or a value is not finite.
        """
        return self.of_scaled(self.inputs.scaled(frame))

    def of_scaled(self, scaled: FloatArray) -> FloatArray:
        """Scores (N,) of scaled inputs (N, D) that never tie by rounding, higher = more likely wrong or OOD.

        They are log-odds (`logistic`), or the logarithm of a sum of weight / tail probability to a power.
        """
        own, usual = self.compared(scaled)
        return own if self.alarms is None else self.alarms.sum(own, scaled, usual)

    def near(self, scaled: FloatArray) -> Near | None:
        """The nearest in-distribution samples of scaled inputs (N, D), for `one_class`; None for others."""
        if self.kind != "one_class":
            return None
        along = self._along(scaled)
        return Near(along, *self._nearest(along, min(NEIGHBOURS, len(self.arrays["in_dist"]) - 1)))

    def compared(self, scaled: FloatArray, near: Near | None = None) -> tuple[FloatArray, FloatArray | float]:
        """Scores (N,) of scaled inputs (N, D) without alarms, and what is usual (N, P - 1) of those that raise them.

        Nothing is for `logistic`. For `one_class` half of their mean over the `NEIGHBOURS` nearest in-distribution
        samples is: what is rare among samples with gradients like these says more than what is rare among all. No
        sample is compared with itself, nor with copies of it. What is near may be given where it is known.
        """
        near = near or self.near(scaled)
        if near is None:
            linear: FloatArray = product(scaled, self.arrays["coefficients"][:, None])[:, 0]
            return linear + self.arrays["intercept"][0], 0.0
        own = np.log(np.maximum(near.distances[:, 0], np.finfo(np.float64).tiny))
        return own, self.arrays["levels"][near.places].mean(axis=1) / 2

    def shares(self, near: Near) -> FloatArray:
        """What each input has (N, D) of the squared distance from the nearest in-distribution sample; for `one_class`.

        The offset from it, along the axes, is o, stretched s o, and its square the sum of the products of both in the
        frame of the inputs.
        """
        offsets = (near.along - self._in_dist.features[near.places[:, 0]]).astype(np.float64)
        axes, stretch = self.arrays["axes"], self.arrays["stretch"]
        terms = product(offsets / stretch, axes) * product(offsets * stretch, axes)
        whole = terms.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(terms, whole, out=np.zeros_like(terms), where=whole != 0))

    @cached_property
    def _in_dist(self) -> Bank:
        features = self.arrays["in_dist"].astype(np.float32)
        return Bank(features=features, classes=np.zeros(len(features), dtype=np.int64))

    @cached_property
    def _copies(self) -> dict[bytes, int]:
        """Numbers of the in-distribution samples by their bits; copies have one number."""
        return {row.tobytes(): number for number, row in enumerate(self._in_dist.features)}

    def _nearest(self, along: NDArray[np.float32], count: int) -> tuple[FloatArray, IntArray]:
        """Distances (N, `count`) of the nearest in-distribution samples that are no copies, and their places."""
        theirs = np.array([self._copies.get(row.tobytes(), -1) for row in along], dtype=np.int64)
        numbers = None
        if (theirs >= 0).any():
            numbers = theirs, np.array([self._copies[row.tobytes()] for row in self._in_dist.features])
        distances, places, _ = self._in_dist.nearest(along, numbers, count)
        return distances, places

    def _along(self, scaled: FloatArray) -> NDArray[np.float32]:
        """Where scaled inputs (N, D) are along the stretched axes, (N, A)."""
        return (product(scaled, self.arrays["axes"].T) * self.arrays["stretch"]).astype(np.float32)

    def files(self) -> dict[str, bytes]:
        """The model as files, by name: arrays and JSON, without what makes its inputs."""
        description = _Description(kind=self.kind, inputs=self.inputs.fingerprint, notes=dict(self.notes))
        return model_files(self.arrays, description)

    @classmethod
    def load(cls, folder: Folder, inputs: MetaInputs) -> Self:
        """Reads a model; it scores every sample to the bit as before.

        Args:
            folder: where it was saved; one in an archive, too.
            inputs: what made its inputs when it was fitted.

        Raises:
            StoreError: a file is missing or damaged, or the model was fitted on other inputs or does not fit them.
        """
        arrays, found = read_model(folder, _Description)
        if found.inputs != inputs.fingerprint:
            raise StoreError(
                f"{folder}: the meta model was fitted on other inputs than lie beside it; run fit-meta again"
            )
        width = len(inputs.names)
        wanted: dict[str, tuple[int, ...]] = {"coefficients": (width,), "intercept": (1,)}
        if found.kind == "one_class":
            rows, axes = (arrays[name].shape[:1] if name in arrays else () for name in ("in_dist", "axes"))
            alarms = arrays["alarms/places"].shape if "alarms/places" in arrays else ()
            wanted = {"axes": (*axes, width), "stretch": axes, "in_dist": rows + axes, "levels": rows + alarms}
        of_model = {name: values.shape for name, values in arrays.items() if not name.startswith("alarms/")}
        if of_model != wanted:
            raise StoreError(
                f"{folder}: the arrays of the meta model do not fit its {width} inputs; run fit-meta again"
            )
        for name in ("slope", "shift") if found.kind == "logistic" else ():
            if not isinstance(found.notes.get(name), float | int):
                raise StoreError(f"{folder}: no number is '{name}' in the notes of the meta model; run fit-meta again")
        return cls(kind=found.kind, inputs=inputs, arrays=arrays, notes=found.notes)


def read_notes(folder: Path) -> dict[str, Any]:
    """What a stored model says of how it was fitted.

    Raises:
        StoreError: the description is missing or damaged.
    """
    return read_description(folder, _Description).notes


def probabilities(log_odds: ArrayLike, *, shift: float) -> FloatArray:
    """Probabilities (N,) in [0, 1] from log-odds (N,).

    Args:
        log_odds: of a model fitted with both classes counting the same, as if they were equally common.
        shift: `prevalence_shift` for the share of positives that the probabilities are for; 0 for one half.
    """
    return np.asarray(expit(np.asarray(log_odds, dtype=np.float64) + shift))


def prevalence_shift(log_odds: ArrayLike, *, share: float) -> float:
    """What to add to log-odds so that the mean probability is the share of positives.

    The logarithm of the odds of the share would do for an unpenalised fit of the truth (Saerens, Latinne and
    Decaestecker 2002); a penalty draws log-odds together, so the shift is solved for on the samples themselves.

    Args:
        log_odds: (N,) of the samples.
        share: of positives among them, between 0 and 1.

    Raises:
        EvaluationError: the share is 0 or 1.
    """
    values = np.asarray(log_odds, dtype=np.float64)
    if not 0 < share < 1:
        raise EvaluationError(f"calibration: wanted samples of two classes, got a share of {share:g} positives")
    farthest = _FARTHEST + float(np.abs(values).max(initial=0.0))
    return float(brentq(lambda shift: float(expit(values + shift).mean()) - share, -farthest, farthest))


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


class Explanation(NamedTuple):
    """What moved the scores of N samples.

    Attributes:
        contributions: (N, D) what each input adds, in the order of the names of the inputs.
        like_expected: (N,) whether the loudest alarm is that of OOD samples like those that were fitted on.
    """

    contributions: FloatArray
    like_expected: BoolArray


def explained(model: MetaModel, scaled: FloatArray) -> Explanation:
    """What each input adds to the score of each sample; where inputs raise alarms, to the loudest of these.

    An input that is loudest adds how rare it is, and others nothing. For a linear function the contribution is
    coefficient x scaled value, so a row sums to its score less the intercept; a scaled value of zero is that of the
    median in-distribution sample. How rare a distance is, is shared out by what each input has of its square.

    Args:
        model: the meta model.
        scaled: (N, D) the scaled inputs of the samples, as `model.inputs.scaled` gives them.
    """
    near = model.near(scaled)
    own, usual = model.compared(scaled, near)
    raised = own[:, None] if model.alarms is None else model.alarms.raised(own, scaled, usual)
    loudest = raised.argmax(axis=1)
    if near is not None:
        table = model.shares(near) * raised[:, :1]
    else:
        table = np.asarray(scaled * model.arrays["coefficients"])
    places = () if model.alarms is None else model.alarms.places
    if model.alarms is not None:
        for part, place in enumerate(places, start=1):
            table[loudest == part] = 0.0
            table[loudest == part, place] = raised[loudest == part, part]
        for part, coefficients in enumerate(model.alarms.linear, start=1 + len(places)):
            table[loudest == part] = scaled[loudest == part] * coefficients
    return Explanation(table, np.asarray(loudest > len(places)))


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


def largest_group(names: Sequence[str], found: Explanation) -> list[str]:
    """The group of inputs that contributes most to each sample being wrong or OOD, and what that means.

    Args:
        names: of the D inputs.
        found: what moved the scores.

    Returns:
        N sentences such as `neighbours +1.3: no sample of the bank is near`.
    """
    groups, sentences = [group_of(name) for name in names], []
    for row, is_like in zip(*found, strict=True):
        totals: dict[Group, float] = {}
        for group, value in zip(groups, row, strict=True):
            totals[group] = totals.get(group, 0.0) + float(value)
        group, most = max(totals.items(), key=lambda item: item[1])
        meaning = "they are like those of OOD samples that were given" if is_like else _MEANING[group]
        sentences.append(f"{group} {most:+.3g}: {meaning}" if most > 0 else "nothing speaks for it")
    return sentences


def _driver(name: str, contribution: float) -> Driver:
    if name.startswith(BASELINE_PREFIX):
        return Driver(group_of(name), name.removeprefix(BASELINE_PREFIX), None, contribution)
    loss, _, rest = name.partition("/")
    layer, _, statistic = rest.rpartition("/")
    return Driver(layer, statistic, loss, contribution)
