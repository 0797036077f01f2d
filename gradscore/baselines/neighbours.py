"""The nearest neighbours of samples in a bank of in-distribution ones, by penultimate features of unit length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import EvaluationError
from ..system import BoolArray, FloatArray, IntArray
from .formulas import energy, unit_length

NEAREST = 50
"""Neighbours of any class that are looked for: the k of Sun, Ming, Zhu and Li (2022) for CIFAR-10."""

NEAREST_OF_CLASS = 10
"""Neighbours of the predicted class that are looked for."""

GUIDES = 10
"""Samples of the bank that guide the energy in NNGuide: the k of its authors' code."""

FARTHEST = 2.0
"""Distance of opposite features, which stands where a class has no sample in the bank."""

_PAIRS = 2**23
"""Pairs of a sample and one of the bank that are looked at together at most: 64 MB."""

_TOGETHER = 64
"""Samples that are looked at together: of a bank of ten thousand, pairs stay in the cache. Of wide features it is as
many as there are features, since the bank is made float64 each time."""

_ROWS = 4096
"""Samples of the bank that are made float64 at a time."""

_EXACT = 16
"""Samples of which the features of all neighbours are held at a time."""

_GROUP = 16
"""Pairs of which the nearest is looked at first."""

_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The neighbours of N samples.

    Attributes:
        distances: (N, k) float64 Euclidean distances between features of unit length, nearest first; k is `NEAREST`, or
            the size of a smaller bank.
        places: (N, k) int64 places in the bank.
        of_class: (N, `NEAREST_OF_CLASS`) distances to those of the predicted class.
        guidance: (N,) mean over the bank of the `GUIDES` largest products of cosine and minus the energy, 0 where there
            is nothing to be near to; None where the bank has no logits.
    """

    distances: FloatArray
    places: IntArray
    of_class: FloatArray
    guidance: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class Bank:
    """In-distribution samples to compare others with.

    Attributes:
        features: (M, D) float32, of unit length.
        classes: (M,) int64.
        content: (M,) hashes of their content, None if unknown.
        energies: (M,) float64, None if unknown.
    """

    features: NDArray[np.float32]
    classes: IntArray
    content: NDArray[np.str_] | None = None
    energies: FloatArray | None = None

    @classmethod
    def of(
        cls,
        penultimate: FloatArray,
        classes: IntArray,
        content: NDArray[np.str_] | None,
        logits: FloatArray | None = None,
    ) -> Bank:
        """The bank of samples with these penultimate features (M, D) and, for NNGuide, logits (M, K)."""
        if len(penultimate) < 2:
            raise too_few(penultimate)
        energies = None if logits is None else energy(logits)
        return cls(features=unit_length(penultimate), classes=classes, content=content, energies=energies)

    def __len__(self) -> int:
        """M, the number of samples in the bank."""
        return len(self.features)

    def classes_of(self, content: NDArray[np.str_] | None) -> IntArray | None:
        """Places (N,) of the classes of samples with this content, in ascending order; -1 for those not in the bank.

        None where none of them is.
        """
        if content is None or self.content is None:
            return None
        hashes, first = np.unique(self.content, return_index=True)
        places = np.minimum(np.searchsorted(hashes, content), len(hashes) - 1)
        there = hashes[places] == content
        numbered = np.unique(self.classes, return_inverse=True)[1]
        return np.where(there, numbered[first[places]], -1) if there.any() else None

    def neighbours(
        self, penultimate: FloatArray, predictions: IntArray, content: NDArray[np.str_] | None
    ) -> Neighbours:
        """The nearest of the bank, exactly, in blocks; no sample is its own neighbour.

        What a sample gets does not depend on those beside it, but for rounding where neighbours are all but copies of
        it. Where copies of it are left out of a small bank, its farthest neighbour stands for those that are missing,
        and `FARTHEST` where nothing is left.

        Args:
            penultimate: (N, D).
            predictions: (N,) predicted classes.
            content: (N,) hashes of the samples' content, None if unknown.
        """
        queries = unit_length(penultimate)
        contents = None
        if content is not None and self.content is not None and np.isin(content, self.content).any():
            numbers = np.unique(np.concatenate([content, self.content]), return_inverse=True)[1]
            contents = numbers[: len(content)], numbers[len(content) :]
        distances, places, guidance = self.nearest(queries, contents, NEAREST)
        of_class = np.full((len(queries), NEAREST_OF_CLASS), FARTHEST)
        for label in np.unique(predictions):
            rows, members = np.flatnonzero(predictions == label), np.flatnonzero(self.classes == label)
            if len(members):
                theirs = None if contents is None else (contents[0][rows], contents[1][members])
                of_label = Bank(features=self.features[members], classes=self.classes[members])
                found, _, _ = of_label.nearest(queries[rows], theirs, NEAREST_OF_CLASS)
                of_class[rows] = found[:, np.minimum(np.arange(NEAREST_OF_CLASS), len(members) - 1)]
        return Neighbours(
            distances=distances,
            places=places,
            of_class=of_class,
            guidance=None if self.energies is None else guidance,
        )

    def nearest(
        self, queries: NDArray[np.float32], contents: tuple[IntArray, IntArray] | None, count: int
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """Distances to the nearest and their places, (N, `count` or less), and guidance (N,) where there are energies.

        Products of matrices say what is near. Their last bits depend on the other queries, so what is near is computed
        once more, sample by sample. In float32 they would not tell apart what is closer than 0.01, as features that
        are far from the origin are.

        Args:
            queries: (N, D), of unit length as those of the bank, or not as these.
            contents: (N,) numbers of theirs, and (M,) those of the bank; None if no sample is in both.
            count: how many are looked for.
        """
        width = min(count, len(self))
        step = max(1, min(max(_TOGETHER, queries.shape[1]), _PAIRS // len(self)))
        # New memory for each block takes its time.
        space = torch.empty(step, len(self), dtype=torch.float64, device="cpu")
        parts = [(np.empty((0, width)), np.empty((0, width), dtype=np.int64), np.empty(0))]
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            copies = None if contents is None else contents[0][start : start + step, None] == contents[1]
            found, wide = space[: len(block)], torch.from_numpy(block.astype(np.float64))
            for first in range(0, len(self), _ROWS):
                rows = slice(first, first + _ROWS)
                part = torch.from_numpy(self.features[rows].astype(np.float64))
                # Squared distances less the square of the query, which is the same for all.
                torch.addmm(self._squares[rows], wide, part.T, alpha=-2, out=found[:, rows])
            distances, places = _smallest(found.numpy(), width, self._distances, block, copies)
            guidance = np.empty(0)
            if self.energies is not None:
                found.sub_(self._squares).mul_(self._energies)
                smallest, _ = _smallest(found.numpy(), min(GUIDES, len(self)), self._products, block, copies)
                guidance = np.where(np.isinf(smallest), 0.0, -smallest).mean(axis=1)
            parts.append((np.where(np.isinf(distances), FARTHEST, distances), places, guidance))
        distances, places, guidance = (np.concatenate(each) for each in zip(*parts, strict=True))
        return distances, places, guidance

    def _distances(self, queries: NDArray[np.float32], near: IntArray) -> FloatArray:
        """Distances (n, k) of queries (n, D) from samples at places (n, k)."""
        offsets = self.features[near].astype(np.float64) - queries[:, None]
        return np.asarray(np.sqrt(np.square(offsets).sum(axis=2)))

    def _products(self, queries: NDArray[np.float32], near: IntArray) -> FloatArray:
        """Cosines times energies, likewise."""
        assert self.energies is not None, "asked for with energies alone"
        return np.asarray((self.features[near] * self.energies[near][..., None] * queries[:, None]).sum(axis=2))

    @cached_property
    def _squares(self) -> Tensor:
        """(M,) squared lengths of the features: one, but for rounding and for features of zeros."""
        return torch.from_numpy(np.einsum("md,md->m", self.features, self.features, dtype=np.float64))

    @cached_property
    def _energies(self) -> Tensor:
        """(M,) energies over -2, which make products of the squared distances less their squares."""
        return torch.from_numpy(np.asarray(self.energies)) / -2


def too_few(features: FloatArray) -> EvaluationError:
    """The error for a bank, or a baseline's samples, of fewer than two."""
    return EvaluationError(f"baselines: wanted at least 2 in-distribution samples to fit on, got {len(features)}")


