"""Streams of numbers that a monitor watches, and the evidence that one of them has changed.

A stream bets against the p-values of its numbers, which gives an alarm that holds for any number of looks. The rank of
a new value among the calibration samples *and all values before it* is uniform, and independent of all earlier ranks,
as long as nothing changed (and no two values are equal): so a game that pays f(p) with mean 1 for every unit staked
cannot be won. Capital of 1 / alpha has a probability of alpha at most, at any time in an unending stream. That the
values before it count is what makes this exact; ranks among the calibration samples alone would in time find out that
those are few.

A stream that has raised an alarm begins anew: what comes next is usual to it from then on, so that a second change is
noticed as well, and one change, however long it lasts, once.

Stakes are paid in little by little, so that a change is found whether it comes early or late: sample t gets
`PATIENCE` / ((t + PATIENCE) (t + PATIENCE + 1)), t from 0, which adds up to one.

One stream is the novelty: how much more a sample is like shifted images than like plain ones. A tenth of odd samples
is noticed late where each score is watched by itself. A linear discriminant of everything that is watched, and of its
squares, between plain samples of `in_dist.fit` and wrong predictions on shifted copies and OOD samples sees most of
them sooner. Nothing of the calibration samples is used, so ranks among them stay fair.

Source: Vovk, Nouretdinov and Gammerman 2003, "Testing exchangeability on-line", for the ranks; Ville 1939 for the
bound; Shin, Ramdas and Rinaldo 2023, "E-detectors", for stakes over the times of a change; Page 1954 for when it began;
Fisher 1936, "The use of multiple measurements in taxonomic problems", for the novelty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self
from zlib import crc32

import numpy as np
from numpy.random import Generator
from pydantic import PlainSerializer, PlainValidator
from scipy.signal import lfilter

from ..deployment import CLASS, CONFIDENCE, KnownSets
from ..system import BoolArray, FloatArray, IntArray
from .changes import CLASSES, Alarm, Window

BINS = 64
"""Values are told apart by bins of equal calibration counts, at most so many; within one, ranks are drawn at random."""

_ENDS = (0.0005, 0.001, 0.002, 0.005, 0.01)
"""Shares at either end that are told apart, too: what is new there is rare at first."""

PATIENCE = 1000
"""Half of all stakes are paid in before so many samples."""

RENEWED = 500
"""So many values after the window of an alarm are what a stream compares with from then on."""

_TAIL, _FAR_TAIL = 0.5, 0.2
"""Exponents of bets on the ends: values that are rare pay the inverse root of their p-value, or almost all of it."""

NOVELTY = "novelty"
"""Name of the stream of the novelty."""

SHARES = {NOVELTY: 0.5, CLASSES: 0.1}
"""Shares of alpha: half of it the novelty has, which sees most. What is left the other streams share."""

_CELLS, _MEMORY = 16, 500
"""The bet that learns: ranks of the last samples, about so many, are counted in so many cells."""

_DOUBT = 3.0
"""Logarithm of what a unit is worth that is staked when a change began, below which it may have begun later."""

SHRINKAGE = 0.05
"""Added to each variance of the novelty, where those of plain samples are about 1."""

_LARGEST = 700.0
"""Logarithm of the largest e-value that is given."""

FARTHEST = 8.0
"""Standard deviations of the known samples beyond which a value counts as this far."""


def _plain_numbers(values: FloatArray) -> list[Any]:
    """Numbers of JSON, and the texts `inf` and `-inf`, which JSON has no numbers for."""
    return [str(each) if np.isinf(each) else each for each in values.tolist()]


Floats = Annotated[
    FloatArray, PlainValidator(lambda values: np.array(values, dtype=np.float64)), PlainSerializer(_plain_numbers)
]
Counts = Annotated[
    IntArray,
    PlainValidator(lambda values: np.array(values, dtype=np.int64)),
    PlainSerializer(lambda each: each.tolist()),
]
"""Arrays as the state of a monitor stores them."""


def _tilted(slope: float) -> Callable[[FloatArray], FloatArray]:
    return lambda p: 1 + slope * (1 - 2 * p)


def _on_tail(share: float, *, upper: bool, tail: float = _TAIL) -> Callable[[FloatArray], FloatArray]:
    def pay(p: FloatArray) -> FloatArray:
        near = p if upper else 1 - p
        return 1 - share + share * tail * np.maximum(near, 1e-12) ** (tail - 1)

    return pay


def _wider(slope: float) -> Callable[[FloatArray], FloatArray]:
    return lambda p: 1 + slope * (6 * p * p - 6 * p + 1)


@dataclass(frozen=True)
class Bet:
    """Bet that a stream stakes on.

    Attributes:
        says: what changed if it wins, after the name of a stream.
        pays: from p-values (n,), of which small ones are of large values, to what a unit is worth afterwards (n,); its
            mean over uniform p-values is 1.
    """

    says: str
    pays: Callable[[FloatArray], FloatArray]


BETS: tuple[Bet, ...] = (
    Bet("is higher", _tilted(0.2)),
    Bet("is much higher", _tilted(0.7)),
    Bet("is lower", _tilted(-0.2)),
    Bet("is much lower", _tilted(-0.7)),
    Bet("has a few more very high values", _on_tail(0.06, upper=True)),
    Bet("has more very high values", _on_tail(0.15, upper=True)),
    Bet("has values that were never as high", _on_tail(0.15, upper=True, tail=_FAR_TAIL)),
    Bet("has many very high values", _on_tail(0.5, upper=True)),
    Bet("has more very low values", _on_tail(0.15, upper=False)),
    Bet("has many very low values", _on_tail(0.5, upper=False)),
    Bet("is spread wider", _wider(0.5)),
    Bet("is spread less", _wider(-0.5)),
)

SAYS = (*(bet.says for bet in BETS), "has other shares of values")
"""Sentences on what changed, by bet; the last one has learnt from the ranks before which of them come more often."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """State of a stream so far.

    Attributes:
        edges: (B - 1,) between the bins, ascending.
        counts: (B,) calibration samples and values so far in each bin.
        seen: values so far, without the calibration samples.
        log_capital: (bets,) logarithm of what each bet is worth.
        log_since: (bets,) logarithm of what a unit staked at the best time is worth.
        since: (bets,) that time: how many values there were before it.
        until: (bets,) the last time at which that was worth little.
        recent: (cells,) how often ranks of each cell came lately.
        begun: how many values came before it, in an earlier stream of the same name and as its own calibration values.
        usual: (u,) its calibration values to be, until there are `RENEWED` of them; None once it has such.
    """

    edges: Floats
    counts: Counts
    seen: int = 0
    log_capital: Floats = field(default_factory=lambda: np.full(len(SAYS), -np.inf))
    log_since: Floats = field(default_factory=lambda: np.zeros(len(SAYS)))
    since: Counts = field(default_factory=lambda: np.zeros(len(SAYS), dtype=np.int64))
    until: Counts = field(default_factory=lambda: np.zeros(len(SAYS), dtype=np.int64))
    recent: Floats = field(default_factory=lambda: np.zeros(_CELLS))
    begun: int = 0
    usual: Floats | None = None

    @classmethod
    def anew(cls, begun: int) -> Self:
        """A stream after so many values, that takes the next `RENEWED` for its calibration values."""
        return cls(edges=np.empty(0), counts=np.zeros(1, dtype=np.int64), begun=begun, usual=np.empty(0))

    @classmethod
    def of(cls, calibration: FloatArray, *, begun: int = 0) -> Self:
        """A stream of which nothing was seen but its calibration values (n,), n at least 1."""
        shares = np.concatenate([np.linspace(0, 1, BINS + 1)[1:-1], _ENDS, 1 - np.array(_ENDS)])
        edges = np.unique(np.quantile(calibration, shares, method="higher"))
        largest = calibration.max()
        if np.count_nonzero(calibration == largest) > 1:
            # What is larger than many equal values is not one of them: a constant column that comes alive.
            edges = np.append(edges[edges <= largest], np.nextafter(largest, np.inf))
        counts = np.bincount(np.searchsorted(edges, calibration, side="right"), minlength=len(edges) + 1)
        return cls(edges=edges, counts=counts, begun=begun)

    @property
    def log_won(self) -> float:
        """Logarithm of the capital: what all bets are worth, and what is not yet staked."""
        cash = np.log(PATIENCE) - np.log(PATIENCE + self.seen)
        return float(np.logaddexp(np.logaddexp.reduce(self.log_capital - np.log(len(SAYS))), cash))

    @property
    def leading(self) -> int:
        """The place of the bet that is worth most."""
        return int(np.argmax(self.log_capital))

    def after(self, values: FloatArray, *, random: Generator) -> tuple[Self, FloatArray]:
        """The stream after more values (n,), and the logarithm of its capital after each of them (n,).

        Args:
            values: finite, in order.
            random: draws ranks within bins.
        """
        if not len(values):
            return self, np.empty(0)
        if self.usual is not None:
            usual, rest = np.split(np.concatenate([self.usual, values]), [RENEWED])
            if len(usual) < RENEWED:
                return replace(self, usual=usual), np.zeros(len(values))
            grown, total = type(self).of(usual, begun=self.begun + RENEWED).after(rest, random=random)
            return grown, np.concatenate([np.zeros(len(values) - len(rest)), total])
        p, counts = self._p_values(values, random)
        learnt, recent = _learnt(p, self.recent)
        gains = np.log(np.stack([*(bet.pays(p) for bet in BETS), learnt], axis=1))
        times = self.seen + np.arange(len(values))
        stakes = np.log(PATIENCE) - np.log((times + PATIENCE) * (times + PATIENCE + 1.0))
        worth = _with_stakes(self.log_capital, stakes, gains)
        log_since, since, until = _since(self, times, gains)
        cash = np.log(PATIENCE) - np.log(PATIENCE + times + 1.0)
        total = np.logaddexp(np.logaddexp.reduce(worth - np.log(len(SAYS)), axis=1), cash)
        grown = replace(
            self,
            counts=counts,
            seen=self.seen + len(values),
            log_capital=worth[-1],
            log_since=log_since,
            since=since,
            until=until,
            recent=recent,
        )
        return grown, total

    def _p_values(self, values: FloatArray, random: Generator) -> tuple[FloatArray, IntArray]:
        """Ranks from above among what was there before each value and itself, as shares; and the counts afterwards.

        A new value falls with equal chances into each gap between those that were there. The bins begin at calibration
        samples, so that each has as many gaps as values, and the lowest one more.
        """
        bins = np.searchsorted(self.edges, values, side="right")
        new = np.zeros((len(values) + 1, len(self.counts)), dtype=np.int64)
        new[np.arange(1, len(values) + 1), bins] = 1
        counts = self.counts + np.cumsum(new, axis=0)
        gaps, rows = counts[:-1] + (np.arange(len(self.counts)) == 0), np.arange(len(values))
        within, all_gaps = np.maximum(gaps[rows, bins], 1), gaps.sum(axis=1)
        above = all_gaps - np.cumsum(gaps, axis=1)[rows, bins]
        return (above + random.random(len(values)) * within) / all_gaps, counts[-1]


def _with_stakes(log_capital: FloatArray, stakes: FloatArray, gains: FloatArray) -> FloatArray:
    """Logarithms of capitals (n, bets) when stakes are added before each gain: C <- (C + stake) gain."""
    gained = np.cumsum(gains, axis=0)
    before = np.vstack([np.zeros(gains.shape[1]), gained[:-1]])
    paid = np.vstack([log_capital, stakes[:, None] - before])
    return np.asarray(gained + np.logaddexp.accumulate(paid, axis=0)[1:])


def _learnt(p: FloatArray, recent: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What a unit is worth (n,) that is staked on cells of ranks as they came before, and how they came afterwards."""
    fading, cells = 1 - 1 / _MEMORY, np.minimum((p * _CELLS).astype(np.int64), _CELLS - 1)
    came = (cells[:, None] == np.arange(_CELLS)).astype(np.float64)
    counts, _ = lfilter([1.0], [1.0, -fading], came, axis=0, zi=fading * recent[None])
    before = np.vstack([recent, counts[:-1]])
    chances = (before[np.arange(len(p)), cells] + 1) / (before.sum(axis=1) + _CELLS)
    return np.asarray((1 + chances * _CELLS) / 2), np.asarray(counts[-1])


