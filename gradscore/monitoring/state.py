"""What a monitor knows, in one small file of JSON that is replaced in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MonitorError
from ..system import FloatArray, file_sha256, held, parse_json, sha256, write_text, writing
from .betting import BETS, Stream
from .state_checks import check_content, check_pending, check_windows, reason_of
from .sums import Sums
from .windows import By, Window, checked_by

FORMAT = "gradscore monitor"
VERSION = 3

_PATIENCE = 10.0
"""Seconds to wait for monitors with other states in the same folder, which hold it for as long as they write one."""

_MOST_WON = 100.0
"""More than the logarithm of what any bet pays for one value, or takes."""

_ADVICE = "restore it from a copy, or remove it to start anew"


@dataclass(frozen=True, kw_only=True)
class State:
    """What a monitor knows.

    Attributes:
        reference: hash of what it compares with; a state belongs to one bundle.
        by: how windows are made.
        alpha: probability of a false alarm, ever.
        streams: what is watched, by name.
        sums: over the samples of the window that is not complete.
        windows: those that are complete.
        alarmed: the streams that have raised an alarm.
        pending: rows of the window that is not complete, as columns of plain values.
        pending_name: its name, where windows are made by time.
    """

    reference: str
    by: By
    alpha: float
    streams: Mapping[str, Stream]
    sums: Sums
    windows: tuple[Window, ...] = ()
    alarmed: tuple[str, ...] = ()
    pending: Mapping[str, list[Any]] = field(default_factory=dict)
    pending_name: str | None = None


def mark_of(path: Path) -> str | None:
    """What tells the content of a state from any other; None where there is no file."""
    try:
        return file_sha256(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise MonitorError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None


def write_state(path: Path, state: State, *, replaces: str | None) -> str | None:
    """Writes a state in one step.

    Args:
        path: the file.
        state: what it will hold.
        replaces: the mark of what was there when this monitor last looked.

    Returns:
        The mark of what is there now.

    Raises:
        MonitorError: something else is there by now, which would be lost.
        OutputError: it cannot be written; what was there before still is.
        StoreError: another process holds the folder.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "reference": state.reference,
        "by": state.by,
        "alpha": state.alpha,
        "streams": {name: _plain(stream) for name, stream in state.streams.items()},
        "sums": _plain_sums(state.sums),
        "windows": [window.plain() for window in state.windows],
        "alarmed": list(state.alarmed),
        "pending": dict(state.pending),
        "pending_name": state.pending_name,
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.parent, patience=_PATIENCE):
        if mark_of(path) != replaces:
            raise MonitorError(
                f"{path}: was replaced while these samples were looked at, by another monitor at work for one, so none "
                "of them is counted; let that end, then give them again to a monitor that begins with what is there"
            )
        write_text(path, _text({**content, "sha256": sha256(_text(content).encode())}) + "\n")
        return mark_of(path)


