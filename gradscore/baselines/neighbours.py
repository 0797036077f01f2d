"""The nearest neighbours of samples in a bank of ordinary ones, by penultimate features of unit length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import EvaluationError
from ..system import FloatArray, IntArray
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
    """Ordinary samples to compare others with.

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
        """M."""
        return len(self.features)

    def classes_of(self, content: NDArray[np.str_] | None) -> IntArray | None:
        """Of samples with this content, (N,) the place of each class in ascending order, -1 for those not in the bank.

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
        own = of_bank = None
        if content is not None and self.content is not None and np.isin(content, self.content).any():
            numbers = np.unique(np.concatenate([content, self.content]), return_inverse=True)[1]
            own, of_bank = numbers[: len(content)], numbers[len(content) :]
        step = max(1, min(max(_TOGETHER, queries.shape[1]), _PAIRS // len(self)))
        space = torch.empty(2, step, len(self), dtype=torch.float64)  # new memory for each block takes its time
        parts = []
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            copies = None if own is None else torch.from_numpy(own[rows, None] == of_bank)
            parts.append(self._of_block(queries[rows], predictions[rows], copies, space))
        distances, places, of_class, guidance = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Neighbours(
            distances=distances,
            places=places,
            of_class=of_class,
            guidance=None if self.energies is None else guidance,
        )

    def _of_block(
        self, queries: NDArray[np.float32], predictions: IntArray, copies: Tensor | None, space: Tensor
    ) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
        """What `Neighbours` has of queries (n, D), without their copies (n, M), in `space` (2, n or more, M).

        No guidance without energies.

        Products of matrices say what is near. Their last bits depend on the other queries, so what is near is computed
        once more, sample by sample.
        """
        wide = torch.from_numpy(queries.astype(np.float64))
        cosines, squares = space[:, : len(queries)]
        for start in range(0, len(self), _ROWS):
            part = self.features[start : start + _ROWS].astype(np.float64)
            torch.mm(wide, torch.from_numpy(part).T, out=cosines[:, start : start + _ROWS])

        def distances_to(rows: slice, near: IntArray) -> FloatArray:
            offsets = self.features[near].astype(np.float64) - queries[rows, None]
            return np.asarray(np.sqrt(np.square(offsets).sum(axis=2)))

        torch.add(self._squares, cosines, alpha=-2, out=squares)  # and that of the query, which is the same for all
        if copies is not None:
            squares.masked_fill_(copies, torch.inf)
        distances, places = _smallest(squares, NEAREST, distances_to, width=min(NEAREST, len(self)))
        squares.masked_fill_(torch.from_numpy(predictions[:, None] != self.classes), torch.inf)
        of_class, _ = _smallest(squares, NEAREST_OF_CLASS, distances_to, width=NEAREST_OF_CLASS)
        guidance = np.empty(0)
        if self.energies is not None:
            weights = -self.energies

            def products_with(rows: slice, near: IntArray) -> FloatArray:
                return np.asarray(-(self.features[near] * weights[near][..., None] * queries[rows, None]).sum(axis=2))

            products = cosines.mul_(torch.from_numpy(self.energies.copy()))
            if copies is not None:
                products.masked_fill_(copies, torch.inf)
            smallest, _ = _smallest(products, GUIDES, products_with, width=min(GUIDES, len(self)))
            guidance = np.where(np.isinf(smallest), 0.0, -smallest).mean(axis=1)
        return _or_farthest(distances), places, _or_farthest(of_class), guidance

    @cached_property
    def _squares(self) -> Tensor:
        """(M,) squared lengths of the features: one, but for rounding and for features of zeros."""
        return torch.from_numpy(np.einsum("md,md->m", self.features, self.features, dtype=np.float64))


def too_few(features: FloatArray) -> EvaluationError:
    """The error for a bank, or a baseline's samples, of fewer than two."""
    return EvaluationError(f"baselines: wanted at least 2 in-distribution samples to fit on, got {len(features)}")


def _smallest(
    rough: Tensor, count: int, exactly: Callable[[slice, IntArray], FloatArray], *, width: int
) -> tuple[FloatArray, IntArray]:
    """The smallest `count` values of each of n rows, ascending, and their places, (n, width) both.

    The last one stands in places that are left; infinite where a row has none.

    Args:
        rough: (n, M) the values, but for rounding; infinite where nothing is to be found.
        count: how many are looked for.
        exactly: from some of the rows and places (n, k) to the values there.
        width: of the result.
    """
    about, found = _lowest(rough, min(count, rough.shape[1]))
    places = found.numpy()
    some = [slice(start, start + _EXACT) for start in range(0, len(places), _EXACT)]
    values = np.concatenate([exactly(rows, places[rows]) for rows in some])
    values[about.numpy() == np.inf] = np.inf
    order = np.lexsort((places, values), axis=1)
    there = np.isfinite(values).sum(axis=1, keepdims=True)
    order = np.take_along_axis(order, np.clip(there - 1, 0, np.arange(width)), axis=1)
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(places, order, axis=1)


def _lowest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The lowest `count` of each row (n, M), ascending, and their places: `torch.topk` in a third of the time.

    They are in those groups whose lowest values are the lowest.
    """
    groups, rest = divmod(values.shape[1], _GROUP)
    if groups <= count:
        return torch.topk(values, count, largest=False)
    grouped = values[:, rest:].reshape(len(values), _GROUP, groups)
    of_groups = torch.topk(grouped.amin(dim=1), count, largest=False, sorted=False).indices
    places = (rest + of_groups[:, None] + groups * torch.arange(_GROUP)[:, None]).flatten(1)
    places = torch.cat([torch.arange(rest).expand(len(values), rest), places], dim=1)
    lowest, found = torch.topk(values.gather(1, places), count, largest=False)
    return lowest, places.gather(1, found)


def _or_farthest(distances: FloatArray) -> FloatArray:
    return np.where(np.isinf(distances), FARTHEST, distances)
