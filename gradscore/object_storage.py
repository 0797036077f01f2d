"""Runs, data and results in object storage: pulled, worked on, and pushed.

`s3://` with the extra `s3`, and whatever else fsspec knows. Everything else works on paths: `working_copy` gives the
local copy of a run, `fetched` that of data, `uploading` a path to write results to. Each has a `LocalCopy`, which keeps
a folder and what lies below an address alike. Objects are written whole, in one request that shows all or nothing, and
are never renamed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, NamedTuple, Self, TypeVar

import fsspec

from .errors import GradscoreError, MissingExtraError, ObjectStorageError, OutputError, StoreError, reason
from .notices import ADDRESSES, called
from .system import as_address, is_temporary, only_writer, parse_json, replacing, sha256, write_text, writing

AT_ONCE = 8
"""Objects that are moved at the same time."""

S3 = ("s3", "s3a")
"""Protocols of S3."""

S3_OPTIONS: Final[dict[str, Any]] = {
    "max_concurrency": 1,  # parts of one object at once, so that an object is read as one stream
    "config_kwargs": {"connect_timeout": 4, "read_timeout": 10, "retries": {"mode": "standard"}},
}
"""Options of S3; botocore tries again what may pass, three times or as often as AWS_MAX_ATTEMPTS says."""

_PART = {"chunksize": 8 * 2**20}
"""Bytes of a part of a large object on S3."""

_TAGS = ("ETag", "etag", "md5Hash", "md5", "mtime", "LastModified", "last_modified", "created")
"""Fields that tell one content of an object from another, in the order of preference."""

_MOST_COPIES: Final = 1000

CHECKSUMS, CONFIG, MANIFEST = "SHA256SUMS", "config.yaml", "manifest.json"
_OF_A_RUN = (CHECKSUMS, CONFIG, MANIFEST, "evaluation", "features", "meta")
"""Names in a run folder."""

AnyPath = TypeVar("AnyPath", bound=PurePath)

_ATTEMPTS = 3
_PAUSE = 20
"""After a look that found nothing comes a pause so many times as long, so that looks cost a twentieth at most."""


@dataclass(frozen=True)
class Address:
    """Address of an object, or of all objects below a key.

    Attributes:
        protocol: as fsspec calls the kind of storage, `s3` for one.
        path: bucket and key.
    """

    protocol: str
    path: PurePosixPath

    @classmethod
    def parsed(cls, given: str | Path) -> Self:
        """Takes an address apart.

        Raises:
            ObjectStorageError: it names no bucket or no key, or its key cannot be a path of a local copy.
        """
        text = as_address(given)
        protocol, _, rest = text.partition("://")
        bucket, _, key = rest.rstrip("/").partition("/")
        if not bucket or not key:
            raise ObjectStorageError(
                f"{text}: wanted a bucket and a key, got {'a bucket alone' if bucket else 'neither'}; give an address "
                f"such as {protocol}://{bucket or 'bucket'}/runs/example"
            )
        if not _is_usable(key):
            raise ObjectStorageError(
                f"{text}: a local copy can have no such name: a part of the key is empty, '.' or '..'; give another key"
            )
        return cls(protocol, PurePosixPath(bucket, key))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.path.name

    @property
    def parent(self) -> Address:
        """Address of what the object lies in."""
        return Address(self.protocol, self.path.parent)

    def __truediv__(self, name: str) -> Address:
        """The address of an object below this one."""
        return Address(self.protocol, self.path / name)

    def __str__(self) -> str:
        """The address as it is written."""
        return f"{self.protocol}://{self.path}"


class ListedObject(NamedTuple):
    """Object in a listing: its size in bytes, and a tag that differs where the content does."""

    size: int
    tag: str


class Known(NamedTuple):
    """A file that is the same here and in the storage: the tag of the object, size and time of change (ns) here."""

    tag: str
    size: int
    changed: int


class LocalCopy:
    """A local folder that is kept like what lies below an address; an index remembers what was the same last time.

    Attributes:
        address: of what it is a copy.
        folder: the copy, which has the last part of the address as its name.
        known: by name, the files that were the same here and there when they were last moved.
    """

    def __init__(self, address: Address, home: Path) -> None:
        """Takes a folder for the copy and its index, which need not be there."""
        self.address, self.folder, self._index = address, home / address.name, home / "index.json"
        self.known = _read_index(self._index)
        ADDRESSES[str(self.folder)] = str(address)

    def pull(self, there: Mapping[str, ListedObject]) -> bool:
        """Makes the folder like a listing: downloads what is missing or changed, removes everything else.

        Returns:
            Whether anything was downloaded.

        Raises:
            ObjectStorageError: an object cannot be had.
            OutputError: the folder cannot be written, or its disk has no room for it.
        """
        folders = {parent.as_posix() for name in there for parent in PurePosixPath(name).parents}
        if clash := sorted(folders.intersection(there)):
            raise ObjectStorageError(
                f"{self.address / clash[0]}: an object of this name lies beside others below it, which no folder can "
                "hold; rename it"
            )
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        here = self._here()
        for name in here.keys() - there.keys():
            (self.folder / name).unlink(missing_ok=True)
        self.known = {name: known for name, known in self.known.items() if name in there}
        missing = [
            name
            for name, entry in there.items()
            if name not in here or self.known.get(name) != (entry.tag, *here[name])
        ]
        wanted, free = sum(there[name].size for name in missing), shutil.disk_usage(self.folder).free
        if wanted > free:
            raise OutputError(
                f"{self.folder}: the local copy of {self.address} needs {wanted / 1e9:.2f} GB more, and "
                f"{free / 1e9:.2f} GB are free; free some space, or name another folder by GRADSCORE_CACHE"
            )
        try:
            _each(lambda name: self._download(name, there[name]), missing)
        finally:
            self.remember()
        return bool(missing)

    def changes(self) -> tuple[list[str], list[str]]:
        """The files that are not as they were last time, the earliest change first, and those that are gone."""
        here = self._here()
        changed = [name for name, now in here.items() if name not in self.known or self.known[name][1:] != now]
        return sorted(changed, key=lambda name: (here[name][1], name)), [
            name for name in self.known if name not in here
        ]

    def push(self, names: Iterable[str]) -> None:
        """Uploads files, several at a time.

        Raises:
            ObjectStorageError: the storage does not take one.
        """
        _each(self._upload, names)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they are there."""

        def remove(name: str) -> None:
            with _asking(self.address / name) as (files, path), suppress(FileNotFoundError):
                files.rm_file(path)
            self.known.pop(name, None)

        _each(remove, names)

    def leave(self, names: Iterable[str]) -> None:
        """Has files not uploaded until they change again."""
        here = self._here()
        for name in here.keys() & set(names):
            self.known[name] = Known(self.known[name].tag if name in self.known else "", *here[name])

    def remember(self) -> None:
        """Writes the index."""
        write_text(self._index, json.dumps({"address": str(self.address), "files": self.known}) + "\n")

    def _here(self) -> dict[str, tuple[int, int]]:
        """Size and time of change of the files by name."""
        found = {}
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file() and not is_temporary(path):
                    found[path.relative_to(self.folder).as_posix()] = _size_and_time(path)
        return found

    def _download(self, name: str, entry: ListedObject) -> None:
        with replacing(self.folder / name) as temporary, _asking(self.address / name) as (files, path):
            files.get_file(path, str(temporary))
            if (size := temporary.stat().st_size) != entry.size:
                raise EOFError(f"wanted {entry.size} bytes, got {size}")
        self.known[name] = Known(entry.tag, *_size_and_time(self.folder / name))

    def _upload(self, name: str) -> None:
        size, changed = _size_and_time(self.folder / name)
        with _asking(self.address / name) as (files, path):
            files.put_file(str(self.folder / name), path, **(_PART if self.address.protocol in S3 else {}))
        entry = entry_at(self.address / name)
        if entry is None or entry.size != size:
            raise ObjectStorageError(
                f"{self.address / name}: {size} bytes were uploaded, and others are there; run the same command again"
            )
        self.known[name] = Known(entry.tag, size, changed)


