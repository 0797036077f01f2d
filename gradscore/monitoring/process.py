"""From the terms of a window to its accuracy: a Gaussian process that is exact without shift.

Its mean is a line and a smooth bend around it, in log-odds of the accuracy. How far around a known window its accuracy
speaks for others, how much the bend may do, and how much is left unexplained are chosen by what is best on kinds of
shift and OOD sets that are left out. That costs no other fit: what a process without some windows says of them follows
from the inverse of its matrix.

Source: Rasmussen and Williams 2006, "Gaussian processes for machine learning", section 5.4.2, for leaving out; Dunn,
Wasserman and Ramdas 2022, "Distribution-free prediction sets for two-layer hierarchical models", for the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.special import expit, logit

from ..system import FloatArray
from .known import Known

EDGE = 0.02
"""Accuracies closer to 0 and 1 than this count as this close."""

REACHES = (0.7, 1.0, 2.0)
"""How far apart windows may be and still tell of each other, in root mean squares of the terms."""

UNEXPLAINED = (0.02, 0.05, 0.1, 0.2)
"""Variances of the log-odds that terms do not explain."""

BENDS = 2.0
"""Variance of the bend, where that of the line is 1."""

LEAST = 0.005
"""Standard deviation of an accuracy that nothing is said to be better than."""

NORMAL = 1.959964
"""How many standard deviations hold 95 % of normal noise."""

COVERED = 0.95


class Settings(NamedTuple):
    """How far windows tell of each other, and the variance that is left unexplained."""

    reach: float
    unexplained: float


class LeftOut(NamedTuple):
    """What is said of windows by a process that does not know their group.

    Attributes:
        group: a kind of shift, or an OOD set.
        accuracy: (k,) what is expected.
        deviation: (k,) standard deviations of that.
        windows: the places of the windows.
    """

    group: str
    accuracy: FloatArray
    deviation: FloatArray
    windows: list[int]


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What the process learns from, whatever its settings.

    Attributes:
        groups: the kinds of shift and OOD sets in each window.
        origin: (t,) terms of the first window, which is without shift.
        scale: (t,) root mean square of how far terms are from those.
        inputs: (w, t) terms from that origin on that scale.
        accuracy: (w,) shares of predictions that are right.
        noise: (w,) variances of those shares.
        targets: (w,) log-odds of the accuracies, from that without shift.
        target_noise: (w,) variances of these.
    """

    groups: Sequence[tuple[str, ...]]
    origin: FloatArray
    scale: FloatArray
    inputs: FloatArray
    accuracy: FloatArray
    noise: FloatArray
    targets: FloatArray
    target_noise: FloatArray

    @classmethod
    def of(cls, windows: Sequence[Known], scale: FloatArray | None = None) -> Self:
        """Of windows whose accuracy is known, the first one without shift; on a scale of their own without another."""
        moved = np.stack([each.terms for each in windows]) - windows[0].terms
        scale = np.sqrt((moved**2).mean(axis=0)) + 1e-9 if scale is None else scale
        accuracy, noise = np.array([each.accuracy for each in windows]), np.array([each.noise for each in windows])
        clipped = np.clip(accuracy, EDGE, 1 - EDGE)
        return cls(
            groups=[each.groups for each in windows],
            origin=windows[0].terms,
            scale=scale,
            inputs=moved / scale,
            accuracy=accuracy,
            noise=noise,
            targets=_log_odds(accuracy) - _log_odds(accuracy[0]),
            target_noise=noise / (clipped * (1 - clipped)) ** 2,
        )

    @property
    def usual(self) -> float:
        """The accuracy without shift."""
        return float(self.accuracy[0])


