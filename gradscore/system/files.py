"""Writing files so that nobody ever sees half of one, and one writer per folder."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from ..errors import OutputError, StoreError

_SUFFIX = ".tmp"
_NUMBERS = count()

_ADVICE = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EACCES: "give a path that can be written",
    errno.EPERM: "give a path that can be written",
    errno.EROFS: "give a path that can be written",
    errno.ENOTDIR: "a part of the path is a file; give another path",
    errno.EEXIST: "a part of the path is a file; give another path",
    errno.ENAMETOOLONG: "give a shorter path",
}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` to write to; it takes the place of `path` when the block ends well.

    The content is on the disk before the name changes, so a crash leaves the old file or the new one. The temporary
    name is this process's and thread's own.

    Raises:
        OutputError: the file cannot be written; what was there before still is.
    """
    if path.is_dir():
        raise OutputError(f"{path}: wanted a file to write to, got a folder; give the path of a file")
    own = f"{os.getpid()}-{threading.get_ident()}-{next(_NUMBERS)}"
    temporary = path.with_name(f".{path.name}.{own}{_SUFFIX}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Words what goes wrong while `path` is written; what goes wrong with files elsewhere is left as it is.

    Raises:
        OutputError: the system does not let it be written.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _is_near(Path(os.fsdecode(error.filename)), path):
            raise
        reason = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "mend that, or give another path")
        raise OutputError(f"{path}: cannot be written: {reason}; {advice}") from error


def _is_near(place: Path, path: Path) -> bool:
    """Whether `place` is the folder of `path`, one above it, or anything below it."""
    return place in path.parents or path.parent in place.parents


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) in one step, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file in one step, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def is_temporary(path: Path) -> bool:
    """Whether `path` is what `replacing` leaves when the process is killed while it writes."""
    return path.name.endswith(_SUFFIX)


def remove_temporaries(folder: Path) -> None:
    """Removes what earlier, killed writers left in `folder` and below; only for who is the only writer there."""
    for path in folder.rglob(f"*{_SUFFIX}"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        StoreError: another process holds it, or it cannot be opened.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be opened: {error.strerror}; check the path and its permissions") from None
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
