"""Files: written so that nobody sees half of one, one writer per folder, hashes, addresses, JSON and CSV."""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..errors import GradscoreError, OutputError, StoreError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

GIT_IGNORE = ".gitignore"
"""Keeps a new folder of results out of git; it is its user's, to change or delete."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of a file of a few lines that stands for one in the storage of Git LFS."""

OF_LFS = "a pointer of Git LFS in place of the file; fetch the file itself: git lfs pull"
"""Message about such a file, and what to do."""

_SUFFIX = ".tmp"
_NUMBERS = count()
_OWNER = re.compile(rf"\.([^.@]+)@(\d+)-\d+-\d+{re.escape(_SUFFIX)}$")
_HOST = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())
_ABANDONED = 24 * 60 * 60
"""Seconds after which nobody on another machine still writes one file."""

SHORT = 60
"""Characters of a wrong value that a message shows."""

_HELD: set[int] = set()

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


def check_target(*paths: Path) -> None:
    """Makes sure that files can be written, as far as that can be told before.

    Raises:
        OutputError: one is a folder, a device or a pipe, or its folder is none or lets nobody write.
    """
    for path in paths:
        if is_address(path):
            raise OutputError(f"{as_address(path)}: this cannot be written to object storage; give a local path")
        if path.is_dir():
            raise OutputError(f"{path}: wanted a file to write to, got a folder; give the path of a file")
        if path.exists() and not path.is_file():  # a file would take its place, that of /dev/null for example
            raise OutputError(f"{path}: wanted a file to write to, got a device or a pipe; give the path of a file")
        folder = next(each for each in path.absolute().parents if each.exists())
        if not folder.is_dir():
            raise OutputError(f"{path}: {folder} is a file, wanted a folder; give another path")
        if not os.access(folder, os.W_OK):
            raise OutputError(
                f"{path}: nothing can be written in {folder}; change its permissions or give another path"
            )


def clear_page(page: Path, *others: Path) -> None:
    """Removes a page and other files, before what they are made of is written anew.

    So an end halfway, or no package to draw with, leaves no page beside figures that it does not show.

    Raises:
        OutputError: the files cannot be written; nothing was removed.
    """
    files = [page, *others]
    check_target(*files)
    with writing(page):
        for file in files:
            file.unlink(missing_ok=True)


