"""One number of all that is watched of a sample: how much more it is like shifted images than like plain ones.

A tenth of odd samples is noticed late where each score is watched by itself. A linear discriminant of everything that
is watched, and of its squares, between plain samples of `in_dist.fit` and wrong predictions on shifted copies and OOD
samples sees most of them sooner. Nothing of the calibration samples is used, so ranks among them stay fair.

Source: Fisher 1936, "The use of multiple measurements in taxonomic problems".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..deployment import CLASS, Reference
from ..system import FloatArray
from .scaled import Scaled

NOVELTY = "novelty"
"""What its stream is called."""

SHRINKAGE = 0.05
"""Added to each variance, where those of plain samples are about 1."""


@dataclass(frozen=True, kw_only=True)
class Novelty:
    """A direction among all that is watched.

    Attributes:
        plain: the scale of all that is watched of plain samples.
        direction: (2 m,) of the values and their squares.
    """

    plain: Scaled
    direction: FloatArray

    @classmethod
    def learnt(cls, reference: Reference) -> Self | None:
        """Learns from what a bundle knows; None where no shifted copies were made, or nothing of them is wrong."""
        sets = [each for each in (*reference.shifted.values(), *reference.ood.values()) if not each.right.all()]
        if reference.plain is None or not sets:
            return None
        names = sorted(name for name in reference.plain.columns if name != CLASS)
        scale = Scaled.by(reference.plain.columns, names)
        plain = _with_squares(scale.of(reference.plain.columns))
        odd = [_with_squares(scale.of(each.columns)[~each.right]) for each in sets]
        weights = np.concatenate([np.full(len(each), 1 / len(each) / len(odd)) for each in odd])
        return cls(plain=scale, direction=discriminant(plain, np.concatenate(odd), weights))

    def of(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n,) of samples, given by what is watched of them; higher is more like shifted images."""
        # Summed row by row: a product of matrices rounds by how many rows there are.
        return np.asarray((_with_squares(self.plain.of(columns)) * self.direction).sum(axis=1))


def discriminant(plain: FloatArray, odd: FloatArray, weights: FloatArray) -> FloatArray:
    """(d,) the direction in which two sets of samples differ most against how they vary.

    Args:
        plain: (n, d).
        odd: (m, d).
        weights: (m,) of the odd ones; they add up to 1.
    """
    centre = weights @ odd
    around, calm = odd - centre, plain - plain.mean(axis=0)
    spread = 0.5 * (around.T @ (around * weights[:, None]) + calm.T @ calm / len(calm))
    return np.asarray(np.linalg.solve(spread + SHRINKAGE * np.eye(len(centre)), centre - plain.mean(axis=0)))


def _with_squares(values: FloatArray) -> FloatArray:
    return np.hstack([values, values**2])
