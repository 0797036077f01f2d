"""Published OOD scores of penultimate features, the inputs of the last layer, with the settings of their papers.

They compare a sample with a bank of ordinary ones, by distances to its nearest neighbours or to class means, or change
what enters the last layer.

The features are those before the last layer, so that ReAct, ASH and SCALE act on the pooled features, as their papers
and OpenOOD do for residual networks; ASH and SCALE presume features that are not negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.neighbors import NearestNeighbors

from ..errors import EvaluationError
from ..models import Head
from ..system import FloatArray, IntArray, product
from .baseline import Arrays, Baseline, Neighbours, Ordinary, Samples, penultimate_of
from .logits import energy

CLIPPED_ABOVE = 0.9
"""Quantile of the features at which ReAct clips."""

PRUNED = 0.65
"""Share of the features that ASH prunes, and that SCALE leaves out of its second sum."""

_NO_VARIANCE = 1e-15
"""Axes with less of the largest variance have none, as `numpy.linalg.pinv` has it."""

_STEEPEST = 30.0
"""Bound of the exponent of `_sharpening`; features that are not negative keep it between 1 and 3 in practice."""

NEAREST = 50
"""Neighbours of any class that are looked for: the k of Sun, Ming, Zhu and Li (2022) for CIFAR-10."""

NEAREST_OF_CLASS = 10
"""Neighbours of the predicted class that are looked for."""

FARTHEST = 2.0
"""Distance of opposite features, which stands where a class has no sample in the bank."""

Fit = Callable[[FloatArray, Ordinary, Head], Arrays]
"""From features (M, D), the ordinary samples they are of and the last layer to what is learned."""

Of = Callable[[FloatArray, Samples, Arrays], FloatArray]
"""From features (N, D), the samples they are of and what was learned to scores (N,)."""


def of_penultimate(fit: Fit, of: Of, *, summary: str, source: str, is_input: bool = False) -> Baseline:
    """A score of penultimate features.

    Args:
        fit: learns from ordinary samples.
        of: scores others.
        summary: see `Baseline`.
        source: see `Baseline`.
        is_input: see `Baseline`.
    """

    def fitted(ordinary: Ordinary) -> Arrays:
        if ordinary.head is None:
            raise EvaluationError("scores: penultimate features without the last layer that takes them")
        features = penultimate_of(ordinary.samples, width=ordinary.head.weight.shape[1])
        if len(features) < 2:
            raise EvaluationError(f"scores: wanted at least 2 in-distribution samples to fit on, got {len(features)}")
        return {
            name: np.asarray(values, dtype=np.float64)
            for name, values in fit(features, ordinary, ordinary.head).items()
        }

    def score(samples: Samples, learned: Arrays) -> FloatArray:
        return np.asarray(of(penultimate_of(samples), samples, learned), dtype=np.float64)

    return Baseline(fit=fitted, of=score, needs="penultimate", summary=summary, source=source, is_input=is_input)


def last_layer(_features: FloatArray, _ordinary: Ordinary, head: Head) -> Arrays:
    """What scores that ask only for the last layer learn: its weight (K, D) and bias (K,)."""
    return {"weight": head.weight, "bias": head.bias}


def class_means(features: FloatArray, ordinary: Ordinary, _head: Head) -> Arrays:
    """The `whitening` (D, D) of the covariance that classes share, and means of the classes (C, D) in that frame."""
    _, numbered = np.unique(ordinary.classes, return_inverse=True)
    counts = np.bincount(numbered)
    means = np.stack([features[numbered == place].mean(axis=0) for place in range(len(counts))])
    whitening = _whitening(features - means[numbered])
    return {"means": product(means, whitening), "whitening": whitening}


def relative_means(features: FloatArray, ordinary: Ordinary, head: Head) -> Arrays:
    """As `class_means`, with the mean (1, D) and the whitening (D, D) of all."""
    mean = features.mean(axis=0, keepdims=True)
    whitening = _whitening(features - mean)
    return {
        **class_means(features, ordinary, head),
        "mean_of_all": product(mean, whitening),
        "whitening_of_all": whitening,
    }


def mahalanobis(features: FloatArray, _samples: Samples, learned: Arrays) -> FloatArray:
    """Squared distance to the nearest class mean, shared covariance. Source: Lee, Lee, Lee, Shin 2018."""
    return _squared_to_nearest(features, learned["whitening"], learned["means"])


def relative_mahalanobis(features: FloatArray, samples: Samples, learned: Arrays) -> FloatArray:
    """The same less the distance to the mean of all. Source: Ren, Fort, Liu and others 2021."""
    of_all = _squared_to_nearest(features, learned["whitening_of_all"], learned["mean_of_all"])
    return mahalanobis(features, samples, learned) - of_all


def residual_space(features: FloatArray, _ordinary: Ordinary, head: Head) -> Arrays:
    """Origin (D,), axes (D, D - d) outside the principal subspace, and the scale of norms against the largest logit."""
    origin = -np.linalg.pinv(head.weight) @ head.bias
    offsets = features - origin
    _, axes = np.linalg.eigh(offsets.T @ offsets / len(offsets))  # in ascending order
    axes = axes[:, : features.shape[1] - principal_dimensions(features.shape[1])]
    norms = np.linalg.norm(offsets @ axes, axis=1)
    largest = (features @ head.weight.T + head.bias).max(axis=1)
    scale = largest.mean() / norms.mean() if norms.any() else 0.0
    return {"origin": origin, "axes": axes, "scale": np.array([scale])}


def vim(features: FloatArray, samples: Samples, learned: Arrays) -> FloatArray:
    """Norm outside the principal subspace against energy. Source: Wang, Li, Feng, Zhang 2022."""
    norms = np.linalg.norm(product(features - learned["origin"], learned["axes"]), axis=1)
    return np.asarray(learned["scale"][0] * norms + energy(samples.logits))


def clip(features: FloatArray, ordinary: Ordinary, head: Head) -> Arrays:
    """The last layer, and the value (1,) at which features are clipped."""
    return {**last_layer(features, ordinary, head), "limit": np.array([np.quantile(features, CLIPPED_ABOVE)])}


def react(features: FloatArray, _samples: Samples, learned: Arrays) -> FloatArray:
    """Energy after clipping features at their 90th percentile. Source: Sun, Guo, Li 2021."""
    return _energy_of(np.minimum(features, learned["limit"][0]), learned)


def ash(features: FloatArray, _samples: Samples, learned: Arrays) -> FloatArray:
    """Energy with 65 % of the features pruned and the rest sharpened (ASH-S). Source: Djurisic and others 2023."""
    kept = _largest(features)
    return _energy_of(kept * _sharpening(features, kept), learned)


def scale(features: FloatArray, _samples: Samples, learned: Arrays) -> FloatArray:
    """Energy with features scaled by how much of them the largest 35 % make up. Source: Xu, Chen, Franchi, Yao 2024."""
    return _energy_of(features * _sharpening(features, _largest(features)), learned)


def gradnorm(features: FloatArray, samples: Samples, _learned: Arrays) -> FloatArray:
    """Minus the L1 norm of the last weight's gradient with a uniform label. Source: Huang, Geng, Li 2021."""
    # The gradient is the outer product of p - 1/K and the features.
    p = softmax(samples.logits, axis=1)
    return np.asarray(-np.abs(p - 1 / p.shape[1]).sum(axis=1) * np.abs(features).sum(axis=1))


