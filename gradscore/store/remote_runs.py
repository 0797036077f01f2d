"""Runs in object storage: a run folder on this machine, and the same run below an address, kept alike.

Commands work in the local run folder and know of nothing else. What they write there is uploaded in an order in which
the objects are a valid run, finished or not, at every moment: `SHA256SUMS` goes first and comes back last, what is
replaced is removed before anything new comes, and the manifest of an unfinished run comes before its shards, that of a
finished one after them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ..errors import ObjectStorageError, OutputError, StoreError
from ..objects import Address, Entry, LocalCopy, entry_at, listing, own_home, uploading_after
from .checksums import CHECKSUMS
from .manifest import CONFIG, MANIFEST, differences
from .run_folder import OF_A_RUN

_ATTEMPTS = 3
_PAUSE = 20
"""After a look that found nothing comes a pause so many times as long, so that looks cost a twentieth at most."""


class Tell(Protocol):
    """Takes how far a command is."""

    def __call__(self, split: str, done: int, total: int) -> None:
        """`done` of `total` samples are there; `split` is being worked on."""


class WorkingCopy:
    """A local copy of a run, which `working_copy` opens.

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

    def telling(self, tell: Tell | None = None) -> Tell:
        """What an extraction tells how far it is: uploads what is new, then tells another."""

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
        manifest = _parsed((self.path / MANIFEST).read_bytes()) if (self.path / MANIFEST).exists() else {}
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
        theirs = _parsed(self._copy.read_there(MANIFEST))
        others = differences(
            *({part: each.get(part, {}) for part in ("inputs", "versions")} for each in (theirs, manifest))
        )
        if others:
            raise StoreError(
                f"{self.address}: another process has begun a run here meanwhile, of other inputs ({others[0]}); give "
                "another address"
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


def _by_name(run: Address) -> dict[str, Entry]:
    return {path.relative_to(run.path).as_posix(): entry for path, entry in listing(run).items()}


def refuse_run_objects(address: str | Path, *, option: str) -> None:
    """As `refuse_run_files`, for what is to be written to an address.

    Raises:
        OutputError: it would be part of a run.
        ObjectStorageError: the storage cannot be asked.
    """
    place = Address.parsed(address)
    for folder in place.path.parents[:-2]:
        run = Address(place.protocol, folder)
        if place.path.relative_to(folder).parts[0] in OF_A_RUN and entry_at(run / MANIFEST) is not None:
            raise OutputError(
                f"{option} {place}: this is part of the run {run}, which it would damage; give an address outside of it"
            )


def _parsed(content: bytes) -> dict[str, Any]:
    """A manifest; empty where it is none, so that it is of another run."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