def read_state(path: Path, fresh: State, *, judged: Sequence[str]) -> State:
    """Reads a state back.

    Args:
        path: the file.
        fresh: what the monitor would begin with, which the state has to belong to.
        judged: columns of rows beside their names, decisions and streams.

    Raises:
        MonitorError: it is damaged, or belongs to another bundle or other settings.
    """
    try:
        content = parse_json(path.read_bytes())
        wanted = content.pop("sha256")
        known = (content["format"], content["version"])
        text = _text(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MonitorError(f"{path}: no state of a monitor, or cut off; {_ADVICE}") from None
    except OSError as error:
        raise MonitorError(f"{path}: cannot be read: {error.strerror}; check its permissions") from None
    if known != (FORMAT, VERSION):
        raise MonitorError(
            f"{path}: wanted {FORMAT!r} version {VERSION}, got {known[0]!r} version {known[1]!r}; go on with the "
            "gradscore that wrote it, or start anew in another folder"
        )
    if sha256(text.encode()) != wanted:
        raise MonitorError(f"{path}: was changed after it was written; {_ADVICE}")
    try:
        check_content(text)
        _check_belongs(path, content, fresh)
        if content["streams"].keys() != fresh.streams.keys():
            raise ValueError("streams: wanted those of the bundle")
        state = State(
            reference=fresh.reference,
            by=checked_by(content["by"]),
            alpha=float(content["alpha"]),
            streams={name: _stream(content["streams"][name], stream) for name, stream in fresh.streams.items()},
            sums=_sums(content["sums"], fresh.sums),
            windows=tuple(map(Window.of_plain, content["windows"])),
            alarmed=tuple(content["alarmed"]),
            pending=dict(content["pending"]),
            pending_name=content["pending_name"],
        )
        check_windows(state.windows, state.streams, by=state.by)
        check_pending(state.pending, streams=state.streams, judged=judged, by=state.by, samples=state.sums.samples)
    except (ValueError, KeyError, TypeError) as error:
        raise MonitorError(f"{path}: damaged: {reason_of(error)}; {_ADVICE}") from None
    return state


def _check_belongs(path: Path, content: Mapping[str, Any], fresh: State) -> None:
    if content["reference"] != fresh.reference:
        raise MonitorError(
            f"{path}: belongs to another bundle; give each bundle a state (or folder) of its own, or remove the file "
            "to start anew with this one"
        )
    for setting in ("by", "alpha"):
        if content[setting] != getattr(fresh, setting):
            raise MonitorError(
                f"{path}: was begun with {setting} {content[setting]}, got {setting} {getattr(fresh, setting)}; go on "
                "with the same, or give another folder"
            )


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _plain(stream: Stream) -> dict[str, Any]:
    """Without the edges of the bins, which the bundle has."""
    return {
        "counts": stream.counts.tolist(),
        "seen": stream.seen,
        "log_capital": [None if np.isneginf(each) else each for each in stream.log_capital.tolist()],
        "log_since": stream.log_since.tolist(),
        "since": stream.since.tolist(),
    }


def _stream(values: Mapping[str, Any], fresh: Stream) -> Stream:
    found = replace(
        fresh,
        counts=np.array(values["counts"], dtype=np.int64),
        seen=int(values["seen"]),
        log_capital=_floats([-np.inf if each is None else each for each in values["log_capital"]]),
        log_since=_floats(values["log_since"]),
        since=np.array(values["since"], dtype=np.int64),
    )
    sizes = (found.counts.shape, found.log_capital.shape, found.log_since.shape, found.since.shape)
    if sizes != (fresh.counts.shape, *[(len(BETS),)] * 3):
        raise ValueError("another number of bins or bets")
    if (found.counts < fresh.counts).any() or found.counts.sum() - fresh.counts.sum() != found.seen:
        raise ValueError("counts in bins are not those of the calibration samples and the values seen")
    logarithms = np.concatenate([found.log_capital[np.isfinite(found.log_capital)], found.log_since])
    if (found.since > found.seen).any() or (np.abs(logarithms) > _MOST_WON * (found.seen + 1)).any():
        raise ValueError("bets that so many values cannot have won")
    return found


def _plain_sums(sums: Sums) -> dict[str, Any]:
    return {
        "samples": sums.samples,
        "values": sums.values.tolist(),
        "classes": sums.classes.tolist(),
        "certain": sums.certain.tolist(),
    }


def _sums(values: Mapping[str, Any], fresh: Sums) -> Sums:
    found = Sums(
        samples=int(values["samples"]),
        values=_floats(values["values"]),
        classes=_floats(values["classes"]),
        certain=_floats(values["certain"]),
    )
    shapes = [(each.values.shape, each.classes.shape, each.certain.shape) for each in (found, fresh)]
    if shapes[0] != shapes[1]:
        raise ValueError("another number of values or classes")
    if found.classes.sum() != found.samples:
        raise ValueError("another number of predicted classes than of samples")
    return found


def _floats(values: list[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)
