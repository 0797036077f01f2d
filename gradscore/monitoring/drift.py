"""All streams of a monitor together: what they are worth after a window, and which of them raise an alarm."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from zlib import crc32

import numpy as np
from numpy.random import Generator

from ..system import FloatArray
from .betting import BETS, Stream, threshold_of
from .novelty import NOVELTY
from .windows import Alarm, Window

_LARGEST = 700.0
"""Logarithm of the largest e-value that is said."""


def after_window(
    streams: Mapping[str, Stream],
    values: Mapping[str, FloatArray],
    *,
    before: Sequence[Window],
    name: str,
    alarmed: Collection[str],
    alpha: float,
    seed: int,
) -> tuple[dict[str, Stream], list[Alarm], dict[str, float]]:
    """The streams after a window, the alarms that are raised in it, and the decimal logarithms of its e-values.

    An e-value is what a stream has won, times its share of alpha; that of a window is the largest within it, which has
    reached 1 / alpha if and only if an alarm is, or would have been, raised.

    Args:
        streams: what is known of each before it.
        values: (n,) of the window, by stream.
        before: the windows before it.
        name: its name.
        alarmed: streams that have raised an alarm; they raise no other.
        alpha: bound of the probability that any stream ever raises one without a change.
        seed: of the ranks that are drawn within bins.
    """
    found = {key: stream.after(values[key], random=_draws(seed, before, key)) for key, stream in streams.items()}
    shares = shares_of(streams)
    alarms = [
        _alarm(
            key,
            streams[key],
            values[key],
            log_e + np.log(shares[key]),
            at=int(np.argmax(log_e >= threshold_of(alpha, shares[key]))),
            before=before,
            name=name,
            seed=seed,
        )
        for key, (_, log_e) in found.items()
        if key not in alarmed and len(log_e) and log_e.max() >= threshold_of(alpha, shares[key])
    ]
    largest = {key: log_e.max() if len(log_e) else stream.log_won for key, (stream, log_e) in found.items()}
    e_values = {key: float((each + np.log(shares[key])) / np.log(10)) for key, each in largest.items()}
    return {key: stream for key, (stream, _) in found.items()}, alarms, e_values


def shares_of(streams: Collection[str]) -> dict[str, float]:
    """The share of alpha that each stream has: half of it the novelty, which sees most, and the others as much each."""
    others = len(streams) - (NOVELTY in streams)
    kept = 1.0 if NOVELTY not in streams else 0.5
    return {name: 0.5 if name == NOVELTY else kept / others for name in streams}


def _alarm(
    key: str,
    stream: Stream,
    values: FloatArray,
    log_e: FloatArray,
    *,
    at: int,
    before: Sequence[Window],
    name: str,
    seed: int,
) -> Alarm:
    """The alarm that a stream raises at one of the values of a window; a share of alpha is its own."""
    then, _ = stream.after(values[: at + 1], random=_draws(seed, before, key))
    sizes = [window.samples - window.not_scored for window in before]
    starts, names = np.concatenate([[0], np.cumsum(sizes)]), [*(window.name for window in before), name]
    since = int(np.searchsorted(starts, then.since[then.leading], side="right")) - 1
    return Alarm(
        stream=key,
        says=BETS[then.leading].says,
        since=names[since],
        raised=name,
        sample=int(starts[-1]) + at + 1,
        e_value=float(np.exp(min(float(log_e.max()), _LARGEST))),
    )


def _draws(seed: int, before: Sequence[Window], key: str) -> Generator:
    """Ranks within bins are drawn from a seed of the window's own, so that it does not matter where a call ends."""
    return np.random.default_rng([seed, len(before), crc32(key.encode())])
