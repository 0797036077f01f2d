"""Whether predictions agree with labels more than guesses would, and whether classes are in the order of the labels."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from ..system import IntArray

GUESSED = 1 / 40
"""Share of guessers who have to be as right for an accuracy to be called chance."""

DEVIATIONS = 4.0
"""Standard errors by which an accuracy may lie above chance where most classes are taken for others: permuted labels of
a network with errors of its own are right somewhat more often than guesses."""


def is_at_chance(labels: IntArray, predictions: IntArray, *, classes: int) -> bool:
    """Whether a network is right no more often than one that guesses among all classes.

    Args:
        labels: (N,) of samples that have one.
        predictions: (N,).
        classes: K.
    """
    count, right = len(labels), int((labels == predictions).sum())
    chance = 1 / classes
    if binom.sf(right - 1, count, chance) > GUESSED:
        return True
    limit = chance + DEVIATIONS * np.sqrt(chance * (1 - chance) / count)
    return bool(right <= limit * count and not are_in_order(labels, predictions, classes=classes))


def are_in_order(labels: IntArray, predictions: IntArray, *, classes: int) -> bool:
    """Whether most classes that have samples are taken for themselves more often than for any other class.

    They are where a network errs much, and are not where its classes have other places than the labels.
    """
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, predictions), 1)
    there = np.flatnonzero(counts.any(axis=1))
    own = counts[there, there] > np.where(np.eye(classes, dtype=np.bool_), -1, counts)[there].max(axis=1, initial=-1)
    return bool(2 * own.sum() > len(there))
