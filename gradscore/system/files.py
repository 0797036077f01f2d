"""Writing files so that nobody ever sees half of one, and one writer per folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError

_SUFFIX = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` to write to; it takes the place of `path` when the block ends well.

    The content is on the disk before the name changes, so a crash leaves the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _SUFFIX)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) in one step, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def is_temporary(path: Path) -> bool:
    """Whether `path` is what `replacing` leaves when the process is killed while it writes."""
    return path.name.endswith(_SUFFIX)


def remove_temporaries(folder: Path) -> None:
    """Removes what earlier, killed writers left anywhere under `folder`."""
    for path in folder.rglob(f"*{_SUFFIX}"):
        path.unlink(missing_ok=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        StoreError: another process holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{folder}: another process is writing to this run folder; wait for it or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
