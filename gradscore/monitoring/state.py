"""What a monitor knows, in one small file of JSON that is replaced in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..errors import MonitorError
from ..system import file_sha256, held, parse_json, sha256, write_text, writing
from .streams import Stream
from .terms import Sums
from .windows import By, Window

FORMAT = "gradscore monitor"
VERSION = 5

_PATIENCE = 10.0
"""Seconds to wait for monitors with other states in the same folder, which hold it for as long as they write one."""

_ADVICE = "restore it from a copy, or remove it to start anew"


@dataclass(frozen=True, kw_only=True)
class State:
    """What a monitor knows.

    Attributes:
        bundle: hash of what it compares with; a state belongs to one bundle.
        by: how windows are made.
        alpha: probability of a false alarm, ever.
        streams: what is watched, by name.
        sums: over the samples of the window that is not complete.
        windows: those that are complete.
        alarmed: the streams that have raised an alarm.
        pending: rows of the window that is not complete, as columns of plain values.
        pending_name: its name, where windows are made by time.
    """

    bundle: str
    by: By
    alpha: float
    streams: Mapping[str, Stream]
    sums: Sums
    windows: tuple[Window, ...] = ()
    alarmed: tuple[str, ...] = ()
    pending: Mapping[str, list[Any]] = field(default_factory=dict)
    pending_name: str | None = None

    @property
    def pending_samples(self) -> int:
        """Samples of the window that is not complete."""
        return len(next(iter(self.pending.values()), []))

    @property
    def samples(self) -> int:
        """Samples so far."""
        return sum(window.samples for window in self.windows) + self.pending_samples


_STORED = TypeAdapter(State)


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
    content = _STORED.dump_python(state, mode="json")
    file = {"format": FORMAT, "version": VERSION, "sha256": sha256(_text(content).encode()), "state": content}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.parent, patience=_PATIENCE):
        if mark_of(path) != replaces:
            raise MonitorError(
                f"{path}: was replaced while these samples were looked at, by another monitor at work for one, so none "
                "of them is counted; let that end, then give them again to a monitor that begins with what is there"
            )
        write_text(path, _text(file) + "\n")
        return mark_of(path)


def read_state(path: Path, fresh: State) -> State:
    """Reads a state back.

    Args:
        path: the file.
        fresh: what the monitor would begin with, which the state has to belong to.

    Raises:
        MonitorError: it is damaged, or belongs to another bundle or other settings.
    """
    try:
        file = parse_json(path.read_bytes())
        found, content, wanted = (file["format"], file["version"]), file.get("state"), file["sha256"]
        text = _text(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MonitorError(f"{path}: no state of a monitor, or cut off; {_ADVICE}") from None
    except OSError as error:
        raise MonitorError(f"{path}: cannot be read: {error.strerror}; check its permissions") from None
    if found != (FORMAT, VERSION):
        raise MonitorError(
            f"{path}: wanted {FORMAT!r} version {VERSION}, got {found[0]!r} version {found[1]!r}; go on with the "
            "gradscore that wrote it, or start anew in another folder"
        )
    if sha256(text.encode()) != wanted:
        raise MonitorError(f"{path}: was changed after it was written; {_ADVICE}")
    state = _STORED.validate_python(content)
    if state.bundle != fresh.bundle:
        raise MonitorError(
            f"{path}: belongs to another bundle; give each bundle a state (or folder) of its own, or remove the file "
            "to start anew with this one"
        )
    for setting in ("by", "alpha"):
        before, now = getattr(state, setting), getattr(fresh, setting)
        if before != now:
            raise MonitorError(
                f"{path}: was begun with {setting} {before}, got {setting} {now}; go on with the same, or give another "
                "folder"
            )
    return state


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)
