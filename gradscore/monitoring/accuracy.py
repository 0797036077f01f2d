"""The accuracy to expect of unlabelled samples, with an interval, learnt on shifts that leave the class as it is.

P(wrong) of a bundle is right on average where nothing is shifted, and too small under shift: equal scores mean more
errors there. So what is looked at is a window as a whole (`terms`). A Gaussian process (`process`) learns what that
says of the accuracy from windows whose accuracy is known (`known`): calibration samples, mixed with shifted copies of
images and with auxiliary OOD samples in several shares.

How wrong that is of a shift that nobody has seen is seen by leaving each kind of shift, and each OOD set, out of the
fit. The interval holds 95 % of what was left out, and has the noise of so many samples.

Source: Guillory et al. 2021, "Predicting with confidence on unseen distributions", and Deng and Zheng 2021, "Are labels
always necessary for classifier accuracy evaluation?", for the regression over shifted sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..deployment import Reference
from ..system import FloatArray
from .known import known_windows
from .process import NORMAL, Process
from .sums import Sums
from .terms import Terms
from .windows import FEWEST


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of a window.

    Attributes:
        accuracy: share of predictions that is right; None of fewer than `FEWEST` samples, and of a window of which more
            than half is flagged as OOD.
        low: lower end of its 95 % interval; None where it cannot be known.
        high: upper end.
    """

    accuracy: float | None
    low: float | None
    high: float | None


UNKNOWN = Expected(accuracy=None, low=None, high=None)


@dataclass(frozen=True, kw_only=True)
class ExpectedAccuracy:
    """What a window's accuracy is expected to be.

    Attributes:
        terms: what is looked at of samples.
        usual: accuracy of the calibration samples.
        calibration: how many they are.
        process: from terms to accuracies; None where no shift was learnt.
    """

    terms: Terms
    usual: float
    calibration: int
    process: Process | None = None

    @classmethod
    def learnt(cls, reference: Reference) -> Self:
        """Learns from what a bundle knows; without shifted copies, the accuracy of calibration samples is expected."""
        terms, right = Terms.of(reference), reference.calibration.right
        process = Process.fitted(known_windows(terms, reference)) if reference.shifted else None
        return cls(terms=terms, usual=float(right.mean()), calibration=len(right), process=process)

    def of(self, columns: Mapping[str, FloatArray]) -> Expected:
        """What is expected of samples.

        Args:
            columns: (n,) of what is watched, by name.
        """
        return self.of_sums(self.terms.added(self.terms.none, columns))

    def of_sums(self, sums: Sums) -> Expected:
        """What is expected of samples of which sums are known."""
        if sums.samples < FEWEST:
            return UNKNOWN
        if self.process is None:
            return Expected(accuracy=self.usual, low=None, high=None)
        accuracy, deviation = self.process.at(self.terms.at(sums.means))
        noise = _noise(accuracy, sums.samples) + _noise(self.usual, self.calibration)
        half = float(np.sqrt((self.process.stretch * deviation) ** 2 + NORMAL**2 * noise))
        return Expected(accuracy=accuracy, low=max(0.0, accuracy - half), high=min(1.0, accuracy + half))


def _noise(accuracy: float, samples: int) -> float:
    """Variance of the share of right predictions among so many samples."""
    return accuracy * (1 - accuracy) / samples
