"""The nearest of a bank of ordinary samples, among penultimate features of unit length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from ..errors import EvaluationError
from ..system import FloatArray, IntArray

NEAREST = 50
"""Neighbours of any class that are looked for: the k of Sun, Ming, Zhu and Li (2022) for CIFAR-10."""

NEAREST_OF_CLASS = 10
"""Neighbours of the predicted class that are looked for."""

FARTHEST = 2.0
"""Distance of opposite features, which stands where a class has no sample in the bank."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The neighbours of N samples.

    Attributes:
        distances: (N, k) float64 Euclidean distances between features of unit length, nearest first; k is `NEAREST`, or
            the size of a smaller bank.
        places: (N, k) int64 places in the bank.
        of_class: (N, `NEAREST_OF_CLASS`) distances to those of the predicted class.
    """

    distances: FloatArray
    places: IntArray
    of_class: FloatArray


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