def norm(features: FloatArray, _samples: Samples, _learned: Arrays) -> FloatArray:
    """Minus the logarithm of the L2 norm of the features. Source: Yu and others 2023 (feature norms)."""
    return np.asarray(-np.log(np.maximum(np.linalg.norm(features, axis=1), np.finfo(np.float64).tiny)))


def principal_dimensions(width: int) -> int:
    """Dimensions of the principal subspace of ViM: as its authors choose for wide features, else half of them."""
    return 1000 if width >= 2048 else 512 if width >= 768 else max(1, width // 2)


def _whitening(offsets: FloatArray) -> FloatArray:
    """(D, D) whose product with its transpose is the pseudo-inverse of the covariance of offsets (N, D)."""
    variances, axes = np.linalg.eigh(offsets.T @ offsets / len(offsets))
    there = variances > _NO_VARIANCE * variances.max()
    return np.asarray(axes * np.where(there, 1 / np.sqrt(np.where(there, variances, 1.0)), 0.0))


def _squared_to_nearest(features: FloatArray, whitening: FloatArray, means: FloatArray) -> FloatArray:
    """Squared distances (N,) of features (N, D) to the nearest of whitened means (C, D).

    Whitened once, a sample costs D^2 + C D products; C times D^2 with an inverse covariance.
    """
    whitened = product(features, whitening)
    return np.asarray(np.min([np.square(whitened - mean).sum(axis=1) for mean in means], axis=0))


def _energy_of(features: FloatArray, learned: Arrays) -> FloatArray:
    return energy(product(features, learned["weight"].T) + learned["bias"])


def _largest(features: FloatArray) -> FloatArray:
    """The largest 35 % of the features of each sample, zeros in the place of the others."""
    width = features.shape[1]
    kept = width - round(width * PRUNED)
    places = np.argpartition(features, width - kept, axis=1)[:, width - kept :]
    largest = np.zeros_like(features)
    np.put_along_axis(largest, places, np.take_along_axis(features, places, axis=1), axis=1)
    return largest


def _sharpening(features: FloatArray, kept: FloatArray) -> FloatArray:
    """exp(sum of all / sum of those kept), (N, 1)."""
    whole, part = features.sum(axis=1, keepdims=True), kept.sum(axis=1, keepdims=True)
    ratio = np.divide(whole, part, out=np.ones_like(whole), where=part != 0)
    return np.asarray(np.exp(np.clip(ratio, -_STEEPEST, _STEEPEST)))


def feature_disagreement(samples: Samples, _learned: Arrays) -> FloatArray:
    """1 - mean cosine of the penultimate features of a sample and of its augmentations."""
    own = unit_length(penultimate_of(samples)).astype(np.float64)
    cosines = [
        (own * unit_length(penultimate_of(augmentation))).sum(axis=1) for augmentation in samples.augmentations.values()
    ]
    return np.asarray(1 - np.mean(cosines, axis=0))


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Ordinary samples to compare others with.

    Attributes:
        features: (M, D) float32, of unit length.
        classes: (M,) int64.
        content: (M,) hashes of their content, None if unknown.
    """

    features: NDArray[np.float32]
    classes: IntArray
    content: NDArray[np.str_] | None = None

    @classmethod
    def of(cls, penultimate: FloatArray, classes: IntArray, content: NDArray[np.str_] | None) -> Bank:
        """The bank of samples with these penultimate features (M, D)."""
        if len(penultimate) < 2:
            raise EvaluationError(
                f"scores: wanted at least 2 in-distribution samples to fit on, got {len(penultimate)}"
            )
        return cls(features=unit_length(penultimate), classes=classes, content=content)

    def __len__(self) -> int:
        """M."""
        return len(self.features)

    def neighbours(
        self, penultimate: FloatArray, predictions: IntArray, content: NDArray[np.str_] | None
    ) -> Neighbours:
        """The nearest of the bank, exactly, in blocks; no sample is its own neighbour.

        Args:
            penultimate: (N, D).
            predictions: (N,) predicted classes.
            content: (N,) hashes of the samples' content, None if unknown.
        """
        queries = unit_length(penultimate)
        known = None if content is None or self.content is None else (content, self.content)
        distances, places = _nearest(queries, self.features, known, NEAREST)
        of_class = np.full((len(queries), NEAREST_OF_CLASS), FARTHEST)
        for label in np.unique(predictions):
            rows, members = predictions == label, self.classes == label
            if members.any():
                own = None if known is None else (known[0][rows], known[1][members])
                found, _ = _nearest(queries[rows], self.features[members], own, NEAREST_OF_CLASS)
                of_class[np.flatnonzero(rows), : found.shape[1]] = found
                of_class[np.flatnonzero(rows), found.shape[1] :] = found[:, -1:]
        return Neighbours(distances=distances, places=places, of_class=of_class)


def unit_length(values: FloatArray) -> NDArray[np.float32]:
    """Rows (N, D) divided by their L2 norm; a row of zeros stays."""
    values = np.ascontiguousarray(values)  # or the order of a sum depends on the number of rows
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.where(norms > 0, norms, 1.0), dtype=np.float32)


def _nearest(
    queries: NDArray[np.float32],
    bank: NDArray[np.float32],
    content: tuple[NDArray[np.str_], NDArray[np.str_]] | None,
    count: int,
) -> tuple[FloatArray, IntArray]:
    """Distances and places (N, k) of the nearest, k being `count`, or the size of the bank if that is smaller.

    What a sample gets does not depend on those beside it: where copies of it are left out of a small bank, its farthest
    neighbour stands for those that are missing, and `FARTHEST` where nothing is left.
    """
    copies = 0 if content is None else _most_copies(*content)
    wanted, kept = min(count + copies, len(bank)), min(count, len(bank))
    search = NearestNeighbors(n_neighbors=wanted, algorithm="brute").fit(bank)
    places = search.kneighbors(queries, return_distance=False)
    distances = _distances(queries, bank, places)
    own = np.zeros(places.shape, dtype=bool)
    if content is not None and copies:
        own = content[1][places] == content[0][:, None]
    order = np.lexsort((places, distances, own), axis=1)  # those of the same content last
    others = wanted - own.sum(axis=1, keepdims=True)
    order = np.take_along_axis(order, np.clip(others - 1, 0, np.arange(kept)), axis=1)
    distances, places = (np.take_along_axis(each, order, axis=1) for each in (distances, places))
    return np.where(others > 0, distances, FARTHEST), np.asarray(places, dtype=np.int64)


def _distances(queries: NDArray[np.float32], bank: NDArray[np.float32], places: IntArray) -> FloatArray:
    """Distances (N, k) of queries (N, D) to samples of the bank at places (N, k).

    A search computes them by products, whose last bits depend on the other queries.
    """
    found = np.empty(places.shape)
    for row, near in enumerate(places):
        found[row] = np.sqrt(np.square(bank[near].astype(np.float64) - queries[row]).sum(axis=1))
    return found


def _most_copies(queries: NDArray[np.str_], bank: NDArray[np.str_]) -> int:
    """The largest number of samples of the bank that have the content of one of the queries."""
    shared = bank[np.isin(bank, queries)]
    return int(np.unique(shared, return_counts=True)[1].max(initial=0))
