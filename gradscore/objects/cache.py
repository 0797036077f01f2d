"""Local copies of data: where they are, and how they come there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from ..errors import ObjectStorageError, StoreError
from ..system import only_writer, sha256, writing
from .address import Address
from .mirror import Mirror
from .storage import Storage

_OBJECTS: Final = "objects"
_SPECIAL: Final = "*?[{"
_MOST_COPIES: Final = 1000


def cache_folder() -> Path:
    """Where local copies are: `GRADSCORE_CACHE`, or `gradscore` where the system keeps what can be made again."""
    given = os.environ.get("GRADSCORE_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "gradscore"


def local_place(given: str | Path) -> Path:
    """Where the local copy of an address is; raises as `Address.parsed`. What lies beside each other stays so."""
    address = Address.parsed(given)
    return cache_folder() / _OBJECTS / address.protocol / address.bucket / address.key


def named_as_addresses(text: str) -> str:
    """A text in which the local copies of data are called by their addresses."""
    return re.sub(rf"{re.escape(str(cache_folder() / _OBJECTS))}/([^/\s]+)/", r"\1://", text)


def fetched(given: str | Path, *, stands_for: Sequence[str] = ()) -> Path:
    """The local copy of an object, of all objects below a key, or of those that a pattern names.

    What is there already and has not changed in the storage is not downloaded again; what has gone there goes here.

    Args:
        given: an address; `*`, `?` and `[...]` stand for letters but slashes, `**/` for folders.
        stands_for: the addresses that are meant, where braces in the address stand for several.

    Returns:
        The path of the file or folder, or the pattern of the files.

    Raises:
        ObjectStorageError: there is nothing, or it cannot be had.
        OutputError: the copy cannot be written.
    """
    address = Address.parsed(given)
    parts = address.key.split("/")
    plain = next((place for place, part in enumerate(parts) if set(part) & set(_SPECIAL)), len(parts))
    meant = [Address.parsed(each).key for each in stands_for or [str(address)]]
    patterns = [key.split("/", plain)[-1] for key in meant] if parts[plain:] else []
    if not plain:
        raise ObjectStorageError(f"{address}: a pattern of a whole bucket; name a folder before it")
    base = Address(address.protocol, address.bucket, "/".join(parts[:plain]))
    storage = Storage(base)
    there = storage.listing(base)
    if "" in there and not patterns:
        base, there = Address(base.protocol, base.bucket, "/".join(parts[: plain - 1])), {base.name: there[""]}
        wanted = re.compile(re.escape(address.name))
    else:
        wanted = re.compile("|".join(map(_expression, patterns)) if patterns else ".*", re.DOTALL)
    chosen = {name: entry for name, entry in there.items() if wanted.fullmatch(name)}
    if not chosen:
        raise ObjectStorageError(f"{address}: there is no such object, and none below it; check the address")
    folder = cache_folder() / _OBJECTS / base.protocol / base.bucket / base.key
    index = cache_folder() / "indexes" / f"{sha256(str(address).encode())[:20]}.json"
    Mirror(storage, base, folder, index).pull(chosen, wanted=lambda name: wanted.fullmatch(name) is not None)
    return local_place(given)


@contextmanager
def own_folder(kind: str, place: Address) -> Iterator[Path]:
    """A folder for a copy of what is at an address, which no other process uses; the same as last time, if it is free.

    Args:
        kind: what such copies are called in the cache.
        place: the address.

    Raises:
        StoreError: very many processes have such a folder.
        OutputError: it cannot be made.
    """
    base = cache_folder() / kind / f"{place.name}-{sha256(str(place).encode())[:12]}"
    with ExitStack() as stack:
        for number in range(_MOST_COPIES):
            folder = base / str(number)
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            with suppress(StoreError):
                stack.enter_context(only_writer(folder))
                break
        else:
            raise StoreError(f"{base}: {_MOST_COPIES} processes work on copies of {place}; remove what is not in use")
        yield folder


def _expression(pattern: str) -> str:
    """What names below the fixed part of a pattern look like."""
    made = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return re.sub(r"\\\[(!?)(.*?)\\\]", _letters, made)


def _letters(found: re.Match[str]) -> str:
    return f"[{'^' if found[1] else ''}{found[2].replace(chr(92) + '-', '-')}]"