@dataclass(frozen=True, kw_only=True)
class Process:
    """What is known of the accuracy of windows with other terms.

    Attributes:
        known: windows whose accuracy is known.
        settings: chosen by leaving out.
        inverse: (w, w) of the matrix of the windows.
        stretch: standard deviations that hold 95 % of what was left out; infinite where no group could be left out.
    """

    known: Observations
    settings: Settings
    inverse: FloatArray
    stretch: float = np.inf

    @classmethod
    def fitted(cls, windows: Sequence[Known]) -> Self:
        """Chooses settings, and how wide the intervals are, by leaving out each group of windows.

        Args:
            windows: whose accuracy is known; the first one is without shift.
        """
        known = Observations.of(windows)
        tried = [cls.of(known, Settings(reach, unexplained)) for reach in REACHES for unexplained in UNEXPLAINED]
        best = min(tried, key=lambda each: each._worth())
        return replace(best, stretch=best._stretched())

    @classmethod
    def of(cls, known: Observations, settings: Settings) -> Self:
        """The process with these settings, of whose intervals nothing is known."""
        # A copy, because an array times itself is rounded in another way than with what lies at other places.
        matrix = _alike(known.inputs, known.inputs.copy(), settings.reach)
        noise = np.diag(known.target_noise + settings.unexplained)
        return cls(known=known, settings=settings, inverse=np.asarray(np.linalg.inv(matrix + noise), dtype=np.float64))

    def at(self, terms: FloatArray) -> tuple[float, float]:
        """The accuracy that is expected of a window with these terms (t,), and its standard deviation."""
        place = ((terms - self.known.origin) / self.known.scale)[None]
        alike = _alike(place, self.known.inputs, self.settings.reach)[0]
        weights = alike @ self.inverse
        variance = float(_alike(place, place, self.settings.reach)[0, 0] - weights @ alike)
        accuracy, deviation = _accuracies(
            np.array([weights @ self.known.targets]),
            np.array([max(variance, 0.0) + self.settings.unexplained]),
            self.known.usual,
        )
        return float(accuracy[0]), float(deviation[0])

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """What is said of each group's windows without them."""
        known, weighted, found = self.known, self.inverse @ self.known.targets, []
        for group in sorted({group for groups in known.groups for group in groups}):
            places = [place for place, groups in enumerate(known.groups) if group in groups]
            block = np.linalg.inv(self.inverse[np.ix_(places, places)])
            said = known.targets[places] - block @ weighted[places]
            variance = np.maximum(np.diag(block) - known.target_noise[places], self.settings.unexplained)
            found.append(LeftOut(group, *_accuracies(said, variance, known.usual), places))
        return found

    def _worth(self) -> float:
        """The mean absolute error on groups that are left out, each of which counts as much."""
        errors = [np.abs(each.accuracy - self.known.accuracy[each.windows]).mean() for each in self.left_out]
        return float(np.mean(errors)) if errors else 0.0

    def _stretched(self) -> float:
        """The 95 % quantile over groups that are left out, where a group that comes new counts as one that is worst."""
        groups = self.left_out
        if not groups:
            return np.inf
        scores, weights = [], []
        for each in groups:
            errors, noise = each.accuracy - self.known.accuracy[each.windows], self.known.noise[each.windows]
            scores.append(np.sqrt(np.maximum(errors**2 - NORMAL**2 * noise, 0.0)) / each.deviation)
            weights.append(np.full(len(each.windows), 1 / (len(groups) + 1) / len(each.windows)))
        joined, counted = np.concatenate(scores), np.concatenate(weights)
        order = np.argsort(joined, kind="stable")
        # With fewer than 19 groups not even the largest holds 95 % of new ones; no figure of these samples does.
        place = min(int(np.searchsorted(np.cumsum(counted[order]), COVERED)), len(joined) - 1)
        return float(joined[order][place]) if len(groups) > 1 else np.inf


def _alike(some: FloatArray, others: FloatArray, reach: float) -> FloatArray:
    """(n, m) covariances of the log-odds at some windows (n, t) and at others (m, t): 0 where nothing has moved."""
    terms = some.shape[1]
    lengths, widths = (some**2).sum(axis=1) / terms, (others**2).sum(axis=1) / terms
    line = some @ others.T / terms
    apart = np.maximum(lengths[:, None] + widths[None] - 2 * line, 0.0)
    bend = np.exp(-apart / (2 * reach**2)) - np.exp(-(lengths[:, None] + widths[None]) / (2 * reach**2))
    return np.asarray(line + BENDS * bend)


def _accuracies(moved: FloatArray, variance: FloatArray, usual: float) -> tuple[FloatArray, FloatArray]:
    """Accuracies, and their standard deviations, from log-odds."""
    accuracy = np.asarray(expit(moved + _log_odds(np.array(usual))))
    return accuracy, np.sqrt(variance * (accuracy * (1 - accuracy)) ** 2 + LEAST**2)


def _log_odds(accuracy: FloatArray) -> FloatArray:
    return np.asarray(logit(np.clip(accuracy, EDGE, 1 - EDGE)))
