"""The AUROC of a score, and what it is the mean of, sample by sample, by which it and differences have a variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from ..system import BoolArray, FloatArray


def area_of(positives: FloatArray, negatives: FloatArray) -> float:
    """The chance that a positive has the higher score, a tie counting one half; exact, as pairs are counted.

    Source: Hanley and McNeil, 1982.
    """
    return area_among(positives, np.sort(negatives))


def area_among(positives: FloatArray, ordered: FloatArray) -> float:
    """`area_of` negatives that are in ascending order, as for several sets of positives."""
    twice = sum(int(np.searchsorted(ordered, positives, side=side).sum()) for side in ("left", "right"))
    return twice / (2 * len(positives) * len(ordered))


def mean_area(scores: FloatArray, target: BoolArray, sets: NDArray[np.str_]) -> float:
    """The mean of `set_areas`."""
    return float(np.mean(list(set_areas(scores, target, sets).values())))


def set_areas(scores: FloatArray, target: BoolArray, sets: NDArray[np.str_]) -> dict[str, float]:
    """The AUROC of each OOD set against all in-distribution samples, by its name.

    Args:
        scores: (N,) higher = more likely OOD.
        target: (N,) bool, True for OOD samples.
        sets: (N,) names of the sets they come from.
    """
    in_dist = np.sort(scores[~target])
    return {str(name): area_among(scores[target & (sets == name)], in_dist) for name in np.unique(sets[target])}


@dataclass(frozen=True, kw_only=True)
class Placements:
    """The parts an AUROC is the mean of, over positives or over negatives.

    Attributes:
        of_positives: (P,) share of negatives below each positive, a tie counting one half.
        of_negatives: (Q,) share of positives above each negative.
    """

    of_positives: FloatArray
    of_negatives: FloatArray

    @classmethod
    def of(cls, scores: FloatArray, positive: BoolArray) -> Placements:
        """Where samples stand among those of the other class, by finite scores (N,); both classes are there."""
        ranks = rankdata(scores)
        beaten = (ranks[positive] - rankdata(scores[positive])) / (~positive).sum()
        beating = 1.0 - (ranks[~positive] - rankdata(scores[~positive])) / positive.sum()
        return cls(of_positives=beaten, of_negatives=beating)

    def __sub__(self, other: Placements) -> Placements:
        """What the samples contribute to the difference of two AUROCs."""
        return Placements(
            of_positives=self.of_positives - other.of_positives, of_negatives=self.of_negatives - other.of_negatives
        )

    @property
    def variance(self) -> float:
        """DeLong's, of the AUROC or of the difference; wanted are two samples of either class."""
        return float(sum(each.var(ddof=1) / len(each) for each in (self.of_positives, self.of_negatives)))
