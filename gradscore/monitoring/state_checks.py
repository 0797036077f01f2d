"""What the state of a monitor has to be: of the right types, and nothing in it at odds with the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .betting import Stream
from .windows import By, Window

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Amount = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Stream(_Part):
    counts: list[_Count]
    seen: _Count
    log_capital: list[float | None]
    log_since: list[float]
    since: list[_Count]


class _Sums(_Part):
    samples: _Count
    values: list[float]
    classes: list[_Amount]
    certain: list[_Amount]


class _Content(_Part):
    format: str
    version: int
    reference: str
    by: int | str
    alpha: float
    streams: dict[str, _Stream]
    sums: _Sums
    windows: list[Window]
    alarmed: list[str]
    pending: dict[str, list[str | float | None]]
    pending_name: str | None


def check_content(text: str) -> None:
    """Raises `ValueError` if something in the JSON of a state is missing, of another type, or out of range."""
    _Content.model_validate_json(text, strict=True)


def check_windows(windows: Sequence[Window], streams: Mapping[str, Stream], *, by: By) -> None:
    """Raises `ValueError` if windows do not follow each other, or streams have not seen what is in them."""
    first = scored = 0
    for window in windows:
        fits = window.first == first and 0 <= window.not_scored <= window.samples and window.complete
        if not fits or window.samples < 1 or (isinstance(by, int) and window.samples != by):
            raise ValueError(f"window {window.name}: does not follow the one before it")
        if window.log10_e_values.keys() != streams.keys():
            raise ValueError(f"window {window.name}: has e-values of other streams")
        first, scored = first + window.samples, scored + window.samples - window.not_scored
    if any(stream.seen != scored for stream in streams.values()):
        raise ValueError("streams have not seen as many values as the windows have")


def check_pending(
    pending: Mapping[str, list[Any]], *, streams: Mapping[str, Stream], judged: Sequence[str], by: By, samples: int
) -> None:
    """Raises `ValueError` if rows of the window that is not complete are none.

    Args:
        pending: the rows, as columns.
        streams: what is watched.
        judged: columns of rows beside their names, decisions and streams.
        by: how windows are made.
        samples: how many of the rows were scored.
    """
    lengths = {len(values) for values in pending.values()} or {0}
    wanted = {"sample_id", "decision", "reason", *judged, *streams} if pending else set()
    if pending.keys() != wanted or len(lengths) > 1 or (isinstance(by, int) and max(lengths) >= by):
        raise ValueError("pending: wanted columns of one length, those of the samples of a window")
    scored = [place for place, decision in enumerate(pending.get("decision", [])) if decision != "error"]
    texts = all(isinstance(pending[name][place], str) for place in scored for name in ("decision", "reason"))
    known = all(isinstance(pending[name][place], float) for place in scored for name in streams)
    judgements = all(not isinstance(pending[name][place], str) for place in scored for name in judged)
    if not (texts and known and judgements and len(scored) == samples):
        raise ValueError("pending: wanted texts and numbers of each sample that was scored")


def reason_of(error: Exception) -> str:
    """What is wrong, on one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
