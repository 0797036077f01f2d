"""Damages the files of a target one after the other and says what came of reading each."""

import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzz_edits import any_edit, outcome
from fuzz_targets import Target

SECONDS = 10
"""A case that takes longer hangs."""

MEMORY = 16 * 2**30
"""Bytes of address space, so that a bomb is an error and not the end of the machine."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_watched: dict[str, Any] = {"folder": None, "seen": []}


@dataclass(frozen=True)
class Case:
    """What came of one damaged file."""

    number: int
    file: str
    outcome: str


class HangError(BaseException):
    """Reading took too long; no `except Exception` may swallow it."""


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def fuzz(target: Target, folder: Path, run: Path, *, cases: int, seed: int) -> list[Case]:
    """Reads so many damaged versions of the files of a target, of a run, in a folder; a seed gives the same."""
    files, aside = folder / "files", folder / "aside"
    files.mkdir()
    aside.mkdir()
    target.make(files, run)
    contents = {path: path.read_bytes() for path in sorted(files.rglob("*")) if path.is_file()}
    found = []
    with _watching(folder, aside), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(cases):
            random = Random(f"{seed} {number}")
            path = random.choice(list(contents))
            path.write_bytes(any_edit(random, path.name, contents[path]))
            found.append(Case(number, path.name, _outcome(target, path)))
            path.write_bytes(contents[path])
    return found


def _outcome(target: Target, path: Path) -> str:
    _watched["seen"].clear()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        came = outcome(lambda: target.read(path))
    except HangError:
        return "hang"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return f"touched {_watched['seen'][0]}" if _watched["seen"] else came


@contextmanager
def _watching(folder: Path, aside: Path) -> Iterator[None]:
    """Notes what is written outside a folder, run or connected to; temporary files go to `aside`."""
    if not _watched.get("hooked"):
        sys.addaudithook(_seen)
        _watched["hooked"] = True
    before, temporary = signal.signal(signal.SIGALRM, _hang), tempfile.tempdir
    tempfile.tempdir = str(aside)
    _watched["folder"] = folder.resolve()
    try:
        yield
    finally:
        _watched["folder"] = None
        tempfile.tempdir = temporary
        signal.signal(signal.SIGALRM, before)


def _hang(*_: object) -> None:
    raise HangError


def _seen(event: str, arguments: tuple[Any, ...]) -> None:
    folder = _watched["folder"]
    if folder is None:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
    if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.symlink", "os.link", "os.truncate"):
        relative = event == "os.remove" and arguments[1] != -1  # in a folder that is open: the name alone says nothing
        named = not relative and isinstance(arguments[0], str | bytes | os.PathLike)
        place = os.fsdecode(arguments[0]) if named else ""
        if place and place != os.devnull and not Path(place).resolve().is_relative_to(folder):
            _watched["seen"].append(f"{event} {place}")
    elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"):
        _watched["seen"].append(event)
