"""From alarms to changes: one change is one alarm, said in a sentence, with its evidence behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .windows import Window

CLASSES = "predicted class"
"""What the stream of the predicted classes is called."""

CERTAIN = 9
"""The power of ten from which on chance is no explanation."""

NOTABLE = 0.02
"""How much a share has to move for the sentence to be about it."""


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

    What weighs little in a stream is noticed late and dated a little late, so an alarm is evidence of the change before
    it, unless what it dates began after that was noticed, and in the later half of the time until this one was.

    Args:
        windows: all of them, in order.
        usual: accuracy of the calibration samples, which is compared with where no window comes before.
    """
    groups: list[list[Alarm]] = []
    for window in windows:
        for alarm in sorted(window.alarms, key=lambda each: -each.e_value):
            lead = groups[-1][0] if groups else None
            if lead is not None and alarm.first <= max(lead.sample, (lead.first + alarm.sample) / 2):
                groups[-1].append(alarm)
            else:
                groups.append([alarm])
    return [_change(group, windows, usual) for group in groups]


def _change(alarms: list[Alarm], windows: Sequence[Window], usual: float) -> Change:
    lead, names = alarms[0], [window.name for window in windows]
    raised = windows[names.index(lead.raised)]
    whole = (each for each in windows if each.first >= lead.last and each.complete)
    now, before = next(whole, raised), windows[: names.index(lead.since)]
    e_values = [each.log10_e_values[lead.stream] for each in windows[names.index(raised.name) :]]
    sure = in_words(max(log10(lead.e_value), *e_values))
    parts = [_what(lead, now, before)]
    expected = _mean([each.accuracy for each in before]) or usual
    if now.accuracy is not None:
        parts.append(f"expect an accuracy of {now.accuracy:.2f} instead of {expected:.2f}")
    when = f"window {lead.since}" if lead.since == lead.until else f"window {lead.since} to {lead.until}"
    sentence = f"Changed between samples {lead.first:,} and {lead.last:,} ({when}), {sure}: {'; '.join(parts)}"
    return Change(
        sentence=sentence,
        first=lead.first,
        last=lead.last,
        since=lead.since,
        until=lead.until,
        raised=lead.raised,
        alarms=tuple(alarms),
    )


def _what(lead: Alarm, now: Window, before: Sequence[Window]) -> str:
    if lead.stream == CLASSES:
        return "the predicted classes come in other shares"
    for share, words in (("ood", "look out of distribution"), ("rejected", "are rejected")):
        new, old = getattr(now, share), _mean([getattr(each, share) for each in before])
        if new is not None and (abs(new - old) if old is not None else new) >= NOTABLE:
            return f"{100 * new:.0f} % {words}" + ("" if old is None else f" instead of {100 * old:.0f} %")
    return f"{lead.stream} {lead.says}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def in_words(power: float) -> str:
    """How sure a decimal logarithm of an e-value is."""
    if power >= CERTAIN:
        return "certain"
    if power >= 4:
        return f"1 in 10^{floor(power)} by chance"
    digit = 10 ** floor(power)
    return f"1 in {floor(10**power / digit + 1e-9) * digit:,} by chance"