def _since(stream: Stream, times: IntArray, gains: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Page's rule, which stakes a unit anew where that is worth one or less: worth, since when, till when little."""
    worth = stream.log_since + np.vstack([np.zeros(gains.shape[1]), np.cumsum(gains, axis=0)])
    lowest = np.minimum(np.minimum.accumulate(worth[:-1], axis=0), 0.0)
    before = worth[:-1] - lowest

    def last(is_so: BoolArray, earlier: IntArray) -> IntArray:
        place = len(times) - 1 - np.argmax(is_so[::-1], axis=0)
        return np.where(is_so.any(axis=0), times[place], earlier)

    return worth[-1] - lowest[-1], last(before <= 0, stream.since), last(before <= _DOUBT, stream.until)


def threshold_of(alpha: float, share: float) -> float:
    """The logarithm of the capital at which a stream raises an alarm with a probability of this share of alpha at most.

    The shares of several streams add up to 1, so together they raise one with alpha at most. The mean of their
    capitals would need a smaller one, but holds at a time fixed beforehand only: the ranks of several streams are not
    independent of what was seen of all of them.
    """
    return float(-np.log(share * alpha))


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
        table = table_of(columns, names)
        width = table.std(axis=0)
        return cls(names=names, middle=table.mean(axis=0), width=np.where(width > 0, width, 1.0))

    def of(self, columns: Mapping[str, FloatArray]) -> FloatArray:
        """(n, m) of other samples, at most `FARTHEST` from 0."""
        return np.clip((table_of(columns, self.names) - self.middle) / self.width, -FARTHEST, FARTHEST)


def table_of(columns: Mapping[str, FloatArray], names: Sequence[str]) -> FloatArray:
    """(n, m) the columns of these names beside each other; (n, 0) without a name."""
    return np.stack([columns[name] for name in names], axis=1) if names else np.empty((len(columns[CONFIDENCE]), 0))


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
    def learnt(cls, known_sets: KnownSets) -> Self | None:
        """Learns from what a bundle knows; None where no shifted copies were made, or nothing of them is wrong."""
        sets = [each for each in (*known_sets.shifted.values(), *known_sets.ood.values()) if not each.right.all()]
        if known_sets.plain is None or not sets:
            return None
        names = sorted(name for name in known_sets.plain.columns if name != CLASS)
        scale = Scaled.by(known_sets.plain.columns, names)
        plain = _with_squares(scale.of(known_sets.plain.columns))
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
    covariance = 0.5 * (around.T @ (around * weights[:, None]) + calm.T @ calm / len(calm))
    return np.asarray(np.linalg.solve(covariance + SHRINKAGE * np.eye(len(centre)), centre - plain.mean(axis=0)))


def _with_squares(values: FloatArray) -> FloatArray:
    return np.hstack([values, values**2])


def after_window(
    streams: Mapping[str, Stream],
    values: Mapping[str, FloatArray],
    *,
    before: Sequence[Window],
    name: str,
    alpha: float,
    seed: int,
    not_scored: int = 0,
) -> tuple[dict[str, Stream], list[Alarm], dict[str, float]]:
    """The streams after a window, the alarms that are raised in it, and the decimal logarithms of its e-values.

    An e-value is what a stream has won, times its share of alpha; that of a window is the largest within it, which has
    reached 1 / alpha if and only if an alarm is raised; the stream begins anew after the window then.

    Args:
        streams: what is known of each before it.
        values: (n,) of the window, by stream.
        before: the windows before it.
        name: its name.
        alpha: bound of the probability that any stream ever raises one without a change.
        seed: of the ranks that are drawn within bins.
        not_scored: samples of the window beside those that have values.
    """
    starts = np.cumsum([0, *(window.samples - window.not_scored for window in before)])
    # Where in a window samples were not scored is not kept: a range begins as if they came last, and ends as if first.
    lost_before = np.cumsum([0, *(window.not_scored for window in before), not_scored])
    names = [*(window.name for window in before), name]
    after: dict[str, Stream] = {}
    alarms: list[Alarm] = []
    e_values: dict[str, float] = {}
    for key, share in shares_of(streams).items():
        stream, found = streams[key], values[key]
        # A seed of the window's own, so that it does not matter where a call ends.
        draws = [seed, len(before), crc32(key.encode())]
        after[key], log_won = stream.after(found, random=np.random.default_rng(draws))
        largest = float(log_won.max()) if len(log_won) else stream.log_won
        e_values[key] = float((largest + np.log(share)) / np.log(10))
        threshold = threshold_of(alpha, share)
        if not len(log_won) or largest < threshold:
            continue
        at = int(np.argmax(log_won >= threshold))
        then, _ = stream.after(found[: at + 1], random=np.random.default_rng(draws))
        begun, last = int(then.since[then.leading]), int(then.until[then.leading]) + then.begun
        first = max(0, begun - (then.seen - begun) // 2) + then.begun  # so that nine ranges of ten hold the change
        after[key] = Stream.anew(int(starts[-1]) + len(found))
        since, until = (int(np.searchsorted(starts, time, side="right")) - 1 for time in (first, last))
        alarms.append(
            Alarm(
                stream=key,
                says=SAYS[then.leading],
                first=first + int(lost_before[since]) + 1,
                last=last + int(lost_before[until + 1]) + 1,
                since=names[since],
                until=names[until],
                raised=name,
                sample=int(starts[-1]) + at + int(lost_before[-1]) + 1,
                e_value=float(np.exp(min(float((log_won + np.log(share)).max()), _LARGEST))),
            )
        )
    return after, alarms, e_values


def shares_of(streams: Collection[str]) -> dict[str, float]:
    """The share of alpha that each stream has (`SHARES`)."""
    fixed = {name: SHARES[name] for name in streams if name in SHARES}
    others = len(streams) - len(fixed)
    return {name: fixed.get(name, (1 - sum(fixed.values())) / max(1, others)) for name in streams}
