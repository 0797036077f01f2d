"""The accuracy to expect of unlabelled samples, with an interval, learnt on shifts that leave the class as it is.

P(wrong) of a bundle is right on average where nothing is shifted, and too small under shift: equal scores mean more
errors there. So what is looked at is a window as a whole: means over its samples of the scores, the confidence, the
sizes of gradients, their squares, and the probabilities. A ridge regression of the log-odds of the accuracy on how far
these means moved is fitted to windows whose accuracy is known: calibration samples, mixed with shifted copies of images
and with auxiliary OOD samples in several shares.

How wrong that is of a shift that nobody has seen is seen by leaving each kind of shift, and each OOD set, out of the
fit. The interval is as wide as the errors there, which grow with the distance from the usual accuracy, and as the noise
of so many samples.

Source: Guillory et al. 2021, "Predicting with confidence on unseen distributions", and Deng and Zheng 2021, "Are labels
always necessary for classifier accuracy evaluation?", for the regression over shifted sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from scipy.special import expit, logit
from sklearn.linear_model import Ridge

from ..deployment import CONFIDENCE, Reference
from ..system import FloatArray
from .windows import FEWEST

FARTHEST = 8.0
"""Standard deviations of the calibration samples beyond which a value counts as this far."""

MIXED = (1.0, 0.75, 0.5, 0.25, 0.1)
"""Shares of a window that are shifted."""

MIXED_OOD = (0.5, 0.3, 0.2, 0.1, 0.05)
"""Shares of a window that are OOD."""

PENALTY = 1.0
EDGE = 0.02
"""Accuracies closer to 0 and 1 than this count as this close."""

NORMAL = 1.959964
"""How many standard deviations hold 95 % of normal noise."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of a window.

    Attributes:
        accuracy: share of predictions that is right; None of fewer than `FEWEST` samples.
        low: lower end of its 95 % interval; None where it cannot be known.
        high: upper end.
    """

    accuracy: float | None
    low: float | None
    high: float | None


class _Known(NamedTuple):
    """Means over the samples of a set, and its accuracy."""

    means: FloatArray
    accuracy: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class ExpectedAccuracy:
    """What a window's accuracy is expected to be.

    Attributes:
        terms: makes what is looked at of samples.
        calm: the calibration samples.
        line: from means to log-odds of the accuracy; None where no shift was learnt.
        error: standard deviation of its error on sets that were left out, as a share of `_distance`.
    """

    terms: _Terms
    calm: _Known
    line: _Line | None = None
    error: float = 0.0

    @classmethod
    def learnt(cls, reference: Reference) -> Self:
        """Learns from what a bundle knows; without shifted copies, the accuracy of calibration samples is expected."""
        terms = _Terms.of(reference)
        calm = terms.known(reference.calibration.columns, float(reference.calibration.right.mean()))
        if not reference.shifted:
            return cls(terms=terms, calm=calm)
        shifted = {
            name: terms.known(each.columns, float(each.right.mean()))
            for name, each in sorted(reference.shifted.items())
        }
        ood = {name: terms.known(each.columns, 0.0) for name, each in sorted(reference.ood.items())}
        sets = _Sets(calm, shifted, ood)
        return cls(terms=terms, calm=calm, line=_Line.fitted(sets), error=_error(sets))

    def of(self, columns: Mapping[str, FloatArray]) -> Expected:
        """What is expected of samples.

        Args:
            columns: (n,) of what is watched, by name.
        """
        samples = len(columns[CONFIDENCE])
        if samples < FEWEST:
            return Expected(accuracy=None, low=None, high=None)
        if self.line is None:
            return Expected(accuracy=self.calm.accuracy, low=None, high=None)
        accuracy = self.line.at(self.terms.means(columns))
        spread = (self.error * _distance(accuracy, self.calm.accuracy)) ** 2 + _noise(accuracy, samples)
        half = NORMAL * float(np.sqrt(spread + _noise(self.calm.accuracy, self.calm.samples)))
        return Expected(accuracy=accuracy, low=max(0.0, accuracy - half), high=min(1.0, accuracy + half))


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """What is looked at: values in standard deviations of the calibration samples, their squares, and probabilities.

    Attributes:
        names: of the columns.
        middle: mean (d,) over the calibration samples.
        width: standard deviation (d,) there, 1 for constants.
    """

    names: Sequence[str]
    middle: FloatArray
    width: FloatArray

    @classmethod
    def of(cls, reference: Reference) -> Self:
        names = sorted(reference.calibration.columns)
        table = np.stack([reference.calibration.columns[name] for name in names], axis=1)
        width = table.std(axis=0)
        return cls(names=names, middle=table.mean(axis=0), width=np.where(width > 0, width, 1.0))

    def means(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(t,) means over samples."""
        table = np.stack([columns[name] for name in self.names], axis=1)
        scaled = np.clip((table - self.middle) / self.width, -FARTHEST, FARTHEST)
        chances = [expit(columns[name]) for name in self.names if name == CONFIDENCE or name.startswith("score_")]
        return np.concatenate([scaled.mean(axis=0), (scaled**2).mean(axis=0), np.stack(chances).mean(axis=1)])

    def known(self, columns: Mapping[str, FloatArray], accuracy: float) -> _Known:
        """A set whose accuracy is known."""
        return _Known(self.means(columns), accuracy, len(columns[CONFIDENCE]))


