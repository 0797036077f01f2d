"""What a monitor watches of every sample beside its scores: the confidence, and the size of gradients along the depth.

The predicted class and a projection of the penultimate features are noted, too, for what they say of many samples
together. Sets of samples whose answers are known say what is usual (`Reference`); they lie in the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import shake_256
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

from ..columns import FORWARD, feature_columns, logit_columns, penultimate_columns
from ..errors import BundleError
from ..system import BoolArray, FloatArray, IntArray

WATCHED = "watched_"
"""Starts the names of the columns of what is watched in a table of results."""

CONFIDENCE = "confidence"
CLASS = "class"
"""The place of the predicted class."""

FEATURE = "feature "
"""Starts the names of what is noted of the penultimate features."""

PROJECTED = 64
"""Penultimate features are projected to so many, more than enough to see their mean move."""

LAYERS = 5
"""Gradients of at most so many groups of parameters, evenly spread from the input to the output."""

_SIZES = ("l2", "l1", "std", "max")
"""Statistics that say how large a gradient is, the preferred one first."""

_RIGHT, _LABEL, _CLASSES = "right", "label", "classes"


@dataclass(frozen=True, kw_only=True)
class WatchedSet:
    """Samples whose answers are known.

    Attributes:
        columns: (n,) of each score (`score_*`) and each thing watched, by name.
        right: (n,) whether they are predicted right; False for OOD samples.
        label: (n,) their classes, -1 for OOD samples and where nothing looks at them.
    """

    columns: Mapping[str, FloatArray]
    right: BoolArray
    label: IntArray


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What is usual, and what was seen under shift.

    Attributes:
        calibration: labelled in-distribution samples that fitted nothing.
        classes: how many the model knows.
        plain: samples of `in_dist.fit` as they are; None without shifted copies.
        shifted: shifted copies of `in_dist.fit`, by kind and strength of the shift (`jpeg:3`); empty if none were made.
        ood: auxiliary OOD samples, by the name of their set; empty without shifted copies.
    """

    calibration: WatchedSet
    classes: int
    plain: WatchedSet | None = None
    shifted: Mapping[str, WatchedSet] = field(default_factory=dict)
    ood: Mapping[str, WatchedSet] = field(default_factory=dict)

    def members(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; see `of_members`."""
        named = {"calibration": self.calibration} | ({} if self.plain is None else {"plain": self.plain})
        named |= {f"shifted:{name}": each for name, each in self.shifted.items()}
        named |= {f"ood:{name}": each for name, each in self.ood.items()}
        return {
            f"{name}/{key}": np.ascontiguousarray(array, dtype=np.float32 if key.startswith(FEATURE) else np.float64)
            for name, each in named.items()
            for key, array in {**each.columns, _RIGHT: each.right, _LABEL: each.label}.items()
        } | {_CLASSES: np.array([float(self.classes)])}

    @classmethod
    def of_members(cls, members: Mapping[str, NDArray[Any]]) -> Reference:
        """Reads back what `members` gave.

        Raises:
            BundleError: something is missing, has another form, or is not finite.
        """
        found: dict[str, dict[str, FloatArray]] = {}
        for key, array in sorted(members.items()):
            name, slash, column = key.partition("/")
            if slash:
                found.setdefault(name, {})[column] = array.astype(np.float64)
        classes = members.get(_CLASSES, np.zeros(1))
        if classes.shape != (1,) or classes[0] != max(1, round(classes[0])):
            raise BundleError("what the monitor compares with does not say how many classes there are")
        sets = {name: _watched_set(name, columns) for name, columns in found.items()}
        if "calibration" not in sets:
            raise BundleError("what the monitor compares with holds no calibration samples")
        known = set(sets["calibration"].columns)
        odd = next((name for name, each in sets.items() if set(each.columns) != known), None)
        if odd is not None:
            raise BundleError(f"what the monitor compares with has other columns in '{odd}'")
        if any(not _are_classes(each, int(classes[0])) for each in sets.values()):
            raise BundleError(f"what the monitor compares with has classes that are none of {int(classes[0])}")
        calibration = sets.pop("calibration")
        return cls(
            calibration=calibration,
            classes=int(classes[0]),
            plain=sets.pop("plain", None),
            shifted=_of(sets, "shifted:"),
            ood=_of(sets, "ood:"),
        )


def watched(features: pd.DataFrame) -> pd.DataFrame:
    """What is watched of samples, by its name.

    Args:
        features: rows of a feature table, finite.

    Returns:
        `confidence`: log-odds of the largest softmax probability; `gradient <group>`: logarithm of the size of the
        gradient at a group of parameters; `class`: the place of the predicted class; and `feature <number>`: the
        penultimate features in single precision, where they are recorded, projected to `PROJECTED` if there are more.
    """
    logits = features[logit_columns(features.columns)].to_numpy(dtype=np.float64)
    ordered = np.sort(logits, axis=1)
    found = {CONFIDENCE: ordered[:, -1] - logsumexp(ordered[:, :-1], axis=1) if len(ordered) else np.empty(0)}
    for group, column in _sizes(list(features.columns)).items():
        values = np.abs(features[column].to_numpy(dtype=np.float64))
        found[f"gradient {group}"] = np.log(np.maximum(values, np.finfo(np.float64).tiny))
    found[CLASS] = logits.argmax(axis=1).astype(np.float64)
    penultimate = features[penultimate_columns(features.columns)].to_numpy(dtype=np.float64)
    if penultimate.shape[1] > PROJECTED:
        penultimate = penultimate @ _signs(penultimate.shape[1])
    rounded = penultimate.astype(np.float32).astype(np.float64)
    return pd.DataFrame(found | {f"{FEATURE}{place}": each for place, each in enumerate(rounded.T)})


def is_stream(name: str) -> bool:
    """Whether what is watched is a size that can rise and fall: scores, the confidence and gradients."""
    return name != CLASS and not name.startswith(FEATURE)


@cache
def _signs(features: int) -> FloatArray:
    """(features, PROJECTED) of plus and minus one over the root of `PROJECTED`: the same on every machine, for ever.

    Source: Achlioptas 2003, "Database-friendly random projections".
    """
    bits = np.unpackbits(np.frombuffer(shake_256(b"monitor").digest(features * PROJECTED // 8), dtype=np.uint8))
    return np.asarray((2.0 * bits.reshape(features, PROJECTED) - 1) / np.sqrt(PROJECTED))


def _sizes(columns: list[str]) -> dict[str, str]:
    """A column that says how large the gradient is, by group of parameters, from the input to the output."""
    parts = [column.rpartition("/") for column in feature_columns(columns) if not column.startswith(f"{FORWARD}/")]
    losses = list(dict.fromkeys(start.partition("/")[0] for start, _, _ in parts))
    if not losses:
        return {}
    of_loss = {start: {each for first, _, each in parts if first == start} for start, _, _ in parts}
    found: dict[str, str] = {}
    for start, statistics in of_loss.items():
        loss, _, group = start.partition("/")
        size = next((each for each in _SIZES if each in statistics), None)
        if loss == losses[0] and size is not None:
            found[group] = f"{start}/{size}"
    names, places = list(found), np.linspace(0, max(0, len(found) - 1), min(LAYERS, len(found)))
    return {names[place]: found[names[place]] for place in dict.fromkeys(places.round().astype(int).tolist())}


def _watched_set(name: str, columns: Mapping[str, FloatArray]) -> WatchedSet:
    right, label = columns.get(_RIGHT), columns.get(_LABEL)
    values = {key: array for key, array in columns.items() if key not in (_RIGHT, _LABEL)}
    if right is None or label is None or CLASS not in values or CONFIDENCE not in values:
        raise BundleError(f"what the monitor compares with lacks a column of '{name}'")
    if any(array.shape != right.shape or array.ndim != 1 or not len(array) for array in columns.values()):
        raise BundleError(f"what the monitor compares with has columns of other lengths in '{name}'")
    if not all(np.isfinite(array).all() for array in columns.values()) or not np.isin(right, (0.0, 1.0)).all():
        raise BundleError(f"what the monitor compares with has values in '{name}' that cannot be")
    return WatchedSet(columns=values, right=right.astype(np.bool_), label=label.astype(np.int64))


def _are_classes(each: WatchedSet, classes: int) -> bool:
    predicted = each.columns[CLASS]
    whole = np.array_equal(predicted, predicted.round())
    return bool(whole and predicted.min() >= 0 and max(predicted.max(), each.label.max()) < classes)


def _of(sets: Mapping[str, WatchedSet], start: str) -> dict[str, WatchedSet]:
    return {name.removeprefix(start): each for name, each in sets.items() if name.startswith(start)}