def cache_folder() -> Path:
    """Folder of local copies: `GRADSCORE_CACHE`, or `gradscore` where the system keeps what can be made again."""
    given = os.environ.get("GRADSCORE_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "gradscore"


def fetched(given: str | Path, *, beside: str | None = None) -> Path:
    """The local copy of an object, of all objects below a key, or of those that a pattern names.

    What is there already and has not changed in the storage is not downloaded again; what has gone there goes here.

    Args:
        given: an address; `*`, `?` and `[...]` stand for letters but slashes, `**/` for folders.
        beside: the address of a folder in the same bucket that is copied too, where it lies as seen from the other.

    Returns:
        The path of the file or folder, or the pattern of the files.

    Raises:
        ObjectStorageError: there is nothing, or it cannot be had.
        OutputError: the copy cannot be written.
    """
    address = Address.parsed(given)
    parts = address.path.parts
    plain = next((place for place, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    if plain < 2:
        raise ObjectStorageError(f"{address}: a pattern of a whole bucket; name a folder before it")
    there = listing(address, is_pattern=plain < len(parts))
    if not there:
        raise ObjectStorageError(f"{address}: there is no such object, and none below it; check the address")
    base = address.parent if address.path in there else Address(address.protocol, PurePosixPath(*parts[:plain]))
    if beside is not None:
        folder = Address.parsed(beside)
        there |= listing(folder)
        base = Address(base.protocol, PurePosixPath(os.path.commonpath([base.path, folder.path])))
        if base.protocol != folder.protocol or not base.path.parts:
            raise ObjectStorageError(f"{folder}: wanted a folder in the bucket of {address}; give one")
    copy = LocalCopy(base, cache_folder() / "data" / sha256(f"{address} {beside or ''}".encode())[:20])
    copy.pull({path.relative_to(base.path).as_posix(): entry for path, entry in there.items()})
    return copy.folder / address.path.relative_to(base.path)


@contextmanager
def uploading(given: str | Path) -> Iterator[Path]:
    """A path on this machine to write to; what is new there is uploaded at the end, also after an error.

    Files have to be written in one step, as `system.replacing` does, so that an error leaves whole ones.

    Args:
        given: the address of a file or, where its last part has no ending, of a folder; what is there is
            downloaded first, so that what refuses to replace it locally does so.

    Raises:
        ObjectStorageError: the storage cannot be reached, or does not take it.
        OutputError: it would be part of a run, or there is no room here.
    """
    place = Address.parsed(given)
    for folder in possible_runs(place.path):
        run = Address(place.protocol, folder)
        if len(folder.parts) > 1 and entry_at(run / MANIFEST) is not None:
            raise OutputError(
                f"{place}: this is part of the run {run}, which it would damage; give an address outside of it"
            )
    is_file = bool(place.path.suffix)
    base = place.parent if is_file else place
    with own_home(place) as home:
        copy = LocalCopy(base, home)
        there = {path: entry for path, entry in listing(place).items() if (path == place.path) == is_file}
        copy.pull({path.relative_to(base.path).as_posix(): entry for path, entry in there.items()})
        with uploading_after(lambda: copy.push(copy.changes()[0])):
            yield copy.folder / place.name if is_file else copy.folder


def possible_runs(place: AnyPath) -> list[AnyPath]:
    """The folders around a place of which it would be a part, were they runs."""
    return [folder for folder in place.parents if place.relative_to(folder).parts[0] in _OF_A_RUN]


@contextmanager
def uploading_after(upload: Callable[[], object]) -> Iterator[None]:
    """Uploads what a block makes at its end, also after an error, which then counts and not that of the upload."""
    try:
        yield
    except (GradscoreError, OSError, KeyboardInterrupt):
        with suppress(GradscoreError, OSError):
            upload()
        raise
    except BaseException:  # that of an exit code, for one
        upload()
        raise
    upload()


@contextmanager
def own_home(place: Address) -> Iterator[Path]:
    """A folder for a copy of what is at an address, which no other process uses; the same as last time, if it is free.

    Raises:
        StoreError: very many processes have such a folder.
        OutputError: it cannot be made.
    """
    base = cache_folder() / "copies" / f"{place.name}-{sha256(str(place).encode())[:12]}"
    with ExitStack() as stack:
        for number in range(_MOST_COPIES):
            home = base / str(number)
            with writing(home):
                home.mkdir(parents=True, exist_ok=True)
            with suppress(StoreError):
                stack.enter_context(only_writer(home))
                break
        else:
            raise StoreError(f"{base}: {_MOST_COPIES} processes work on copies of {place}; remove what is not in use")
        yield home


class WorkingCopy:
    """A local copy of a run, which `working_copy` opens.

    What is written there is uploaded in an order in which the objects are a valid run, finished or not, at every
    moment: `SHA256SUMS` goes first and comes back last, what is replaced is removed before anything new comes, and the
    manifest of an unfinished run comes before its shards, that of a finished one after them.

    Attributes:
        address: of the run.
        path: the run folder on this machine.
    """

    def __init__(self, copy: LocalCopy) -> None:
        """Takes a copy that was pulled."""
        self.address, self.path = copy.address, copy.folder
        self._copy = copy
        self._failed = False
        self._next_look = 0.0

    def telling(self, tell: Callable[[str, int, int], None] | None = None) -> Callable[[str, int, int], None]:
        """Function that an extraction tells how far it is: uploads what is new, then tells another."""

        def upload_and_tell(split: str, done: int, total: int) -> None:
            if time.monotonic() >= self._next_look:
                began = time.monotonic()
                found_something = self.upload()
                ended = time.monotonic()
                self._next_look = ended if found_something else ended + _PAUSE * (ended - began)
            if tell is not None:
                tell(split, done, total)

        return upload_and_tell

    def upload(self) -> bool:
        """Uploads what changed here since the last time; nothing here may be written meanwhile.

        Returns:
            Whether anything had changed. After an upload that failed, nothing is uploaded any more.

        Raises:
            StoreError: another run was begun at this address meanwhile, by another process.
            ObjectStorageError: the storage does not take it.
        """
        changed, gone = self._copy.changes()
        if (changed or gone) and not self._failed:
            self._failed = True
            try:
                self._upload(changed, gone)
                self._failed = False
            finally:
                self._copy.remember()
        return bool(changed or gone)

    def _upload(self, changed: Sequence[str], gone: Sequence[str]) -> None:
        manifest = parse_json((self.path / MANIFEST).read_bytes()) if (self.path / MANIFEST).exists() else {}
        is_finished = bool(manifest.get("finished"))
        manifest_first = [[name] for name in (MANIFEST, CONFIG) if name in changed]
        files = [name for name in changed if name not in (CONFIG, MANIFEST, CHECKSUMS)]
        if not self._is_ours(manifest):
            self._copy.leave((CONFIG, MANIFEST, CHECKSUMS))
            self._copy.push(files)
            return
        # What shares say of themselves is among what is gone, and needed until the manifest says they were merged.
        replaced = [name for name in files if name in self._copy.known]
        if CHECKSUMS in self._copy.known:
            self._copy.delete([CHECKSUMS])
        self._copy.delete(replaced if is_finished else [*replaced, *gone])
        for names in [files, *manifest_first] if is_finished else [*manifest_first, files]:
            self._copy.push(names)
        self._copy.delete(gone if is_finished else [])
        if (self.path / CHECKSUMS).exists():
            self._copy.push([CHECKSUMS])

    def _is_ours(self, manifest: Mapping[str, Any]) -> bool:
        """Whether the manifest there is the one that this process found or wrote, or the one here is further.

        Raises:
            StoreError: another process has begun another run there.
        """
        there, known = entry_at(self.address / MANIFEST), self._copy.known.get(MANIFEST)
        if there is None or not manifest or (known is not None and known.tag == there.tag):
            return True
        with _asking(self.address / MANIFEST) as (files, path):
            content = bytes(files.cat_file(path))
        try:
            theirs = parse_json(content)
        except ValueError:
            theirs = {}
        if any(theirs.get(part) != manifest.get(part) for part in ("inputs", "versions")):
            raise StoreError(
                f"{self.address}: another process has begun a run here meanwhile, of other inputs; give another address"
            )
        return bool(manifest.get("finished")) and not theirs.get("finished")


@contextmanager
def working_copy(address: str | Path, *, must_exist: bool = False) -> Iterator[WorkingCopy]:
    """Opens a run in object storage as a run folder on this machine.

    What is missing here or has changed there is downloaded first; what another process, or a killed one, left here and
    never uploaded is removed. What the block writes is uploaded at its end, also after an error.

    Args:
        address: of the run, `s3://bucket/runs/example`.
        must_exist: refuse an address at which there is no run.

    Raises:
        ObjectStorageError: the storage cannot be reached, or does not do what it is asked.
        StoreError: there is no run, or something else than a run.
        OutputError: the copy cannot be written.
    """
    place = Address.parsed(address)
    with own_home(place) as home:
        copy = LocalCopy(place, home)
        for _ in range(_ATTEMPTS):
            there = _by_name(place)
            if MANIFEST not in there and (there or must_exist):
                what = "are objects of something else than a run" if there else "is no run"
                raise StoreError(
                    f"{place}: there {what}, it has no {MANIFEST}; give the address of a run, or to gradscore extract "
                    "another one"
                )
            if not copy.pull(there) or _by_name(place) == there:
                break
        else:
            raise ObjectStorageError(f"{place}: it is being rewritten all the time; wait for who does, then try again")
        run = WorkingCopy(copy)
        with uploading_after(run.upload):
            yield run


def _by_name(run: Address) -> dict[str, ListedObject]:
    return {path.relative_to(run.path).as_posix(): entry for path, entry in listing(run).items()}


def is_copy(path: Path) -> bool:
    """Whether a file or folder is the local copy of what is at an address."""
    return called(str(path)) != str(path)


def listing(address: Address, *, is_pattern: bool = False) -> dict[PurePosixPath, ListedObject]:
    """The object at an address and those below it, or those that a pattern names, by bucket and key.

    Raises:
        ObjectStorageError: there is no such bucket, it cannot be reached, or a key can be no path.
    """
    with _asking(address) as (files, path):
        found = files.glob(path, detail=True) if is_pattern else files.find(path, detail=True)
    objects = {name.lstrip("/"): about for name, about in found.items() if about.get("type") != "directory"}
    if odd := [key for key in objects if not _is_usable(key.removesuffix("/"))]:
        raise ObjectStorageError(f"{address}: the key {odd[0]!r} can be no path of a local copy; rename that object")
    # A key that ends in a slash stands for an empty folder.
    return {PurePosixPath(key): _entry(about) for key, about in objects.items() if not key.endswith("/")}


def _is_usable(key: str) -> bool:
    """Whether a key can be a relative path that leads nowhere else."""
    return all(part not in ("", ".", "..") and "\0" not in part for part in key.split("/"))


def _each(call: Callable[[str], None], names: Iterable[str]) -> None:
    """Calls with every name, several at a time; after an error, none of the others begins."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for _ in pool.map(call, names):
                pass
        finally:
            pool.shutdown(cancel_futures=True)


def _size_and_time(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read_index(index: Path) -> dict[str, Known]:
    """Entries of an index; nothing where there is none, or it is damaged, so that all is downloaded."""
    try:
        return {name: Known(*entry) for name, entry in parse_json(index.read_bytes())["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _entry(about: Mapping[str, Any]) -> ListedObject:
    return ListedObject(
        int(about["size"]), next((str(about[name]) for name in _TAGS if about.get(name) is not None), "")
    )


def entry_at(address: Address) -> ListedObject | None:
    """Object at an address; None where there is nothing."""
    with _asking(address) as (files, path), suppress(FileNotFoundError):
        return _entry(files.info(path))
    return None


@contextmanager
def _asking(address: Address) -> Iterator[tuple[Any, str]]:
    """The file system of fsspec that an address is in and the path there; says in our words what goes wrong with it."""
    try:
        yield _file_system(address.protocol), str(address.path)
    except GradscoreError:
        raise
    except Exception as error:
        is_local = isinstance(error, OSError) and error.__cause__ is None and error.filename is not None
        if is_local or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)):
            raise
        raise ObjectStorageError(f"{address}: {_meaning(error, address)}") from error


def _file_system(protocol: str) -> Any:
    if protocol == "memory":
        raise ObjectStorageError("memory://: what is written there is gone when the process ends; give another address")
    if protocol in ("http", "https"):  # fsspec reads single files there, and what lies below an address is listed here
        raise ObjectStorageError(
            f"{protocol}://: the web is no object storage; give a file or folder that is here, or an address such as "
            "s3://"
        )
    try:
        found = fsspec.filesystem(protocol, use_listings_cache=False, **(S3_OPTIONS if protocol in S3 else {}))
    except ImportError as error:
        why, how = (
            ("", "run `pip install 'gradscore[s3]'`")
            if protocol in S3
            else (f" ({error})", "use s3://, which the extra s3 reads, or install it")
        )
        raise MissingExtraError(
            f"{protocol}://: the package that reads this kind of object storage is not installed{why}; {how} and run "
            "the same command again"
        ) from None
    except ValueError:
        if protocol in fsspec.available_protocols():
            raise
        raise ObjectStorageError(
            f"{protocol}://: no such kind of object storage is known; wanted one of fsspec's, such as s3://"
        ) from None
    if hasattr(found, "retries"):
        found.retries = 2  # of an object that breaks off while it is read; all else is tried again below it
    return found


_UNREACHABLE = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionError")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")
_BROKEN = ("HTTPClientError", "ClientPayloadError", "IncompleteRead", "IncompleteReadError", "EOFError", "TimeoutError")


def _meaning(error: Exception, address: Address) -> str:
    """Meaning of an error of fsspec or of what it asks, and what to do; their packages need not be installed."""
    is_s3, kinds = address.protocol in S3, {kind.__name__ for kind in type(error).__mro__}
    where = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") if is_s3 else None
    at, endpoint = f" at {where}" if where else "", " and AWS_ENDPOINT_URL" if is_s3 else ""
    said = reason(error)
    if kinds.intersection(_UNREACHABLE):
        return (
            f"the object storage{at} cannot be reached ({said}); check the network{endpoint}, then run the same "
            "command again"
        )
    if kinds.intersection(_NO_CREDENTIALS):
        return (
            f"there are no credentials for it ({said}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    if isinstance(error, PermissionError):
        return f"access is denied{at} ({said}); check the credentials, and what they may read and write"
    if isinstance(error, FileNotFoundError) and "bucket" in said.lower():
        return f"there is no bucket {address.path.parts[0]}{at}; check its name{endpoint}, or make it"
    if isinstance(error, FileNotFoundError):
        return f"there is no such object{at}, or it has gone meanwhile; check the address and run the command again"
    if kinds.intersection(_BROKEN):
        return f"it could not be moved as a whole ({said}); run the same command again, or mend the object"
    if isinstance(error, ValueError):
        return f"it cannot be asked for ({said}); check the address{endpoint}"
    response: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    number = "" if status is None else f"status {status}, "
    return f"the object storage{at} does not do it ({number}{said}); run the same command again later"
