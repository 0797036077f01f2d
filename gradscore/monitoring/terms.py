"""What is looked at of a window as a whole: where its scores lie, and over how few classes its predictions are spread.

A network that images are too hard for collapses onto a few classes, while its scores stay good: so the shares of the
predicted classes are compared with those of the calibration samples, and so are the nuclear norm of the predictions
and the mean of the penultimate features, from which that of calibration samples with the same predictions is taken.

Terms that are not linear would be larger for small windows, by the noise of so many samples; that is taken off.

Source: Garg et al. 2022, "Leveraging unlabeled data to predict out-of-distribution performance", for the threshold of
the confidence; Deng et al. 2023, "Confidence and dispersity speak: characterising prediction matrix for unsupervised
accuracy estimation", for the nuclear norm. Here it is that of the confidences at the predicted classes alone, whose
columns are orthogonal, so that sums over the samples of each class are enough for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import expit, xlogy

from ..deployment import CLASS, CONFIDENCE, FEATURE, Reference, WatchedSet
from ..system import FloatArray, IntArray
from .scaled import Scaled, near, table_of
from .sums import Means, Sums

DIRECTIONS = 16
"""Directions of the penultimate features that are looked at, those in which calibration samples differ most."""

RARE = 0.2
"""Shares of classes are compared as if each were larger by this part of an even share: rare ones say little."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is looked at.

    Attributes:
        scores: the scale of the scores and the confidence of the calibration samples.
        features: names of the penultimate features; none where they are not recorded.
        confident: the log-odds of the confidence above which as many calibration samples are as are right.
        centres: (K, f) means of the features by predicted class.
        directions: (f, r) from features to what is looked at, of variance 1 around the centres.
        usual: the means over the calibration samples.
    """

    scores: Scaled
    features: Sequence[str]
    confident: float
    centres: FloatArray
    directions: FloatArray
    usual: Means

    @classmethod
    def of(cls, reference: Reference) -> Self:
        """What is looked at with these calibration samples."""
        known = reference.calibration
        names = sorted(name for name in known.columns if name == CONFIDENCE or name.startswith("score_"))
        features = sorted(name for name in known.columns if name.startswith(FEATURE))
        found = table_of(known.columns, features)
        centres = _centres(found, _classes(known.columns), reference.classes)
        usual = np.full(reference.classes, np.nan)
        terms = cls(
            scores=Scaled.by(known.columns, names),
            features=features,
            confident=float(np.quantile(known.columns[CONFIDENCE], 1 - known.right.mean())),
            centres=centres,
            directions=_directions(found - centres[_classes(known.columns)]),
            usual=Means(values=usual, classes=usual, certain=usual, samples=np.nan),
        )
        return replace(terms, usual=terms.means(known, np.full(len(known.right), 1 / len(known.right))))

    @property
    def none(self) -> Sums:
        """Sums of no sample."""
        return Sums.of_none(3 * len(self.scores.names) + 1 + 2 * self.directions.shape[1], len(self.centres))

    def added(self, sums: Sums, columns: Mapping[str, FloatArray]) -> Sums:
        """Sums with more samples, given by what is watched of them (n,), by name."""
        return sums.and_of(self._values(columns), _classes(columns), expit(columns[CONFIDENCE]))

    def means(self, known: WatchedSet, weights: FloatArray) -> Means:
        """Means over samples with weights (n,) that add up to 1."""
        return Means.weighted(
            self._values(known.columns),
            _classes(known.columns),
            expit(known.columns[CONFIDENCE]),
            weights=weights,
            classes=len(self.centres),
        )

    def at(self, means: Means) -> FloatArray:
        """(t,) terms of a window."""
        directions = self.directions.shape[1]
        plain, moved, squares = np.split(
            means.values, [-2 * directions or len(means.values), -directions or len(means.values)]
        )
        shares, usual = means.classes, self.usual.classes
        noise = shares * (1 - shares) / means.samples + usual * (1 - usual) / self.usual.samples
        distance = (((shares - usual) ** 2 - noise) / (usual + RARE / len(usual))).sum()
        spread = (squares - moved**2) / means.samples
        return np.concatenate(
            [
                plain,
                [
                    np.sqrt(max(0.0, float(distance))),
                    -xlogy(shares, shares).sum() + (len(shares) - 1) / (2 * means.samples),
                    np.sqrt(means.certain).sum() / np.sqrt(len(shares)),
                ],
                np.sqrt([max(0.0, float((moved**2 - spread).mean()))] if directions else []),
            ]
        )

    def _values(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n, d) what is summed of each sample."""
        scaled, chances = self.scores.of(columns), expit(table_of(columns, self.scores.names))
        confident = (columns[CONFIDENCE] >= self.confident)[:, None].astype(np.float64)
        around = table_of(columns, self.features) - self.centres[_classes(columns)]
        moved = near(around @ self.directions)
        return np.hstack([scaled, scaled**2, chances, confident, moved, moved**2])


def _classes(columns: Mapping[str, FloatArray]) -> IntArray:
    return columns[CLASS].astype(np.int64)


def _centres(features: FloatArray, predicted: IntArray, classes: int) -> FloatArray:
    """Means by predicted class, that of all samples for classes that are never predicted."""
    sums = np.zeros((classes, features.shape[1]))
    np.add.at(sums, predicted, features)
    counts = np.bincount(predicted, minlength=classes)[:, None]
    return np.where(counts > 0, sums / np.maximum(counts, 1), features.mean(axis=0))


def _directions(around: FloatArray) -> FloatArray:
    """The directions in which samples (n, f) differ most, scaled to a variance of 1."""
    if not around.shape[1]:
        return np.empty((0, 0))
    variances, found = np.linalg.eigh(around.T @ around / len(around))
    kept = np.flatnonzero(variances > 1e-9 * max(float(variances[-1]), 1e-12))[-DIRECTIONS:]
    return np.asarray(found[:, kept] / np.sqrt(variances[kept]))
