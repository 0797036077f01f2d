"""Last layers that are fitted to other samples than those they judge."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from ..errors import DataError
from ..system import BoolArray, FloatArray, IntArray

FOLDS = 5
"""Parts of the samples: each is judged by a last layer fitted to the others."""

STRENGTH = 0.01
"""Inverse regularisation strength of the logistic regressions, for standardised features."""

DOUBTED = 0.1
"""Share of the samples that the second fit leaves out: those whose label fits the first one least."""

FLOOR = 1e-12
"""Smallest probability."""


def check_class_sizes(labels: IntArray) -> None:
    """Makes sure that there are two samples of every class for each fold.

    Raises:
        DataError: a class has fewer than twice as many samples as there are folds, or there is only one class.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise DataError(f"audit: wanted samples of two classes or more, got {len(classes)}")
    if counts.min() < 2 * FOLDS:
        few = [f"class {label} has {count}" for label, count in zip(classes, counts, strict=True) if count < 2 * FOLDS]
        raise DataError(
            f"audit: wanted {2 * FOLDS} samples or more of every class, to judge some by others, got fewer "
            f"({', '.join(few[:5])}); give more, or leave these classes out"
        )


def cross_fitted(
    features: FloatArray,
    labels: IntArray,
    num_classes: int,
    *,
    seed: int,
    content: NDArray[np.str_] | None = None,
) -> FloatArray:
    """What the other samples say of each: log probabilities of the classes.

    A logistic regression is fitted to four fifths of the samples and judges the last one, five times over. The tenth of
    the samples whose label this doubts most is then left out of a second round of fits, which judges all of them.

    Args:
        features: (N, D), what enters the last layer.
        labels: (N,) the given classes.
        num_classes: K.
        seed: of the folds.
        content: (N,) hashes; copies of a sample are in its fold, so that none is judged by a fit that saw it.

    Returns:
        (N, K) float64; a class that no sample has keeps the smallest probability.

    Raises:
        DataError: a class with too few samples.

    Source: Northcutt, Jiang, Chuang 2021, "Confident learning: estimating uncertainty in dataset labels", section 3
        (labels are judged by out-of-sample probabilities).
    """
    check_class_sizes(labels)
    folds = _folds(labels, content, seed=seed)
    first = _round(features, labels, num_classes, np.ones(len(labels), dtype=bool), folds)
    losses = -first[np.arange(len(labels)), labels]
    kept = losses < np.quantile(losses, 1 - DOUBTED)
    # Doubting must not empty a class: one whose labels are mostly doubted is judged with all of them.
    for label in np.unique(labels):
        members = labels == label
        if kept[members].sum() < members.sum() / 2:
            kept |= members
    return _round(features, labels, num_classes, kept, folds)


def _folds(labels: IntArray, content: NDArray[np.str_] | None, *, seed: int) -> IntArray:
    """The fold (N,) of every sample: classes alike in all of them, and copies in one."""
    found = np.empty(len(labels), dtype=np.int64)
    parts = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels)
    for number, (_, judged) in enumerate(parts):
        found[judged] = number
    if content is None:
        return found
    _, first, inverse = np.unique(content, return_index=True, return_inverse=True)
    return np.asarray(found[first][inverse], dtype=np.int64)


def _round(features: FloatArray, labels: IntArray, num_classes: int, kept: BoolArray, folds: IntArray) -> FloatArray:
    found = np.full((len(labels), num_classes), np.log(FLOOR))
    for number in np.unique(folds):
        judged, fit = np.flatnonzero(folds == number), np.flatnonzero((folds != number) & kept)
        if len(np.unique(labels[fit])) < 2:
            raise DataError(
                "audit: without the copies of the samples that are judged there is one class left to fit; remove copies"
            )
        scaler = StandardScaler().fit(features[fit])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of probabilities do not matter
            head = LogisticRegression(C=STRENGTH, max_iter=200).fit(scaler.transform(features[fit]), labels[fit])
        probabilities = head.predict_proba(scaler.transform(features[judged]))
        found[np.ix_(judged, head.classes_)] = np.log(np.maximum(probabilities, FLOOR))
    return found
