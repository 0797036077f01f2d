"""Whether predictions agree with labels more than guesses would, or would with the classes in another order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom

from ..system import BoolArray, IntArray

ENOUGH = 50
"""Labelled samples from which on an accuracy is judged by itself: with 20 of two classes 0.7 may be chance."""

GUESSED = 1 / 40
"""Share of guessers who have to be as right for an accuracy to be called chance."""

NEVER_GUESSED = 1e-3
"""Share of guessers below which the agreement with classes in another order is none by chance."""

OVERCONFIDENT = 0.3
"""Mean confidence less accuracy from which on the labels, the preprocessing or the network are doubted."""


@dataclass(frozen=True)
class Agreement:
    """How far predictions agree with labels.

    Attributes:
        accuracy: share of the samples.
        is_judged: whether they are enough to judge by; what follows says nothing otherwise.
        in_another_order: see `accuracy_in_another_order`.
        is_at_chance: see `is_at_chance`.
    """

    accuracy: float
    is_judged: bool = False
    in_another_order: float | None = None
    is_at_chance: bool = False

    def is_surer(self, confidence: float) -> bool:
        """Whether a network of this mean confidence is far surer than it is right."""
        return self.is_judged and confidence - self.accuracy > OVERCONFIDENT


def agreement_of(labels: IntArray, predictions: IntArray, *, classes: int) -> Agreement:
    """Compares predictions (N,) with labels (N,) of K classes."""
    accuracy = float((labels == predictions).mean())
    if len(labels) < ENOUGH:
        return Agreement(accuracy)
    return Agreement(
        accuracy,
        is_judged=True,
        in_another_order=accuracy_in_another_order(labels, predictions, classes=classes),
        is_at_chance=is_at_chance(labels, predictions, classes=classes),
    )


def confusion(labels: IntArray, predictions: IntArray, classes: int) -> IntArray:
    """How many samples of each class (rows) are taken for each (columns), (K, K)."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


def is_at_chance(labels: IntArray, predictions: IntArray, *, classes: int) -> bool:
    """Whether a network is right no more often than one that guesses among all classes.

    Args:
        labels: (N,) of samples that have one.
        predictions: (N,).
        classes: K.
    """
    return bool(binom.sf((labels == predictions).sum() - 1, len(labels), 1 / classes) > GUESSED)


def accuracy_in_another_order(labels: IntArray, predictions: IntArray, *, classes: int) -> float | None:
    """The accuracy with the classes renamed, where that would be more than twice what it is.

    The names are those that suit one half of the samples of each class best, judged on the other half, and the other
    way round, since of many classes with few samples some order always suits.

    Args:
        labels: (N,) of samples that have one.
        predictions: (N,).
        classes: K.

    Returns:
        The accuracy; None where no other order is right so often.
    """
    half = _half(labels)
    right = sum(
        int((_best_names(labels[fit], predictions[fit], classes)[labels[~fit]] == predictions[~fit]).sum())
        for fit in (half, ~half)
    )
    if right <= 2 * (labels == predictions).sum() or binom.sf(right - 1, len(labels), 1 / classes) > NEVER_GUESSED:
        return None
    return right / len(labels)


def _half(labels: IntArray) -> BoolArray:
    """Every other sample of each class."""
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], labels[order])
    half = np.empty(len(labels), dtype=np.bool_)
    half[order] = (np.arange(len(labels)) - first) % 2 == 0
    return half


def _best_names(labels: IntArray, predictions: IntArray, classes: int) -> IntArray:
    """The output (K,) that each class goes with best, each output going with one class."""
    names = linear_sum_assignment(confusion(labels, predictions, classes), maximize=True)[1]
    return np.asarray(names, dtype=np.int64)
