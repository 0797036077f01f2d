"""What the network, its gradients and the neighbours of a sample say of its label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from ..baselines import Bank, Samples
from ..system import FloatArray, IntArray

NEIGHBOURS = 30
"""Nearest samples whose labels are counted."""

MOST_LOST = 0.02
"""Accuracy that an augmentation may cost the classifier; one that costs more is not looked at."""


def combined_features(samples: Samples, labels: IntArray) -> tuple[FloatArray, list[str]]:
    """What enters the last layer, averaged over sample and augmentations, and the augmentations that were left out.

    Args:
        samples: with penultimate features, and those of augmentations.
        labels: (N,) the given classes.

    Returns:
        (N, D) float64, and the names of augmentations that cost the classifier too much accuracy.
    """
    plain = _accuracy(samples.logits, labels)
    kept = {
        name: each for name, each in samples.augmentations.items() if _accuracy(each.logits, labels) > plain - MOST_LOST
    }
    looks = [samples, *kept.values()]
    features = np.mean([each.penultimate for each in looks if each.penultimate is not None], axis=0)
    return np.asarray(features, dtype=np.float64), [name for name in samples.augmentations if name not in kept]


def _accuracy(logits: FloatArray, labels: IntArray) -> float:
    return float((logits.argmax(axis=1) == labels).mean())


def of_the_network(logits: FloatArray, labels: IntArray) -> pd.DataFrame:
    """What the network itself says of the labels.

    Args:
        logits: (N, K).
        labels: (N,) the given classes.

    Returns:
        `prediction`; `loss`, the cross entropy against the label; `margin`, the largest logit of another class less
        that of the label; `el2n`, the L2 distance of the softmax from the label. The last three are higher the worse
        the label fits.

    Source: Paul, Ganguli, Dziugaite 2021, "Deep learning on a data diet", for EL2N.
    """
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    errors = softmax(logits, axis=1)
    errors[rows, labels] = 0
    errors[rows, labels] = -errors.sum(axis=1)  # one less the label's own would cancel
    return pd.DataFrame(
        {
            "prediction": logits.argmax(axis=1),
            "loss": np.logaddexp(0, logsumexp(others, axis=1) - logits[rows, labels]),
            "margin": others.max(axis=1) - logits[rows, labels],
            "el2n": np.linalg.norm(errors, axis=1),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Votes:
    """Labels of the nearest other samples.

    Attributes:
        of_label: (N,) how many of them have the sample's own label.
        of_other: (N,) how many of them have the class that is suggested.
        counted: (N,) how many there are: 30, or all others but copies if these are fewer.
    """

    of_label: IntArray
    of_other: IntArray
    counted: IntArray


def votes(bank: Bank, features: FloatArray, labels: IntArray, others: IntArray) -> Votes:
    """The labels of the nearest samples; copies of a sample are none of them.

    Args:
        bank: all samples.
        features: (N, D) of the same samples.
        labels: (N,) the given classes.
        others: (N,) the classes that are suggested.
    """
    content = bank.content
    places = bank.neighbours(features, labels, content).places[:, :NEIGHBOURS]
    # Where there are fewer, the last one stands in the places that are left.
    there = np.ones(places.shape, dtype=bool)
    there[:, 1:] = places[:, 1:] != places[:, :-1]
    if content is not None:
        there &= content[places] != content[:, None]
    near = labels[places]
    return Votes(
        of_label=(there & (near == labels[:, None])).sum(axis=1),
        of_other=(there & (near == others[:, None])).sum(axis=1),
        counted=there.sum(axis=1),
    )


def nearest_of_class(bank: Bank, place: int, label: int, count: int) -> list[int]:
    """The places of the samples of a class that are nearest to the sample at `place`, which is none of them."""
    members = np.flatnonzero(bank.classes == label)
    members = members[members != place]
    if bank.content is not None:
        members = members[bank.content[members] != bank.content[place]]
    likeness = bank.features[members] @ bank.features[place]
    return [int(members[each]) for each in np.argsort(-likeness, kind="stable")[:count]]


def labels_of_copies(content: NDArray[np.str_] | None, labels: IntArray) -> list[list[int]]:
    """For each sample the other labels that exact copies of it have."""
    if content is None:
        return [[] for _ in labels]
    given = pd.Series(labels).groupby(content).unique()
    given = given[given.map(len) > 1]
    return [
        sorted(int(each) for each in given.get(digest, ()) if each != label)
        for digest, label in zip(content, labels, strict=True)
    ]