def _smallest(
    rough: FloatArray,
    count: int,
    exactly: Callable[[NDArray[np.float32], IntArray], FloatArray],
    queries: NDArray[np.float32],
    copies: BoolArray | None,
) -> tuple[FloatArray, IntArray]:
    """The smallest `count` values of each of n rows, ascending, and their places, (n, count) both.

    The last one stands in places that are left; infinite where a row has none.

    Args:
        rough: (n, M) the values, but for rounding; `count` is at most M.
        count: how many are looked for.
        exactly: from some queries (m, D) and places (m, k) to the values there.
        queries: (n, D).
        copies: (n, M) where nothing is to be found.
    """
    if copies is not None:
        rough[copies] = np.inf
    places = _lowest(rough, count)
    some = [slice(start, start + _EXACT) for start in range(0, len(places), _EXACT)]
    values = np.concatenate([exactly(queries[rows], places[rows]) for rows in some])
    values[np.isinf(_at(rough, places))] = np.inf
    order = np.lexsort((places, values), axis=1)
    there = np.isfinite(values).sum(axis=1, keepdims=True)
    order = _at(order, np.clip(there - 1, 0, np.arange(count)))
    return _at(values, order), _at(places, order)


def _lowest(values: FloatArray, count: int) -> IntArray:
    """The places (n, count) of the lowest values of each row (n, M), in any order.

    They are in those groups whose lowest values are the lowest.
    """
    groups, rest = divmod(values.shape[1], _GROUP)
    if groups <= count:
        return np.argpartition(values, count - 1, axis=1)[:, :count]
    lowest = values[:, rest:].reshape(len(values), _GROUP, groups).min(axis=1)
    of_groups = np.argpartition(lowest, count - 1, axis=1)[:, :count]
    places = (rest + of_groups[:, None] + groups * np.arange(_GROUP)[:, None]).reshape(len(values), -1)
    places = np.hstack([np.broadcast_to(np.arange(rest), (len(values), rest)), places])
    found = np.argpartition(_at(values, places), count - 1, axis=1)[:, :count]
    return _at(places, found)


def _at(values: NDArray[_Number], places: IntArray) -> NDArray[_Number]:
    """The values (n, k) of rows (n, M) at places (n, k): `np.take_along_axis` in half the time."""
    found: NDArray[_Number] = np.take(values, places + values.shape[1] * np.arange(len(values))[:, None])
    return found
