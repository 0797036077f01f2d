"""Runs in object storage: a run folder on this machine, and the same run below an address, kept alike.

Commands work in the local run folder and know of nothing else. What they write there is uploaded in an order in which
the objects are a valid run, finished or not, at every moment: what is about to change is first taken out of
`SHA256SUMS`, the manifest of an unfinished run comes before its shards and that of a finished one after them, and
`SHA256SUMS` last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ..errors import ObjectStorageError, OutputError, StoreError
from ..objects import Address, ConflictError, Mirror, Storage, call, own_folder, uploading_after
from ..system import parse_json
from .checksums import CHECKSUMS, checksum_lines, read_checksums
from .manifest import CONFIG, MANIFEST, differences
from .run_folder import OF_A_RUN

_STATE = (CONFIG, MANIFEST, CHECKSUMS)
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

    def __init__(self, address: Address, mirror: Mirror) -> None:
        """Takes a mirror that was pulled."""
        self.address, self.path = address, mirror.folder
        self._mirror = mirror
        self._recorded = self._checksums()
        self._tag = mirror.seen[MANIFEST].tag if MANIFEST in mirror.seen else None
        self._failed = self._moved = False
        self._next_look = 0.0

    def telling(self, tell: Tell | None = None) -> Tell:
        """What an extraction tells how far it is: uploads what is new, then tells another."""

        def told(split: str, done: int, total: int) -> None:
            if time.monotonic() >= self._next_look:
                began = time.monotonic()
                self.upload()
                ended = time.monotonic()
                self._next_look = ended if self._moved else ended + _PAUSE * (ended - began)
            if tell is not None:
                tell(split, done, total)

        return told

    def upload(self) -> None:
        """Uploads what changed here since the last time; nothing here may be written meanwhile.

        Raises:
            StoreError: another run was begun at this address meanwhile, by another process.
            ObjectStorageError: the storage does not take it.
        """
        changed, gone = self._mirror.changed(), self._mirror.gone()
        self._moved = bool(changed or gone)
        if not self._moved or self._failed:
            return
        try:
            self._upload(changed, gone)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._mirror.remember()

    def _upload(self, changed: Sequence[str], gone: Sequence[str]) -> None:
        self._refuse_changed()
        files = [name for name in changed if name not in _STATE]
        shards = [name for name in files if name.startswith("features/")]
        others = [name for name in files if not name.startswith("features/")]
        self._forget_checksums({*changed, *gone})
        state = [name for name in (MANIFEST, CONFIG) if name in changed]
        is_finished = bool(self._manifest().get("finished"))
        # What shares say of themselves is needed until the manifest says that they were merged.
        first, last = ([], gone) if is_finished and MANIFEST in state else (gone, [])
        # Files that belong together are never of two ages: what is replaced goes first.
        replaced = [name for name in files if name in self._mirror.seen]
        self._mirror.delete([*replaced, *first])
        ours = is_finished or self._put_state(state)
        self._mirror.put_all(shards)
        for name in others:
            self._mirror.put(name)
        ours = self._put_state(state) if is_finished else ours
        self._mirror.delete(last)
        if ours and CHECKSUMS in changed:
            self._mirror.put(CHECKSUMS)
            self._recorded = self._checksums()
        elif CHECKSUMS in changed:
            self._mirror.take_as_seen(CHECKSUMS)

    def _put_state(self, names: Sequence[str]) -> bool:
        """Uploads manifest and settings; whether they are those of this process and not of one that did the same."""
        if MANIFEST not in names:
            for name in names:
                self._mirror.put(name)
            return True
        ours = self._put_manifest()
        for name in names:
            if name != MANIFEST and ours:
                self._mirror.put(name)
            elif name != MANIFEST:
                with suppress(ConflictError):
                    self._mirror.put(name, replaces=None)
                self._mirror.take_as_seen(name)
        return ours

    def _put_manifest(self) -> bool:
        for _ in range(_ATTEMPTS):
            try:
                self._mirror.put(MANIFEST, replaces=self._tag)
            except ConflictError:
                is_first = self._tag is None
                found = self._mirror.read(MANIFEST)
            else:
                self._tag = self._mirror.seen[MANIFEST].tag
                return True
            self._tag = None if found is None else found[1]
            if found is not None:
                self._refuse_others(_parsed(found[0]))
                is_ours = found[0] == (self.path / MANIFEST).read_bytes()  # its answer was lost on the way
                if is_ours or is_first or _parsed(found[0])["finished"]:
                    self._mirror.take_as_seen(MANIFEST)
                    return is_ours
        raise StoreError(f"{self.address}: other processes write to this run all the time; wait for them or stop them")

    def _refuse_changed(self) -> None:
        """Refuses to touch anything where another process has begun another run since this one looked."""
        if self._mirror.tag(MANIFEST) not in (None, self._tag) and (found := self._mirror.read(MANIFEST)) is not None:
            self._refuse_others(_parsed(found[0]))

    def _refuse_others(self, theirs: Mapping[str, Any]) -> None:
        """Refuses to go on where another process has begun another run meanwhile."""
        ours, parts = self._manifest(), ("inputs", "versions")
        if not (self.path / MANIFEST).exists():
            return
        others = differences(*({part: each.get(part, {}) for part in parts} for each in (theirs, ours)))
        if others:
            raise StoreError(
                f"{self.address}: another process has begun a run here meanwhile, of other inputs ({others[0]}); give "
                "another address"
            )

    def _forget_checksums(self, touched: set[str]) -> None:
        kept = {name: digest for name, digest in self._recorded.items() if name not in touched}
        if kept != self._recorded:
            self._mirror.put_text(CHECKSUMS, checksum_lines(kept))
            self._recorded = kept

    def _checksums(self) -> dict[str, str]:
        with suppress(StoreError):  # a command that reads them says what is wrong
            return read_checksums(self.path)
        return {}

    def _manifest(self) -> dict[str, Any]:
        try:
            return _parsed((self.path / MANIFEST).read_bytes())
        except OSError:
            return {}


def refuse_run_objects(address: str | Path, *, option: str) -> None:
    """As `refuse_run_files`, for what is to be written to an address.

    Raises:
        OutputError: it would be part of a run.
        ObjectStorageError: the storage cannot be asked.
    """
    place = Address.parsed(address)
    storage, parts = Storage(place), place.key.split("/")
    for depth in range(1, len(parts)):
        run = Address(place.protocol, place.bucket, "/".join(parts[:depth]))
        if parts[depth] in OF_A_RUN and storage.entry(run / MANIFEST) is not None:
            raise OutputError(
                f"{option} {place}: this is part of the run {run}, which it would damage; give an address outside of it"
            )


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
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder("runs", place))
        mirror = Mirror(Storage(place), place, folder / "run", folder / "index.json")
        _pull(mirror, must_exist=must_exist)
        call(mirror.folder, str(place))
        copy = WorkingCopy(place, mirror)
        with uploading_after(copy.upload):
            yield copy


def _pull(mirror: Mirror, *, must_exist: bool) -> None:
    for _ in range(_ATTEMPTS):
        there = mirror.listing()
        if MANIFEST not in there and (there or must_exist):
            what = "are objects of something else than a run" if there else "is no run"
            raise StoreError(
                f"{mirror.address}: there {what}, it has no {MANIFEST}; give the address of a run, or to gradscore "
                "extract another one"
            )
        if not mirror.pull(there):
            return
        now = mirror.listing()
        if all(now.get(name) == entry for name, entry in there.items()):
            return
    raise ObjectStorageError(f"{mirror.address}: it is being rewritten all the time; wait for who does, then try again")


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = parse_json(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
