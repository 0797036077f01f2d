"""A local folder and what lies below an address, kept alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..errors import ObjectStorageError, OutputError
from ..system import file_sha256, is_temporary, parse_json, replacing, write_text, writing
from .address import Address
from .storage import ANY, Entry, Storage

AT_ONCE = 8
"""Objects that are moved at the same time."""

_SMALL = 4 * 2**20
"""Bytes up to which a file that was written anew is compared by content."""


class Seen(NamedTuple):
    """A file as it was when it was the same here and there.

    Attributes:
        tag: of the object.
        size: of the file, in bytes.
        changed: when the file was changed, in nanoseconds.
        sha256: of its content, if it is small; empty otherwise.
    """

    tag: str
    size: int
    changed: int
    sha256: str = ""


class Mirror:
    """A folder with local copies of what lies below an address; an index remembers what was the same last time."""

    def __init__(self, storage: Storage, address: Address, folder: Path, index: Path) -> None:
        """Takes a folder, which need not be there."""
        self.address, self.folder = address, folder
        self._storage, self._index = storage, index
        self.seen = _read(index)

    def listing(self) -> dict[str, Entry]:
        """What lies below the address now."""
        return self._storage.listing(self.address)

    def pull(self, there: Mapping[str, Entry], *, wanted: Callable[[str], bool] = lambda _: True) -> bool:
        """Makes the folder like a listing; what is wanted and not in the listing goes.

        Returns:
            Whether anything was downloaded.

        Raises:
            ObjectStorageError: an object cannot be had.
            OutputError: the folder cannot be written, or its disk has no room for it.
        """
        self._check_names(there)
        here = self._here()
        for name in here:
            if name not in there and wanted(name):
                (self.folder / name).unlink(missing_ok=True)
                self.seen.pop(name, None)
        missing = {
            name: entry
            for name, entry in there.items()
            if name not in here or name not in self.seen or self.seen[name][:3] != (entry.tag, *here[name])
        }
        self._check_room(missing)
        try:
            _each(lambda name: self._download(name, there[name]), missing)
        finally:
            if missing:
                self.remember()
        return bool(missing)

    def changed(self) -> list[str]:
        """The files that are not as they were last time, the earliest change first."""
        here = self._here()
        found = [name for name, now in here.items() if self._is_other(name, now)]
        return sorted(found, key=lambda name: (here[name][1], name))

    def gone(self) -> list[str]:
        """The files that were there last time."""
        here = self._here()
        return [name for name in self.seen if name not in here]

    def put(self, name: str, *, replaces: Any = ANY) -> None:
        """Uploads a file; arguments and errors as those of `Storage.upload`."""
        now = self._seen(name)
        entry = self._storage.upload(self.folder / name, self.address / name, replaces=replaces)
        self.seen[name] = now._replace(tag=entry.tag)

    def put_all(self, names: Iterable[str]) -> None:
        """Uploads files, several at a time."""
        _each(self.put, names)

    def put_text(self, name: str, text: str) -> None:
        """Uploads another content than the file has, which stays to be uploaded."""
        entry = self._storage.upload(text.encode(), self.address / name)
        self.seen[name] = Seen(entry.tag, -1, 0)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects."""

        def remove(name: str) -> None:
            self._storage.delete(self.address / name)
            self.seen.pop(name, None)

        _each(remove, names)

    def tag(self, name: str) -> str | None:
        """The tag of an object now; None where there is none."""
        entry = self._storage.entry(self.address / name)
        return None if entry is None else entry.tag

    def read(self, name: str) -> tuple[bytes, str] | None:
        """The content and the tag of a small object; None where there is none."""
        entry = self._storage.entry(self.address / name)
        return None if entry is None else (self._storage.read(self.address / name), entry.tag)

    def take_as_seen(self, name: str) -> None:
        """Leaves what is there as it is, until the file here changes."""
        self.seen[name] = self._seen(name)

    def remember(self) -> None:
        """Writes the index."""
        content = {"address": str(self.address), "files": self.seen}
        write_text(self._index, json.dumps(content) + "\n")

    def _here(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file() and not is_temporary(path):
                    found[path.relative_to(self.folder).as_posix()] = _stat(path)
        return found

    def _download(self, name: str, entry: Entry) -> None:
        path = self.folder / name
        with replacing(path) as temporary:
            self._storage.download(self.address / name, temporary, listed=entry)
        self.seen[name] = self._seen(name)._replace(tag=entry.tag)

    def _seen(self, name: str) -> Seen:
        path = self.folder / name
        size, changed = _stat(path)
        return Seen("", size, changed, file_sha256(path) if size <= _SMALL else "")

    def _is_other(self, name: str, now: tuple[int, int]) -> bool:
        """Whether a file has another content than last time; one that was written again with the same has not."""
        known = self.seen.get(name)
        if known is None or known.size != now[0]:
            return True
        return known.changed != now[1] and (not known.sha256 or known.sha256 != file_sha256(self.folder / name))

    def _check_room(self, missing: Mapping[str, Entry]) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        wanted, free = sum(entry.size for entry in missing.values()), shutil.disk_usage(self.folder).free
        if wanted > free:
            raise OutputError(
                f"{self.folder}: the local copy of {self.address} needs {wanted / 1e9:.2f} GB more, and "
                f"{free / 1e9:.2f} GB are free; free some space, or name another folder by GRADSCORE_CACHE"
            )

    def _check_names(self, there: Mapping[str, Entry]) -> None:
        folders = {parent.as_posix() for name in there for parent in PurePosixPath(name).parents}
        if clash := sorted(folders.intersection(there)):
            raise ObjectStorageError(
                f"{self.address / clash[0]}: an object of this name lies beside others below it, which no folder can "
                "hold; rename it"
            )


def _each(call: Callable[[str], None], names: Iterable[str]) -> None:
    """Calls with every name, several at a time; after an error, none of the others begins."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for _ in pool.map(call, names):
                pass
        finally:
            pool.shutdown(cancel_futures=True)


def _stat(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read(index: Path) -> dict[str, Seen]:
    """What an index says; nothing where there is none, or it is damaged, so that all is downloaded."""
    try:
        return {name: Seen(*entry) for name, entry in parse_json(index.read_bytes())["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
