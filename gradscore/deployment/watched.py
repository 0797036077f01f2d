"""What a monitor watches of every sample beside its scores: the confidence, and the size of gradients along the depth.

Sets of samples whose answers are known say what is usual (`Reference`); they lie in the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

from ..columns import FORWARD, feature_columns, logit_columns
from ..errors import BundleError
from ..system import BoolArray, FloatArray

WATCHED = "watched_"
"""Starts the names of the columns of what is watched in a table of results."""

CONFIDENCE = "confidence"
LAYERS = 5
"""Gradients of at most so many groups of parameters, evenly spread from the input to the output."""

_SIZES = ("l2", "l1", "std", "max")
"""Statistics that say how large a gradient is, the preferred one first."""

_RIGHT = "right"


@dataclass(frozen=True, kw_only=True)
class WatchedSet:
    """Samples whose answers are known.

    Attributes:
        columns: (n,) of each score (`score_*`) and each thing watched, by name.
        right: (n,) whether they are predicted right; False for OOD samples.
    """

    columns: Mapping[str, FloatArray]
    right: BoolArray


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What is usual, and what was seen under shift.

    Attributes:
        calibration: labelled in-distribution samples that fitted nothing.
        shifted: shifted copies of `in_dist.fit`, by kind and strength of the shift (`jpeg:3`); empty if none were made.
        ood: auxiliary OOD samples, by the name of their set; empty without shifted copies.
    """

    calibration: WatchedSet
    shifted: Mapping[str, WatchedSet] = field(default_factory=dict)
    ood: Mapping[str, WatchedSet] = field(default_factory=dict)

    def members(self) -> dict[str, NDArray[np.float64]]:
        """The arrays by name; see `of_members`."""
        named = {"calibration": self.calibration}
        named |= {f"shifted:{name}": each for name, each in self.shifted.items()}
        named |= {f"ood:{name}": each for name, each in self.ood.items()}
        return {
            f"{name}/{key}": np.ascontiguousarray(array, dtype=np.float64)
            for name, each in named.items()
            for key, array in {**each.columns, _RIGHT: each.right}.items()
        }

    @classmethod
    def of_members(cls, members: Mapping[str, NDArray[np.float64]]) -> Reference:
        """Reads back what `members` gave.

        Raises:
            BundleError: something is missing, has another form, or is not finite.
        """
        found: dict[str, dict[str, FloatArray]] = {}
        for key, array in sorted(members.items()):
            name, _, column = key.partition("/")
            found.setdefault(name, {})[column] = array
        sets = {name: _watched_set(name, columns) for name, columns in found.items()}
        if "calibration" not in sets:
            raise BundleError("what the monitor compares with holds no calibration samples")
        known = set(sets["calibration"].columns)
        odd = next((name for name, each in sets.items() if set(each.columns) != known), None)
        if odd is not None:
            raise BundleError(f"what the monitor compares with has other columns in '{odd}'")
        return cls(calibration=sets.pop("calibration"), shifted=_of(sets, "shifted:"), ood=_of(sets, "ood:"))


def watched(features: pd.DataFrame) -> pd.DataFrame:
    """What is watched of samples, by its name.

    Args:
        features: rows of a feature table, finite.

    Returns:
        `confidence`: log-odds of the largest softmax probability; and `gradient <group>`: logarithm of the size of the
        gradient at a group of parameters.
    """
    logits = features[logit_columns(features.columns)].to_numpy(dtype=np.float64)
    ordered = np.sort(logits, axis=1)
    found = {CONFIDENCE: ordered[:, -1] - logsumexp(ordered[:, :-1], axis=1) if len(ordered) else np.empty(0)}
    for group, column in _sizes(list(features.columns)).items():
        values = np.abs(features[column].to_numpy(dtype=np.float64))
        found[f"gradient {group}"] = np.log(np.maximum(values, np.finfo(np.float64).tiny))
    return pd.DataFrame(found)


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
    right = columns.get(_RIGHT)
    values = {key: array for key, array in columns.items() if key != _RIGHT}
    if right is None or not values:
        raise BundleError(f"what the monitor compares with lacks a column of '{name}'")
    if any(array.shape != right.shape or array.ndim != 1 or not len(array) for array in values.values()):
        raise BundleError(f"what the monitor compares with has columns of other lengths in '{name}'")
    if not all(np.isfinite(array).all() for array in values.values()) or not np.isin(right, (0.0, 1.0)).all():
        raise BundleError(f"what the monitor compares with has values in '{name}' that cannot be")
    return WatchedSet(columns=values, right=right.astype(np.bool_))


def _of(sets: Mapping[str, WatchedSet], start: str) -> dict[str, WatchedSet]:
    return {name.removeprefix(start): each for name, each in sets.items() if name.startswith(start)}
