"""Windows, and from alarms to changes: one change is one alarm, said in a sentence, with its evidence behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, log10

import numpy as np

from ..errors import DataError
from ..system import FloatArray, is_whole

CLASSES = "predicted class"
"""Name of the stream of the predicted classes."""

CERTAIN = 9
"""The power of ten from which on chance is no explanation."""

NOTABLE = 0.02
"""Least change of a share for the sentence to be about it."""


FAR_FROM_CHANCE = 6.0
"""Standard deviations, so that no order of chance is that far."""

FEWEST = 50
"""Samples below which a window has no estimated accuracy: its interval would be wider than 20 points."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A stream changed: evidence of a change.

    Attributes:
        stream: what was watched: a score, the confidence, the gradient at a group of parameters, the predicted class,
            or the novelty.
        says: how it changed.
        first: the first sample that the change may have begun with, from 1 on.
        last: the last one.
        since: name of the window that holds the first.
        until: name of the window that holds the last; the change began in one of these or between.
        raised: name of the window in which it was noticed.
        sample: samples until it was noticed.
        e_value: how sure: without a change, it is reached with a probability of one over it at most, ever, by any
            stream: what the stream has won, times the share of alpha that the stream has.
    """

    stream: str
    says: str
    first: int
    last: int
    since: str
    until: str
    raised: str
    sample: int
    e_value: float


@dataclass(frozen=True, kw_only=True)
class Suspicious:
    """A sample to look at: its name, probability of a wrong prediction (None without) and reason of rejection."""

    sample_id: str
    probability_wrong: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Window:
    """Figures of a window.

    Attributes:
        name: its number from 1 on.
        first: samples before it.
        samples: how many it has.
        not_scored: how many of them could not be scored.
        complete: False for the last one, while more samples of it may come.
        accuracy: estimated share of predictions that are right; a sample of no known class counts as wrong. None
            where too few could be scored, and where more than half of them is flagged as OOD.
        low: lower end of the 90 % interval; None where it cannot be known.
        high: upper end.
        mean_confidence: mean of the largest softmax probability.
        ood: share that is flagged as OOD; None without such a detector.
        rejected: share that is rejected.
        in_runs: whether its predicted classes come in runs, see `come_in_runs`.
        few_classes: whether they are fewer than half as many as usual, see `effective_classes`.
        log10_e_values: decimal logarithms of the largest e-values (see `Alarm`) in it, by stream: floats end sooner.
        alarms: what was noticed in it.
        suspicious: the samples most likely wrong or OOD.
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
    in_runs: bool
    few_classes: bool
    log10_e_values: dict[str, float]
    alarms: list[Alarm] = field(default_factory=list)
    suspicious: list[Suspicious] = field(default_factory=list)


def come_in_runs(values: FloatArray) -> bool:
    """Whether equal values (n,) follow each other more often than in an order of chance.

    Then there are fewer runs than by chance, by more than `FAR_FROM_CHANCE` standard deviations.
    """
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    if len(counts) < 2:
        return False
    mean, variance = runs_by_chance(counts)
    return bool(mean - np.count_nonzero(np.diff(values)) - 1 > FAR_FROM_CHANCE * np.sqrt(variance))


def effective_classes(values: FloatArray) -> float:
    """How many classes the values (n,) are of, rare ones counting less: one over the sum of the squared shares.

    Source: Hill 1973, "Diversity and evenness".
    """
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float(counts.sum() ** 2 / (counts**2).sum()) if len(counts) else 0.0


def runs_by_chance(counts: FloatArray) -> tuple[float, float]:
    """Mean and variance of the number of runs over all orders of values, of which there are so many of each.

    Source: Mood 1940, "The distribution theory of runs".
    """
    n, squares, cubes = (float((counts**power).sum()) for power in (1, 2, 3))
    return n + 1 - squares / n, (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n**2 * (n - 1))


