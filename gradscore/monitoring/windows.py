"""Windows: which samples belong together, by number or by time, and what is said of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data import table_column
from ..errors import DataError
from ..system import is_whole
from .changes import Alarm

By = int | Literal["day", "week"]
"""So many samples each, or what comes within a day (UTC) or a week from Monday."""

FEWEST = 50
"""Samples below which a window has no expected accuracy: its interval would be wider than 20 points."""

_WANTED = "ISO 8601, as in 2026-11-22 or 2026-11-22T10:00:00+01:00, or seconds since 1970 throughout"
_ISO = (
    r"^(?P<day>\d{4}-\d{2}-\d{2})"
    r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?P<zone> ?(?:Z|[+-]\d{2}(?::?\d{2})?))?)?$"
)
_SECONDS = (1e8, 4_133_980_800)
"""Numbers that are taken for seconds since 1970: from March 1973, so that 20261122 is none, to the end of 2100."""

_TRIED = datetime(2031, 10, 23, tzinfo=UTC)
"""A day that is written and read back to see whether a form says all of it."""


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


def read_times(
    samples: Sequence[str], *, by: object, column: str | None, form: str | None = None
) -> list[object] | None:
    """The times of samples that a user names; None where windows are of a number of samples.

    Args:
        samples: tables, as `open_user_samples` takes them.
        by: how windows are made.
        column: of the tables.
        form: how its texts are written, in the signs of `strftime`, as in `%d.%m.%Y`; ISO 8601, or numbers, if None.

    Raises:
        DataError: no column where one is needed, or one where none is; or a table without it; or a time that is written
            otherwise than `form`.
    """
    if form is not None and column is None:
        raise DataError(f"--time-format {form} says how a column of times is written: give --time COLUMN, too")
    if isinstance(checked_by(by), int):
        if column is not None:
            raise DataError(
                f"--time {column}: windows are of {by} samples, in the order of the table; leave it out, or give "
                "--by day or --by week"
            )
        return None
    if column is None:
        raise DataError(f"--by {by} needs the times of the samples: give --time COLUMN, a column of a table of samples")
    return (
        table_column(samples, column) if form is None else _written(table_column(samples, column, as_text=True), form)
    )


def _written(values: list[object], form: str) -> list[object]:
    """Times from texts of a form."""
    try:
        date_back = datetime.strptime(_TRIED.strftime(form), form).date()
    except ValueError as error:
        raise DataError(f"--time-format {form}: {error}; wanted signs of strftime, as in %d.%m.%Y %H:%M") from None
    if date_back != _TRIED.date():
        raise DataError(f"--time-format {form}: it says no day, month and year; wanted as in %d.%m.%Y %H:%M")
    column = pd.Series(values, dtype=object)
    texts = column.where(column.map(lambda value: isinstance(value, str)), None)
    found = pd.to_datetime(texts.str.strip(), format=form, errors="coerce", utc=True)
    _refuse(column, found.isna(), f"times written as {form}", first=0, advice="")
    return list(found)


def periods(times: Sequence[object] | NDArray[Any] | pd.Series[Any], by: By, *, first: int) -> list[str]:
    """The day of each time, or the Monday of its week, as `2026-11-22` (UTC).

    Args:
        times: ISO 8601 such as `2026-11-22T10:00:00+01:00` or `2026-11-22`, all with a time zone or none with one
            (UTC); dates of Python, NumPy or pandas; or numbers, seconds since 1970.
        by: `day` or `week`.
        first: samples before these, to say where something is wrong.

    Raises:
        DataError: something is no time, can be read as several, or is written otherwise than the rest.
    """
    column = pd.Series(times).reset_index(drop=True)
    if pd.api.types.is_datetime64_any_dtype(column):
        _refuse(column, column.isna(), _WANTED, first=first)
        found = pd.to_datetime(column, utc=True)
    elif pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        # No milliseconds, and no digits such as 20261122, which are a date to their writer.
        wanted = "seconds since 1970, from 1973 to 2100 (divide milliseconds by 1000, and write dates as 2026-11-22)"
        _refuse(column, ~column.between(*_SECONDS), wanted, first=first, advice="")
        found = pd.to_datetime(column, utc=True, unit="s")
    else:
        found = _of_objects(column.astype(object), first=first)
    days = found.dt.tz_localize(None).to_numpy().astype("datetime64[D]").astype(np.int64)
    if by == "week":
        days = days - (days + 3) % 7  # day 0, the first of 1970, was a Thursday
    return [str(day) for day in days.astype("datetime64[D]")]


def _of_objects(column: pd.Series[Any], *, first: int) -> pd.Series[Any]:
    """Texts, and dates of Python, in UTC."""
    is_text = column.map(lambda value: isinstance(value, str)).to_numpy(dtype=bool)
    is_date = column.map(lambda value: isinstance(value, date) and not pd.isna(value)).to_numpy(dtype=bool)
    texts = column.where(is_text, "").map(str.strip)
    parts = texts.str.extract(_ISO)
    _refuse(column, ~is_date & parts["day"].isna(), _WANTED, first=first)
    found = pd.to_datetime(
        texts.str.replace(",", ".").where(is_text, column), utc=True, errors="coerce", format="ISO8601"
    )
    _refuse(column, found.isna(), "a day and a time that there are", first=first, advice="")
    has_zone = parts["zone"].notna() | column.map(lambda value: getattr(value, "tzinfo", None) is not None)
    other = has_zone != bool(has_zone.iloc[0]) if len(has_zone) else has_zone
    says = "no time zone" if len(has_zone) and not has_zone.iloc[0] else "a time zone"
    _refuse(column, other, f"{says}, as the sample before it has (none is UTC)", first=first, advice="")
    return found


def _refuse(
    column: pd.Series[Any],
    bad: pd.Series[Any] | NDArray[np.bool_],
    wanted: str,
    *,
    first: int,
    advice: str = ", or say how times are written (--time-format)",
) -> None:
    lost = np.flatnonzero(np.asarray(bad))
    if len(lost):
        place = int(lost[0])
        row = f" (row {place} of this call)" if first else ""
        value = column.iloc[place]
        got = value.item() if hasattr(value, "item") else value
        raise DataError(
            f"time of sample {first + place}{row}: wanted {wanted}, got {got!r} ({len(lost)} of {len(column)} are "
            f"such); mend or leave out these samples{advice}"
        )


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