@dataclass(frozen=True)
class _Sets:
    """Sets whose accuracy is known: without shift, shifted ones by kind and strength, and OOD ones by name."""

    calm: _Known
    shifted: Mapping[str, _Known]
    ood: Mapping[str, _Known]

    def windows(self) -> Iterator[tuple[FloatArray, float, float]]:
        """Means, accuracy and weight of windows that are mixed of them."""
        for some, shares in ((self.shifted, MIXED), (self.ood, MIXED_OOD)):
            for each in some.values():
                for share in shares:
                    yield *_mixture(each, self.calm, share), 1.0
        for each in self.ood.values():
            for other in list(self.shifted.values())[::5]:
                for share in (0.3, 0.1):
                    yield *_mixture(each, other, share), 0.5


@dataclass(frozen=True)
class _Line:
    """A ridge regression on what means differ by from those without shift, where it is exact."""

    calm: _Known
    width: FloatArray
    slopes: FloatArray

    @classmethod
    def fitted(cls, sets: _Sets) -> Self:
        means, accuracies, weights = (np.array(each) for each in zip(*sets.windows(), strict=True))
        moved = means - sets.calm.means
        width = np.sqrt((moved**2).mean(axis=0)) + 1e-9
        target = _log_odds(accuracies) - _log_odds(sets.calm.accuracy)
        line = Ridge(alpha=PENALTY, fit_intercept=False).fit(moved / width, target, sample_weight=weights)
        return cls(sets.calm, width, np.asarray(line.coef_))

    def at(self, means: FloatArray) -> float:
        """The accuracy of samples with these means."""
        moved = (means - self.calm.means) / self.width
        return float(expit(_log_odds(self.calm.accuracy) + moved @ self.slopes))


def _log_odds(accuracy: FloatArray | float) -> FloatArray:
    return np.asarray(logit(np.clip(accuracy, EDGE, 1 - EDGE)))


def _error(sets: _Sets) -> float:
    """The error on kinds of shift and on OOD sets that were left out, without the noise of their few samples."""
    found = []
    for kind in sorted({name.partition(":")[0] for name in sets.shifted}):
        rest = {name: each for name, each in sets.shifted.items() if name.partition(":")[0] != kind}
        out = [each for name, each in sets.shifted.items() if name not in rest]
        found += _errors(_Line.fitted(replace(sets, shifted=rest)), sets.calm, out, MIXED) if rest else []
    for name, each in sets.ood.items():
        rest = {other: known for other, known in sets.ood.items() if other != name}
        found += _errors(_Line.fitted(replace(sets, ood=rest)), sets.calm, [each], MIXED_OOD[1:])
    if not found:
        return 1.0  # one kind alone says nothing of others
    squares, noise, distances = np.array(found).T
    return float(np.sqrt(max(0.0, float((squares - noise).sum() / (distances**2).sum()))))


def _errors(
    line: _Line, calm: _Known, out: Sequence[_Known], shares: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Squared errors on windows of sets that a line does not know, the part of it that is noise, and distances."""
    found = []
    for each in out:
        for share in shares:
            means, true = _mixture(each, calm, share)
            accuracy = line.at(means)
            noise = share**2 * _noise(each.accuracy, each.samples)
            found.append(((accuracy - true) ** 2, noise, _distance(accuracy, calm.accuracy)))
    return found


def _mixture(each: _Known, other: _Known, share: float) -> tuple[FloatArray, float]:
    """Means and accuracy of a window with this share of one set, and the rest of the other."""
    return share * each.means + (1 - share) * other.means, share * each.accuracy + (1 - share) * other.accuracy


def _distance(accuracy: float, usual: float) -> float:
    """What errors grow with: how far the accuracy is from the usual one, and two points where it is not."""
    return 0.02 + abs(usual - accuracy)


def _noise(accuracy: float, samples: int) -> float:
    """Variance of the share of right predictions among so many samples."""
    return accuracy * (1 - accuracy) / samples
