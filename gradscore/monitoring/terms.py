"""What is looked at of a window as a whole: where its scores lie, and over how few classes its predictions are spread.

A network that images are too hard for collapses onto a few classes, while its scores stay good: so the shares of the
predicted classes are compared with those of the calibration samples, and so are the nuclear norm of the predictions
and the mean of the penultimate features, from which that of calibration samples with the same predictions is taken.
Sums over the samples are enough for all of these, and are all that is kept of a window.

Terms that are not linear would be larger for small windows, by the noise of so many samples; that is taken off.

Source: Garg et al. 2022, "Leveraging unlabeled data to predict out-of-distribution performance", for the threshold of
the confidence; Deng et al. 2023, "Confidence and dispersity speak: characterising prediction matrix for unsupervised
accuracy estimation", for the nuclear norm. Here it is that of the confidences at the predicted classes alone, whose
columns are orthogonal, so that sums over the samples of each class are enough for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from pydantic import PlainSerializer, PlainValidator
from scipy.special import expit, xlogy

from ..deployment import CLASS, CONFIDENCE, FEATURE, KnownSet, KnownSets
from ..system import FloatArray, IntArray

FARTHEST = 8.0
"""Standard deviations of the known samples beyond which a value counts as this far."""

DIRECTIONS = 16
"""Directions of the penultimate features that are looked at, those in which calibration samples differ most."""

RARE = 0.2
"""Shares of classes are compared as if each were larger by this part of an even share: rare ones say little."""


def _plain(values: FloatArray) -> list[Any]:
    """Numbers of JSON, and the texts `inf` and `-inf`, which JSON has no numbers for."""
    return [str(each) if np.isinf(each) else each for each in values.tolist()]


Floats = Annotated[
    FloatArray, PlainValidator(lambda values: np.array(values, dtype=np.float64)), PlainSerializer(_plain)
]
Counts = Annotated[
    IntArray,
    PlainValidator(lambda values: np.array(values, dtype=np.int64)),
    PlainSerializer(lambda each: each.tolist()),
]
"""Arrays as the state of a monitor stores them."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A scale for some of what is watched: standard deviations of known samples from their mean.

    Attributes:
        names: of what is watched.
        middle: (m,) means over the known samples.
        width: (m,) standard deviations there, 1 for constants.
    """

    names: Sequence[str]
    middle: FloatArray
    width: FloatArray

    @classmethod
    def by(cls, columns: Mapping[str, FloatArray], names: Sequence[str]) -> Self:
        """The scale of known samples, given by what is watched of them (n,), by name."""
        table = _table(columns, names)
        width = table.std(axis=0)
        return cls(names=names, middle=table.mean(axis=0), width=np.where(width > 0, width, 1.0))

    def of(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n, m) of other samples, at most `FARTHEST` from 0."""
        return np.clip((_table(columns, self.names) - self.middle) / self.width, -FARTHEST, FARTHEST)


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
    values: Floats
    classes: Floats
    certain: Floats

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
    def mixed(cls, parts: Sequence[tuple[float, Self]]) -> Self:
        """Of samples of which these shares, which add up to 1, come from these sets."""
        return cls(
            values=np.sum([share * each.values for share, each in parts], axis=0),
            classes=np.sum([share * each.classes for share, each in parts], axis=0),
            certain=np.sum([share * each.certain for share, each in parts], axis=0),
            samples=float(1 / sum(share**2 / each.samples for share, each in parts)),
        )


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
    def of(cls, known_sets: KnownSets) -> Self:
        """What is looked at with these calibration samples."""
        known = known_sets.calibration
        names = sorted(name for name in known.columns if name == CONFIDENCE or name.startswith("score_"))
        features = sorted(name for name in known.columns if name.startswith(FEATURE))
        found = _table(known.columns, features)
        centres = _centres(found, _classes(known.columns), known_sets.classes)
        usual = np.full(known_sets.classes, np.nan)
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
        values, classes = 3 * len(self.scores.names) + 1 + 2 * self.directions.shape[1], len(self.centres)
        return Sums(samples=0, values=np.zeros(values), classes=np.zeros(classes), certain=np.zeros(classes))

    def added(self, sums: Sums, columns: Mapping[str, FloatArray]) -> Sums:
        """Sums with more samples, given by what is watched of them (n,), by name."""
        values, predicted = self._values(columns), _classes(columns)
        classes, certain = sums.classes.copy(), sums.certain.copy()
        np.add.at(classes, predicted, 1.0)
        np.add.at(certain, predicted, expit(columns[CONFIDENCE]) ** 2)
        # Sums over parts in order, so that their rounding does not depend on where a part ends.
        total = np.add.accumulate(np.vstack([sums.values, values]), axis=0)[-1]
        return Sums(samples=sums.samples + len(values), values=total, classes=classes, certain=certain)

    def means(self, known: KnownSet, weights: FloatArray) -> Means:
        """Means over samples with weights (n,) that add up to 1."""
        predicted, certain = _classes(known.columns), weights * expit(known.columns[CONFIDENCE]) ** 2
        classes = len(self.centres)
        return Means(
            values=weights @ self._values(known.columns),
            classes=np.asarray(np.bincount(predicted, weights, minlength=classes), dtype=np.float64),
            certain=np.asarray(np.bincount(predicted, certain, minlength=classes), dtype=np.float64),
            samples=float(1 / (weights**2).sum()),
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
        noise_of_moved = (squares - moved**2) / means.samples
        return np.concatenate(
            [
                plain,
                [
                    np.sqrt(max(0.0, float(distance))),
                    -xlogy(shares, shares).sum() + (len(shares) - 1) / (2 * means.samples),
                    np.sqrt(means.certain).sum() / np.sqrt(len(shares)),
                ],
                np.sqrt([max(0.0, float((moved**2 - noise_of_moved).mean()))] if directions else []),
            ]
        )

    def _values(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n, d) what is summed of each sample."""
        scaled, chances = self.scores.of(columns), expit(_table(columns, self.scores.names))
        confident = (columns[CONFIDENCE] >= self.confident)[:, None].astype(np.float64)
        around = _table(columns, self.features) - self.centres[_classes(columns)]
        moved = np.clip(around @ self.directions, -FARTHEST, FARTHEST)
        return np.hstack([scaled, scaled**2, chances, confident, moved, moved**2])


def _table(columns: Mapping[str, FloatArray], names: Sequence[str]) -> FloatArray:
    """(n, m) the columns of these names beside each other; (n, 0) without a name."""
    return np.stack([columns[name] for name in names], axis=1) if names else np.empty((len(columns[CONFIDENCE]), 0))


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