def followed(path: Path) -> Path:
    """Path of a file that a user named: where a link leads, even if nothing is there yet.

    What `replacing` refuses stays as it is.
    """
    is_other = is_address(path) or (path.exists() and not path.is_file())
    return path if is_other else Path(os.path.realpath(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` to write to; it takes the place of `path` when the block ends well.

    The content is on the disk before the name changes, so a crash leaves the old file or the new one. The temporary
    name is this process's and thread's own. Of a link the file takes the place, and what it leads to stays: a run
    folder may be links to another one. What a user names is `followed` before.

    Raises:
        OutputError: the file cannot be written; what was there before still is.
    """
    if is_address(path) or (path.exists() and not path.is_file()):
        check_target(path)
    own = f"{_HOST}@{os.getpid()}-{threading.get_ident()}-{next(_NUMBERS)}"
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


def make_folder(path: Path) -> None:
    """Makes a folder that git ignores; one that is there stays as it is.

    Raises:
        OutputError: the system does not let it be made.
    """
    with writing(path):
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if is_new:
            write_text(path / GIT_IGNORE, "*\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) in one step, as `replacing` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file in one step, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def is_temporary(path: Path) -> bool:
    """Whether `path` is called as what `replacing` leaves when the process is killed while it writes."""
    return path.name.endswith(_SUFFIX)


def is_leftover(path: Path) -> bool:
    """Whether `path` has the name of a process in it, as `replacing` gives, so that it is nobody else's file."""
    return _OWNER.search(path.name) is not None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process, as `held` does, and removes what killed writers left there and below.

    What a process that still runs is writing there without holding the folder stays.

    Raises:
        StoreError: another process holds it, or it cannot be opened.
    """
    with held(folder):
        for path in folder.rglob(f"*{_SUFFIX}"):
            if not _is_being_written(path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        yield


@contextmanager
def held(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Holds `folder` for this process; nothing in it is changed.

    The system lets go of it when the process ends, however it ends; processes that it forks do not hold it.

    Args:
        folder: what to hold.
        patience: seconds to wait for who holds it.

    Raises:
        StoreError: another process holds it, or it cannot be opened.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be opened: {error.strerror}; check the path and its permissions") from None
    _HELD.add(handle)
    try:
        until = time.monotonic() + patience
        while not _is_locked(handle):
            if time.monotonic() >= until:
                raise StoreError(f"{folder}: another process is writing to this folder; wait for it or stop it")
            time.sleep(0.01)
        yield
    finally:
        _HELD.discard(handle)
        os.close(handle)


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_being_written(temporary: Path) -> bool:
    """Whether the process that `replacing` put into the name is another one that runs, or may run elsewhere."""
    found = _OWNER.search(temporary.name)
    if found is None:
        return False
    if found[1] != _HOST:
        with suppress(OSError):
            return time.time() - temporary.stat().st_mtime < _ABANDONED
        return False
    if int(found[2]) == os.getpid():
        return False
    try:
        with suppress(PermissionError):
            os.kill(int(found[2]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _let_go_in_child() -> None:
    # A worker of a data loader outlives its killed parent for seconds, and would hold the folder as long.
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


def sha256(content: bytes) -> str:
    """The SHA-256 of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits; `OSError` if it cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or holds text that no file can hold (half of a pair of
            surrogates).
    """
    try:
        value = json.loads(content)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def parse_document(
    content: bytes,
    of: TypeAdapter[T],
    *,
    where: str | Path,
    error: type[GradscoreError],
    advice: str,
    context: Mapping[str, Any] | None = None,
) -> T:
    """The value of a JSON document, which says first which kind and version it is.

    Args:
        content: the document.
        of: the type of its value.
        where: the file, for messages.
        error: what is raised.
        advice: what to do about a document that is damaged or of another version.
        context: for the validators of the type.

    Raises:
        GradscoreError: it is no JSON, or not of the type.
    """
    try:
        parse_json(content)
        return of.validate_json(content, context=None if context is None else dict(context))
    except ValidationError as problem:
        what = first_fault(problem)
    except ValueError as problem:
        what = f"no JSON: {problem}"
    raise error(f"{where}: damaged, or of another version ({what}); {advice}")


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong with a value, where, and what is there if it is short."""
    first = error.errors()[0]
    got = repr(first["input"]) if isinstance(first["input"], str | int | float | None) else ""
    said = first["msg"].removeprefix("Value error, ") + (f", got {got}" if 0 < len(got) <= SHORT else "")
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), said)))


_TEXT = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):(?:/(.*))?", re.DOTALL)
"""Pattern of an address as `Path` makes it: one slash after the colon, or none where nothing follows."""

_MEANT = re.compile(r"(s3a?|gc?s|az|abfss?|file):(/*)(.*)", re.DOTALL | re.IGNORECASE)
"""Pattern of texts that are meant as an address, however they are written."""


def is_address(given: str | Path) -> bool:
    """Whether this is an address rather than a path; a `Path` may be an address with one of its slashes lost.

    >>> is_address("s3://bucket/runs/a"), is_address(Path("s3://bucket/runs/a")), is_address("npz:/data/a.npz")
    (True, True, False)
    """
    return _parts(given) is not None


def as_address(given: str | Path) -> str:
    """An address with both slashes; anything else as it is.

    >>> as_address(Path("s3://bucket/runs/a"))
    's3://bucket/runs/a'
    """
    found = _parts(given)
    return str(given) if found is None else f"{found[1]}://{found[2] or ''}"


def address_problem(written: str) -> str:
    """Reason why a text that is meant as an address is none, and what to give; empty for all other texts.

    A `Path` made of the text no longer shows it.

    >>> address_problem("s3:/bucket/a")
    's3:/bucket/a: an address has two slashes after the colon; give s3://bucket/a'
    >>> address_problem("s3://bucket/a"), address_problem("npz:/data/a.npz")
    ('', '')
    """
    found = _MEANT.fullmatch(written)
    if found is None:
        return ""
    kind, slashes, rest = found.groups()
    if kind.lower() == "file":
        path = f"{slashes.removeprefix('//')}{rest}"
        return f"{written}: a file of this machine is named by its path alone; give {path}" if slashes else ""
    wrong = (
        "an address has two slashes after the colon" if slashes != "//"
        else "the kind of storage is written in small letters" if kind != kind.lower()
        else "a part of the key is empty, which no path can have" if "//" in rest.rstrip("/")
        else ""
    )  # fmt: skip
    right = f"{kind.lower()}://{re.sub('/+', '/', rest)}"
    return f"{written}: {wrong}; give {right}" if wrong else ""


def _parts(given: str | Path) -> re.Match[str] | None:
    return _AS_PATH.fullmatch(str(given)) if isinstance(given, Path) else _TEXT.fullmatch(given)


_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(
    table: pd.DataFrame, target: Path | IO[str], *, header: bool = True, float_format: str | None = None
) -> None:
    """Writes a table as CSV that spreadsheets and other readers take for what it is, without its index.

    Names of samples and classes are anyone's: one that begins with `=` would compute something, or send it away, on the
    machine of who opens the file, so a `'` stands before it. All texts are quoted where one holds a carriage return,
    which ends a row to readers; the writer of Python itself quotes those only that hold its own end of a line.

    Args:
        table: any; it stays as it is.
        target: a path, or a file that is open for text.
        header: begin with the names of the columns.
        float_format: of numbers, such as `%.9g`; None for all their digits.
    """
    texts = [name for name in table if table[name].dtype.kind == "O"]
    has_return = any(isinstance(value, str) and "\r" in value for name in texts for value in table[name])
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL
    harmless = table.assign(**{str(name): table[name].map(_harmless) for name in texts})
    harmless.to_csv(target, index=False, quoting=quoting, header=header, float_format=float_format)


def _harmless(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_BEGIN_FORMULAS) or reads_as_number(value):
        return value
    return f"'{value}"


def reads_as_number(text: str) -> bool:
    """Whether a text is a number to Python, infinity and NaN among them."""
    try:
        float(text)
    except ValueError:
        return False
    return True
