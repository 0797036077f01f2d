"""Sums over the samples of a window: all that is kept of them, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..system import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over samples, in order: in one part or in several, they are the same but for rounding of the features.

    Attributes:
        samples: how many.
        values: (d,) of values.
        classes: (K,) of samples by predicted class.
        certain: (K,) of the squared confidence by predicted class.
    """

    samples: int
    values: FloatArray
    classes: FloatArray
    certain: FloatArray

    @classmethod
    def of_none(cls, values: int, classes: int) -> Self:
        """Of no sample."""
        return cls(samples=0, values=np.zeros(values), classes=np.zeros(classes), certain=np.zeros(classes))

    def and_of(self, values: FloatArray, predicted: IntArray, confidence: FloatArray) -> Sums:
        """With more samples.

        Args:
            values: (n, d).
            predicted: (n,) classes.
            confidence: (n,) largest softmax probabilities.
        """
        classes, certain = self.classes.copy(), self.certain.copy()
        np.add.at(classes, predicted, 1.0)
        np.add.at(certain, predicted, confidence**2)
        # Sums over parts in order, so that their rounding does not depend on where a part ends.
        total = np.add.accumulate(np.vstack([self.values, values]), axis=0)[-1]
        return Sums(samples=self.samples + len(values), values=total, classes=classes, certain=certain)

    @property
    def means(self) -> Means:
        """Over the samples, of which there is at least one."""
        return Means(
            values=self.values / self.samples,
            classes=self.classes / self.samples,
            certain=self.certain / self.samples,
            samples=float(self.samples),
        )


@dataclass(frozen=True, kw_only=True)
class Means:
    """Means over samples, of which some may count more than others.

    Attributes:
        values: (d,) of values.
        classes: (K,) shares of the predicted classes.
        certain: (K,) of the squared confidence, 0 for samples of other predicted classes.
        samples: how many samples of equal weight have as much noise.
    """

    values: FloatArray
    classes: FloatArray
    certain: FloatArray
    samples: float

    @classmethod
    def weighted(
        cls, values: FloatArray, predicted: IntArray, confidence: FloatArray, *, weights: FloatArray, classes: int
    ) -> Self:
        """Of samples with weights (n,) that add up to 1, and so many classes; for the rest see `Sums.and_of`."""
        return cls(
            values=weights @ values,
            classes=np.asarray(np.bincount(predicted, weights, minlength=classes), dtype=np.float64),
            certain=np.asarray(np.bincount(predicted, weights * confidence**2, minlength=classes), dtype=np.float64),
            samples=float(1 / (weights**2).sum()),
        )

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Self]]) -> Self:
        """Of samples of which these shares, which add up to 1, come from these sets."""
        return cls(
            values=np.sum([share * each.values for share, each in parts], axis=0),
            classes=np.sum([share * each.classes for share, each in parts], axis=0),
            certain=np.sum([share * each.certain for share, each in parts], axis=0),
            samples=float(1 / sum(share**2 / each.samples for share, each in parts)),
        )
