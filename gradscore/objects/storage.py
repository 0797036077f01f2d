"""Objects of one kind of storage: listed, downloaded, uploaded, deleted, with bounded patience."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec

from ..errors import MissingExtraError, ObjectStorageError
from .address import Address, is_usable
from .faults import S3, is_passing, is_refused_replacement, is_unknown_condition, worded

Found = TypeVar("Found")

ANY: Final = object()
"""Stands for whatever content an upload may replace."""

WAITS = (0.2, 0.8, 2.0)
"""Seconds before another try."""

PATIENCE = 8.0
"""No other try begins so many seconds after the first where the storage cannot be reached."""

_PARTS = {"chunksize": 8 * 2**20, "max_concurrency": 2}
"""Bytes of a part of a large object on S3, and how many of one object are in memory at once."""

_CONNECTING, _ANSWERING, _MOVING = 4, 8, 60
"""Seconds to wait for a connection, for an answer, and for an answer while content is moved."""

_TAGS = ("ETag", "etag", "md5Hash", "md5", "mtime", "LastModified", "last_modified", "created")
"""What tells one content of an object from another, in the order of preference."""


class ConflictError(ObjectStorageError):
    """An object that was to be replaced is not what was expected: another process has written it."""


@dataclass(frozen=True)
class Entry:
    """What a listing says of an object: its size in bytes, and a tag that differs where the content does."""

    size: int
    tag: str


class Storage:
    """The storage that an address is in."""

    def __init__(self, address: Address) -> None:
        """Connects to nothing yet."""
        self._address = address

    def listing(self, address: Address) -> dict[str, Entry]:
        """The objects below an address by relative key; by an empty one the object at the address itself.

        Raises:
            ObjectStorageError: there is no such bucket, it cannot be reached, or a key can be no path.
        """
        found = self._tried(lambda: self._quick.find(address.path, detail=True), address)
        entries = {}
        for name, info in found.items():
            key = name.lstrip("/").removeprefix(address.path).lstrip("/")
            if key.endswith("/") or info.get("type") == "directory":
                continue  # stands for an empty folder
            if key and not is_usable(key):
                raise ObjectStorageError(
                    f"{address}: the key {key!r} below it can be no path of a local copy; rename that object"
                )
            entries[key] = _entry(info)
        return entries

    def entry(self, address: Address) -> Entry | None:
        """What is at an address; None where there is nothing."""

        def look() -> Entry | None:
            try:
                return _entry(self._quick.info(address.path))
            except FileNotFoundError:
                return None

        return self._tried(look, address)

    def read(self, address: Address) -> bytes:
        """The content of a small object.

        Raises:
            ObjectStorageError: it is not there, or cannot be reached.
        """
        return bytes(self._tried(lambda: self._quick.cat_file(address.path), address))

    def download(self, address: Address, target: Path, *, listed: Entry) -> None:
        """Writes the content of an object, of which a listing said `listed`, to a file.

        Raises:
            ObjectStorageError: it is gone, ends early, changes meanwhile, or cannot be reached.
            OSError: the file cannot be written.
        """

        def get() -> None:
            self._patient.get_file(address.path, str(target), **self._parts)
            if target.stat().st_size != listed.size:
                raise EOFError(f"wanted {listed.size} bytes, got {target.stat().st_size}")
            is_in_parts = listed.size > self._parts.get("chunksize", listed.size)
            if is_in_parts and _entry(self._quick.info(address.path)) != listed:
                raise EOFError("it changed meanwhile")  # the parts may be of two contents

        self._tried(get, address)

    def upload(self, source: Path | bytes, address: Address, *, replaces: Any = ANY) -> Entry:
        """Writes an object in one step.

        Args:
            source: a file, which is read piece by piece, or the content.
            address: of the object.
            replaces: the tag of the content that it may replace, None for none at all. Storage other than S3, or
                without conditional writes, is asked beforehand, so that two processes can pass each other unseen.

        Raises:
            ConflictError: something else is there.
            ObjectStorageError: it cannot be written.
        """
        condition: dict[str, Any] = {}
        if replaces is not ANY and self._has_conditions:
            condition = {"mode": "create"} if replaces is None else {"IfMatch": replaces}
        elif replaces is not ANY:
            self._compare(address, replaces)
        try:
            self._tried(lambda: self._put(source, address, condition), address)
        except ObjectStorageError as error:
            if not condition or not is_unknown_condition(error.__cause__):
                raise
            self._compare(address, replaces)
            self._tried(lambda: self._put(source, address, {}), address)
        found = self.entry(address)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if found is None or found.size != size:
            raise ObjectStorageError(f"{address}: {size} bytes were uploaded, and others are there; run it again")
        return found

    def delete(self, address: Address) -> None:
        """Removes an object, if it is there."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._quick.rm_file(address.path)

        self._tried(remove, address)

    def _put(self, source: Path | bytes, address: Address, condition: Mapping[str, Any]) -> None:
        if isinstance(source, bytes):
            self._patient.pipe_file(address.path, source, **condition)
            return
        self._patient.put_file(str(source), address.path, **self._parts, **condition)

    def _compare(self, address: Address, replaces: str | None) -> None:
        there = self.entry(address)
        if (None if there is None else there.tag) != replaces:
            raise ConflictError(f"{address}: another process has written it")

    def _tried(self, call: Callable[[], Found], address: Address) -> Found:
        """Calls, again where what went wrong may pass, and says in our words what did not."""
        began = time.monotonic()
        for wait in (*WAITS, None):
            try:
                return call()
            except Exception as error:
                if is_refused_replacement(error):
                    raise ConflictError(f"{address}: another process has written it") from None
                late = time.monotonic() - began > PATIENCE
                if wait is None or not is_passing(error, late=late):
                    raise worded(error, address) from error
                time.sleep(wait)
        raise AssertionError

    @property
    def _parts(self) -> dict[str, int]:
        return _PARTS if self._has_conditions else {}

    @property
    def _has_conditions(self) -> bool:
        return self._address.protocol in S3

    @cached_property
    def _quick(self) -> Any:
        return _filesystem(self._address.protocol, _ANSWERING, _environment())

    @cached_property
    def _patient(self) -> Any:
        return _filesystem(self._address.protocol, _MOVING, _environment())


def _entry(info: Mapping[str, Any]) -> Entry:
    return Entry(int(info["size"]), next((str(info[name]) for name in _TAGS if info.get(name) is not None), ""))


def _environment() -> tuple[tuple[str, str], ...]:
    """What connections depend on, so that they can be kept."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))


@lru_cache(maxsize=8)
def _filesystem(protocol: str, answering: int, _environment: tuple[tuple[str, str], ...]) -> Any:
    if protocol not in fsspec.available_protocols():
        raise ObjectStorageError(
            f"{protocol}://: no such kind of object storage is known; wanted one of fsspec's, such as s3://"
        )
    options: dict[str, Any] = {}
    if protocol in S3:
        options["config_kwargs"] = {
            "connect_timeout": _CONNECTING,
            "read_timeout": answering,
            "retries": {"total_max_attempts": 1},  # tries are counted here
        }
    try:
        found = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError as error:
        why = "" if protocol in S3 else f" ({error})"
        how = (
            "run `pip install 'gradscore[s3]'`"
            if protocol in S3
            else "use s3://, which the extra s3 reads, or install it"
        )
        raise MissingExtraError(
            f"{protocol}://: the package that reads this kind of object storage is not installed{why}; {how} and run "
            "the same command again"
        ) from None
    if hasattr(found, "retries"):
        found.retries = 1
    return found
