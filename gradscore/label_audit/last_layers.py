"""What the other samples say of each label: last layers that are fitted to them, and the network."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from ..errors import DataError
from ..system import BoolArray, FloatArray, IntArray

FOLDS = 5
"""Parts of the samples: each is judged by a last layer fitted to the others."""

PENALTIES = (0.01, 0.1, 1.0)
"""Inverse penalties of the logistic regressions, for standardised features, the strongest first."""

NEAR = 0.05
"""A network counts that agrees with as many labels as last layers fitted to other samples do, but for this share."""

DOUBTED = 0.1
"""Share of the samples of each class that a fit leaves out: those whose label fits the others least."""

FEWEST = 3
"""Folds that have samples of a class at least: two of them are left out together."""

FLOOR = 1e-12
"""Smallest probability."""


def accuracy_of(logits: FloatArray, labels: IntArray) -> float:
    """The share of labels that have the largest logit."""
    return float((logits.argmax(axis=1) == labels).mean())


def check_class_sizes(labels: IntArray, content: NDArray[np.str_] | None = None) -> None:
    """Makes sure that there are two samples of every class for each fold; copies count once.

    Args:
        labels: (N,) the given classes.
        content: (N,) hashes, where they are known.

    Raises:
        DataError: a class has fewer than twice as many samples as there are folds, or there is only one class.
    """
    classes, counts = np.unique(labels[_once(labels, content)], return_counts=True)
    if len(classes) < 2:
        raise DataError(f"audit: wanted samples of two classes or more, got {len(classes)}")
    few = [f"class {label} has {count}" for label, count in zip(classes, counts, strict=True) if count < 2 * FOLDS]
    if few:
        different = "" if content is None else "different "
        raise DataError(
            f"audit: wanted {2 * FOLDS} {different}samples or more of every class, to judge some by others, got fewer "
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
    """Log probabilities of the classes of each sample by the others, each as frequent as the root of its labels.

    A logistic regression is fitted to four fifths of the samples and judges the last one, five times over. Of the four
    fifths it leaves out the tenth of each class whose label is doubted most, by fits to three fifths: so neither the
    fit nor the choice of what it is fitted to knows a sample that it judges. A class weighs as much as the root of how
    many labels it has. By their number, the samples of rare classes would be handed to frequent ones. With the same
    weight for all, a few samples of a frequent class that are labelled as a rare one would be half of that one's
    weight, and samples like them, whose labels are right, would look wrong.

    Args:
        features: (N, D), what enters the last layer.
        labels: (N,) the given classes.
        num_classes: K.
        seed: of the folds.
        content: (N,) hashes; copies of a sample are in its fold, so that none is judged by a fit that saw it, and those
            with the same label count once.

    The penalty is the strongest one whose regressions agree with the labels of other samples as often as the best do,
    by these weights, less one standard error.

    Returns:
        (N, K) float64; a class that no sample has keeps the smallest probability.

    Raises:
        DataError: a class with too few samples.

    Source: Northcutt, Jiang, Chuang 2021, "Confident learning: estimating uncertainty in dataset labels", section 3
        (labels are judged by out-of-sample probabilities).
    """
    check_class_sizes(labels, content)
    folds = _folds(labels, content, seed=seed)
    once = _once(labels, content)
    penalty = _penalty(features, labels, num_classes, folds=folds, once=once)
    losses = np.full((FOLDS, len(labels)), np.nan)  # for each fold that is judged, of the samples of the others
    for pair in combinations(range(FOLDS), 2):
        judged = np.flatnonzero(np.isin(folds, pair))
        fit = np.flatnonzero(~np.isin(folds, pair) & once)
        log_p = _judged(features, labels, num_classes, fit=fit, judged=judged, penalty=penalty)
        of_labels = -log_p[np.arange(len(judged)), labels[judged]]
        for fold, other in (pair, pair[::-1]):
            losses[fold, judged[folds[judged] == other]] = of_labels[folds[judged] == other]
    found = np.full((len(labels), num_classes), np.log(FLOOR))
    for fold in range(FOLDS):
        judged, others = np.flatnonzero(folds == fold), np.flatnonzero((folds != fold) & once)
        kept = others[_is_kept(losses[fold, others], labels[others])]
        found[judged] = _judged(features, labels, num_classes, fit=kept, judged=judged, penalty=penalty)
    return found


def _penalty(features: FloatArray, labels: IntArray, num_classes: int, *, folds: IntArray, once: BoolArray) -> float:
    weights, agree, errors = _weights(labels), [], []
    for penalty in PENALTIES:
        right = np.zeros(len(labels), dtype=bool)
        for fold in range(FOLDS):
            judged, fit = np.flatnonzero(folds == fold), np.flatnonzero((folds != fold) & once)
            log_p = _judged(features, labels, num_classes, fit=fit, judged=judged, penalty=penalty)
            right[judged] = log_p.argmax(axis=1) == labels[judged]
        agree.append(float((weights * right).mean()))
        errors.append(float(np.linalg.norm(weights * (right - agree[-1]))) / len(labels))
    best = int(np.argmax(agree))
    least = agree[best] - errors[best]
    return next(penalty for penalty, each in zip(PENALTIES, agree, strict=True) if each >= least)


def _weights(labels: IntArray) -> FloatArray:
    """(N,), those of a class the root of its number together; their mean is 1."""
    weights = 1 / np.sqrt(np.bincount(labels)[labels])
    return np.asarray(weights / weights.mean())


def with_network(log_p: FloatArray, logits: FloatArray, labels: IntArray) -> FloatArray:
    """Log probabilities (N, K) of which the network has one half, on the scale of the others.

    A network that agrees with more of the labels than what is fitted to other samples has memorised them, wrong
    ones as well, and one that agrees with fewer was made for something else: both are left out.

    Args:
        log_p: (N, K) of last layers that are fitted to other samples.
        logits: (N, K) of the network.
        labels: (N,) the given classes.
    """
    spread = [float(log_odds_of_labels(each, labels).std()) for each in (log_p, logits)]
    if abs(accuracy_of(logits, labels) - accuracy_of(log_p, labels)) > NEAR or not min(spread):
        return log_p
    return np.asarray(log_softmax((log_p + logits * (spread[0] / spread[1])) / 2, axis=1))


def memorised(log_p: FloatArray, logits: FloatArray, labels: IntArray) -> tuple[float, float] | None:
    """Shares of labels that the network and the others agree with, where the first may have memorised wrong ones.

    Args:
        log_p: (N, K) of last layers that are fitted to other samples.
        logits: (N, K) of the network.
        labels: (N,) the given classes.
    """
    network, others = accuracy_of(logits, labels), accuracy_of(log_p, labels)
    return (network, others) if network > others + NEAR else None


def log_odds_of_labels(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """(N,) of the likeliest other class to the label."""
    rows, rest = np.arange(len(labels)), log_p.copy()
    rest[rows, labels] = -np.inf
    return np.asarray(rest.max(axis=1) - log_p[rows, labels])


def _once(labels: IntArray, content: NDArray[np.str_] | None) -> BoolArray:
    """The first of the copies (N,) of each content that have the same label."""
    if content is None:
        return np.ones(len(labels), dtype=bool)
    return ~pd.DataFrame({"content": content, "label": labels}).duplicated().to_numpy()


def _is_kept(losses: FloatArray, labels: IntArray) -> BoolArray:
    """Mask of the samples that stay: all but the tenth of each class whose label is doubted most."""
    kept = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = labels == label
        kept[members] = losses[members] <= np.quantile(losses[members], 1 - DOUBTED)
    return kept


def _folds(labels: IntArray, content: NDArray[np.str_] | None, *, seed: int) -> IntArray:
    """The fold (N,) of every sample: classes alike in all of them, and copies in one.

    Raises:
        DataError: the samples of a class are copies of samples of others, all in a few folds.
    """
    names = np.arange(len(labels)).astype(np.str_) if content is None else content
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    contents = np.sort(first)  # in the order of the data
    found = np.empty(len(contents), dtype=np.int64)
    if np.unique(labels[contents], return_counts=True)[1].max() < FOLDS:
        raise DataError(f"audit: nearly all of {len(labels)} samples are copies with different labels; remove copies")
    parts = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer first samples than folds: see below
        for number, (_, judged) in enumerate(parts.split(contents, labels[contents])):
            found[judged] = number
    folds = np.asarray(found[np.searchsorted(contents, first[inverse])], dtype=np.int64)
    for label in np.unique(labels):
        if len(np.unique(folds[labels == label])) < FEWEST:
            raise DataError(
                f"audit: nearly all samples of class {label} are copies of samples with other labels; remove copies"
            )
    return folds


def _judged(
    features: FloatArray, labels: IntArray, num_classes: int, *, fit: IntArray, judged: IntArray, penalty: float
) -> FloatArray:
    """Log probabilities (n, K) of the samples at some places, by a fit to those at others."""
    found = np.full((len(judged), num_classes), np.log(FLOOR))
    scaler = StandardScaler().fit(features[fit])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of probabilities do not matter
        head = LogisticRegression(C=penalty, max_iter=200)
        head.fit(scaler.transform(features[fit]), labels[fit], sample_weight=_weights(labels[fit]))
    probabilities = head.predict_proba(scaler.transform(features[judged]))
    found[:, head.classes_] = np.log(np.maximum(probabilities, FLOOR))
    return found