def checked_window(window: object) -> int:
    """The samples of a window.

    Raises:
        DataError: something else than a number of at least `FEWEST`.
    """
    if is_whole(window) and window >= FEWEST:
        return int(window)
    raise DataError(f"window: wanted {FEWEST} samples or more, got {window!r}")


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something changed.

    Attributes:
        sentence: when, how sure, what, and what it does to the accuracy.
        first: the first sample that it may have begun with, from 1 on.
        last: the last one.
        since: name of the window that holds the first.
        until: name of the window that holds the last.
        raised: name of the window in which it was noticed.
        alarms: the evidence, the strongest of the window in which it was noticed first, then in the order in which it
            came.
    """

    sentence: str
    first: int
    last: int
    since: str
    until: str
    raised: str
    alarms: tuple[Alarm, ...]


def changes_of(windows: Sequence[Window], *, usual: float) -> list[Change]:
    """The changes that the alarms of windows speak of.

    A stream speaks once of a change. What weighs little in it is noticed late and dated a little late, so an alarm is
    evidence of the last change that it may date, unless what it dates began after that was noticed, and in the later
    half of the time until this one was. Then it is evidence of the next change, which it dates too early, if there is
    one.

    Args:
        windows: all of them, in order.
        usual: accuracy of the calibration samples, which is compared with where no window comes before.
    """
    groups: list[list[Alarm]] = []
    for window in windows:
        for alarm in sorted(window.alarms, key=lambda each: -each.e_value):
            silent = [group for group in groups if alarm.stream not in {each.stream for each in group}]
            before = [group for group in silent if group[0].first <= alarm.last][-1:]
            after = [group for group in silent if group[0].first > alarm.last][:1]
            may_be = (
                each
                for each in before + after
                if alarm.first <= max(each[0].sample, (each[0].first + alarm.sample) / 2)
            )
            group = next(may_be, [])
            if group:
                group.append(alarm)
            else:
                groups.append([alarm])
    changes, calm = [], 0
    for group in sorted(groups, key=lambda each: each[0].first):
        change, calm = _change(group, windows, calm, usual)
        changes.append(change)
    return changes


def _change(alarms: list[Alarm], windows: Sequence[Window], calm: int, usual: float) -> tuple[Change, int]:
    """A change, compared with windows from the place `calm` on; and the place of the first window that it fills."""
    lead, names = alarms[0], [window.name for window in windows]
    raised = names.index(lead.raised)
    filled = next((place for place, each in enumerate(windows) if each.first >= lead.last and each.complete), raised)
    now, since = windows[filled], names.index(lead.since)
    before = windows[calm : max(since, calm + 1)] if since else []
    earlier = _mean([each.accuracy for each in before])
    known = f"{usual if earlier is None else earlier:.2f}"
    if now.accuracy is not None and f"{now.accuracy:.2f}" == known:
        now = windows[raised]  # what changed for a while shows in the window that noticed it
    sure = describe_chance(log10(lead.e_value))
    parts = [_what(lead, now, before)]
    if now.accuracy is not None:
        where = "on the calibration samples" if earlier is None else ""
        is_same = f"{now.accuracy:.2f}" == known
        instead = f", as {where or 'before'}" if is_same else f" instead of {known} {where}".rstrip()
        parts.append(f"estimated accuracy {now.accuracy:.2f}{instead}")
    when = f"window {lead.since}" if lead.since == lead.until else f"window {lead.since} to {lead.until}"
    sentence = f"Changed between samples {lead.first:,} and {lead.last:,} ({when}), {sure}: {'; '.join(parts)}"
    change = Change(
        sentence=sentence,
        first=lead.first,
        last=lead.last,
        since=lead.since,
        until=lead.until,
        raised=lead.raised,
        alarms=tuple(alarms),
    )
    return change, filled


def _what(lead: Alarm, now: Window, before: Sequence[Window]) -> str:
    if lead.stream == CLASSES:
        return "the frequencies of the predicted classes changed"
    for share, words in (("ood", "look out of distribution"), ("rejected", "are rejected")):
        new, old = getattr(now, share), _mean([getattr(each, share) for each in before])
        if new is not None and (abs(new - old) if old is not None else new) >= NOTABLE:
            return f"{100 * new:.0f} % {words}" + ("" if old is None else f" instead of {100 * old:.0f} %")
    return f"{lead.stream} {lead.says}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def describe_chance(power: float) -> str:
    """Words for how sure a decimal logarithm of an e-value is."""
    if power >= CERTAIN:
        return "certain"
    if power >= 4:
        return f"1 in 10^{floor(power)} by chance"
    digit = 10 ** floor(power)
    return f"1 in {floor(10**power / digit + 1e-9) * digit:,} by chance"
