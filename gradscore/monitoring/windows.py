"""Windows: which samples belong together, by number or by time, and what is said of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data import table_column
from ..errors import DataError
from ..system import is_whole

By = int | Literal["day", "week"]
"""So many samples each, or what comes within a day (UTC) or a week from Monday."""

FEWEST = 50
"""Samples below which a window has no expected accuracy: its interval would be wider than 20 points."""

_DATES = pd.Timestamp("1900-01-01"), pd.Timestamp("2100-12-31")
_LATEST = 4_133_980_800  # seconds to the first of 2101
"""From when to when eight digits are taken for a date."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Something changed.

    Attributes:
        stream: what was watched: a score, the confidence, the gradient at a group of parameters, or the novelty.
        says: how it changed.
        since: name of the window in which it probably began.
        raised: name of the window in which it was noticed.
        sample: samples from the first one on until it was noticed.
        e_value: how sure: without a change, it is reached with a probability of one over it at most, ever, by any
            stream: what the stream has won, times the share of alpha that the stream has.
    """

    stream: str
    says: str
    since: str
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
    """What is said of a window.

    Attributes:
        name: its number from 1 on, or its first day.
        first: samples before it.
        samples: how many it has.
        not_scored: how many of them could not be scored.
        complete: False for the last one, while more samples of it may come.
        accuracy: share of predictions that is expected to be right; a sample of no known class counts as wrong. None
            where too few could be scored, and where more than half of them is flagged as OOD.
        low: lower end of the 95 % interval; None where it cannot be known.
        high: upper end.
        mean_confidence: mean of the largest softmax probability.
        ood: share that is flagged as OOD; None without such a detector.
        rejected: share that is rejected.
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
    log10_e_values: dict[str, float]
    alarms: list[Alarm] = field(default_factory=list)
    suspicious: list[Suspicious] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Values of JSON; see `of_plain`."""
        return asdict(self)

    @classmethod
    def of_plain(cls, values: dict[str, Any]) -> Self:
        """Reads back what `plain` gave; `TypeError` or `KeyError` for anything else."""
        alarms = [Alarm(**each) for each in values["alarms"]]
        return cls(**{**values, "alarms": alarms, "suspicious": [Suspicious(**each) for each in values["suspicious"]]})


def checked_by(by: object) -> By:
    """What windows are made by.

    Raises:
        DataError: something else than `day`, `week` or a number of at least `FEWEST`.
    """
    if by in ("day", "week"):
        return by
    number = int(by) if isinstance(by, str) and by.isdecimal() else by
    if is_whole(number) and number >= FEWEST:
        return int(number)
    raise DataError(f"by: wanted day, week or a number of samples of {FEWEST} or more, got {by!r}")


def read_times(samples: Sequence[str], *, by: object, column: str | None) -> list[object] | None:
    """The times of samples that a user names; None where windows are of a number of samples.

    Args:
        samples: tables, as `open_user_images` takes them.
        by: how windows are made.
        column: of the tables.

    Raises:
        DataError: no column where one is needed, or one where none is; or a table without it.
    """
    if isinstance(checked_by(by), int):
        if column is not None:
            raise DataError(
                f"--time {column}: windows are of {by} samples, in the order of the table; leave it out, or give "
                "--by day or --by week"
            )
        return None
    if column is None:
        raise DataError(f"--by {by} needs the times of the samples: give --time COLUMN, a column of a table of samples")
    return table_column(samples, column)


def periods(times: Sequence[object] | NDArray[Any] | pd.Series[Any], by: By, *, first: int) -> list[str]:
    """The day of each time, or the Monday of its week, as `2026-11-22` (UTC).

    Args:
        times: texts such as `2026-11-22T10:00:00+01:00`, dates, or seconds since 1970.
        by: `day` or `week`.
        first: samples before these, to say where something is wrong.

    Raises:
        DataError: something is no time, or a date or seconds, nobody knows which.
    """
    column = pd.Series(times).reset_index(drop=True)
    _check_digits(column, first=first)
    _check_seconds(column, first=first)
    if pd.api.types.is_numeric_dtype(column):
        found = pd.to_datetime(column, utc=True, errors="coerce", unit="s")
    else:
        found = pd.to_datetime(column, utc=True, errors="coerce", format="mixed")
    lost = np.flatnonzero(found.isna().to_numpy())
    if len(lost):
        raise DataError(
            f"time of sample {first + int(lost[0])}: wanted a date, a time or seconds since 1970, got "
            f"{_said(column, int(lost[0]))} ({len(lost)} of {len(column)} are none); mend or leave out these samples"
        )
    days = found.dt.tz_localize(None).to_numpy().astype("datetime64[D]").astype(np.int64)
    if by == "week":
        days = days - (days + 3) % 7  # day 0, the first of 1970, was a Thursday
    return [str(day) for day in days.astype("datetime64[D]")]


def _check_digits(column: pd.Series[Any], *, first: int) -> None:
    """Refuses 20251122, which is a date to its writer and 23 August 1970 in seconds."""
    if pd.api.types.is_datetime64_any_dtype(column):
        return
    digits = column.astype(str).str.strip().str.removesuffix(".0")
    dates = pd.to_datetime(digits.where(digits.str.fullmatch("[0-9]{8}", na=False)), format="%Y%m%d", errors="coerce")
    meant = np.flatnonzero(dates.between(*_DATES).to_numpy())
    if len(meant):
        place = int(meant[0])
        raise DataError(
            f"time of sample {first + place}: wanted a date, a time or seconds since 1970, got {_said(column, place)}; "
            f"write {dates[place]:%Y-%m-%d} for that date, or {dates[place].timestamp():.0f} in seconds since 1970 "
            f"({len(meant)} of {len(column)} are such digits)"
        )


def _check_seconds(column: pd.Series[Any], *, first: int) -> None:
    """Refuses milliseconds, and digits such as 2026112210, which would be read as seconds of another age."""
    if not pd.api.types.is_numeric_dtype(column):
        return
    late = np.flatnonzero((column > _LATEST).to_numpy())
    if len(late):
        raise DataError(
            f"time of sample {first + int(late[0])}: {_said(column, int(late[0]))} seconds since 1970 end after 2100 "
            f"({len(late)} of {len(column)} do); divide milliseconds by 1000, and write dates as 2026-11-22"
        )


def _said(column: pd.Series[Any], place: int) -> str:
    value = column.iloc[place]
    return repr(value.item() if hasattr(value, "item") else value)


def check_order(names: Sequence[str], last: str | None, *, first: int) -> None:
    """Makes sure that windows come one after the other.

    Raises:
        DataError: a sample is of an earlier day or week than one before it.
    """
    before = names[0] if last is None and names else last
    for place, name in enumerate(names):
        if before is not None and name < before:
            raise DataError(
                f"sample {first + place} is of {name}, and one before it of {before}: give the samples in the order of "
                "their times, what comes later in a later call"
            )
        before = name
