"""Windows: so many samples each, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import DataError
from ..system import is_whole
from .changes import Alarm

OR_LESS = "or less if OOD"
"""What is said of an accuracy to expect that may be less than its interval; see `Window`."""

FEWEST = 50
"""Samples below which a window has no expected accuracy: its interval would be wider than 20 points."""


@dataclass(frozen=True, kw_only=True)
class Suspicious:
    """A sample to look at: its name, probability of a wrong prediction (None without) and reason of rejection."""

    sample_id: str
    probability_wrong: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Window:
    """What is said of a window.

    Attributes:
        name: its number from 1 on.
        first: samples before it.
        samples: how many it has.
        not_scored: how many of them could not be scored.
        complete: False for the last one, while more samples of it may come.
        accuracy: share of predictions that is expected to be right; a sample of no known class counts as wrong. None
            where too few could be scored, and where more than half of them is flagged as OOD.
        low: lower end of the 90 % interval; None where it cannot be known.
        high: upper end.
        mean_confidence: mean of the largest softmax probability.
        ood: share that is flagged as OOD; None without such a detector.
        rejected: share that is rejected.
        log10_e_values: decimal logarithms of the largest e-values (see `Alarm`) in it, by stream: floats end sooner.
        alarms: what was noticed in it.
        suspicious: the samples most likely wrong or OOD.
        or_less: whether so many samples are flagged as OOD that, if they are, fewer predictions may be right than `low`
            says; of shifted samples more may be than `high` says.
    """

    name: str
    first: int
    samples: int
    not_scored: int
    complete: bool
    accuracy: float | None
    low: float | None
    high: float | None
    mean_confidence: float | None
    ood: float | None
    rejected: float | None
    log10_e_values: dict[str, float]
    alarms: list[Alarm] = field(default_factory=list)
    suspicious: list[Suspicious] = field(default_factory=list)
    or_less: bool = False

    @property
    def caveat(self) -> str:
        """What follows its accuracy or interval: `OR_LESS` after a comma, or nothing."""
        return f", {OR_LESS}" if self.or_less else ""


def checked_window(window: object) -> int:
    """The samples of a window.

    Raises:
        DataError: something else than a number of at least `FEWEST`.
    """
    if is_whole(window) and window >= FEWEST:
        return int(window)
    raise DataError(f"window: wanted {FEWEST} samples or more, got {window!r}")
