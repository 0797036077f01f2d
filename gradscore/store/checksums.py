"""The checksums of a run folder: every file that a command makes, so that a flipped bit is found.

They are in `SHA256SUMS`, in the format of `sha256sum`, which can check them too. A command that writes into a run
folder does so within `changing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import GradscoreError, StoreError
from ..objects import CHECKSUMS
from ..system import file_sha256, is_temporary, only_writer, write_text
from .manifest import Manifest
from .shards import listed_files, read_shard

_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a look at every file of a run folder found.

    Attributes:
        intact: the files with the content that was recorded.
        damaged: the others, and what should be there and is not, as `path: what is wrong`.
        not_recorded: files without a recorded checksum: made by an interrupted command or by somebody else.
    """

    intact: list[str]
    damaged: list[str]
    not_recorded: list[str]


@contextmanager
def changing(run: Path, parts: Sequence[str], *, rewritten: Sequence[str] | None = None) -> Iterator[None]:
    """Holds a run folder for this process, and records checksums of what it makes there when the block ends well.

    What is about to be rewritten is not recorded meanwhile, so that a killed command leaves nothing that looks damaged;
    after an error, what still has its recorded content is recorded again. A recorded checksum of a file that is not
    rewritten stays, so that damage to it stays visible; so does that of a file that was missing before and still is,
    unless it is among what was rewritten.

    Args:
        run: the run folder.
        parts: files and folders in it, as relative paths, that are recorded.
        rewritten: those among them that are written anew in any case; None for all.

    Raises:
        StoreError: another process holds it, or `SHA256SUMS` is damaged.
        OutputError: `SHA256SUMS` cannot be written.
    """
    with only_writer(run):
        before = read_checksums(run)
        fresh = parts if rewritten is None else rewritten
        gone = {name for name in before if not (run / name).is_file()}
        known = {
            name: digest
            for name, digest in before.items()
            if not _is_in(name, fresh) and not (name in gone and _is_in(name, parts))
        }
        if known != before:
            _write(run, known)
        try:
            yield
        except BaseException:
            # Without a record before there is none to bring back; an empty one would make a folder in which nothing
            # was begun look like somebody else's.
            if before:
                with suppress(GradscoreError, OSError):  # what went wrong first is what counts
                    _write(run, known | _unchanged(run, before, gone))
            raise
        made = [name for name in _files(run) if _is_in(name, parts) and name not in known]
        missed = {name for name in gone if not _is_in(name, fresh) and not (run / name).is_file()}
        _write(
            run,
            {name: before[name] for name in known.keys() | missed} | {name: file_sha256(run / name) for name in made},
        )


def read_checksums(run: Path) -> dict[str, str]:
    """The recorded checksums of a run folder by relative path; none where no command has ended yet.

    Raises:
        StoreError: `SHA256SUMS` is damaged.
    """
    path = run / CHECKSUMS
    try:
        text = path.read_text(encoding="utf-8")
        found = {line[2]: line[1] for line in map(_LINE.fullmatch, text.splitlines()) if line is not None}
        reason = "" if text == checksum_lines(found) else "a line is not as gradscore writes it"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        found, reason = {}, str(error)
    if reason:
        raise StoreError(
            f"{path}: damaged ({reason}); restore it from a copy, or delete it: then what the next commands write is "
            "recorded"
        )
    return found


def is_intact(run: Path, folder: Path) -> bool:
    """Whether every file of a folder of a run has the content that was recorded, and none is missing.

    Raises:
        StoreError: `SHA256SUMS` is damaged.
    """
    known = read_checksums(run)
    part = folder.relative_to(run).as_posix()
    names = {name for name in [*known, *_files(run)] if _is_in(name, [part])}
    return bool(names) and all(name in known and _is_as(run, name, known) for name in names)


def verify_run(run: Path) -> Verification:
    """Computes every checksum of a run folder anew; shards without one are read, which checks their own.

    What has a recorded checksum must be there, and so must the shards that the manifest lists.

    Raises:
        StoreError: `SHA256SUMS` is damaged.
        OSError: a file cannot be read.
    """
    known = read_checksums(run)
    there = [name for name in _files(run) if name != CHECKSUMS]
    damaged = [f"{name}: missing" for name in sorted((known.keys() | _listed(run)) - set(there))]
    damaged += [
        f"{name}: not the content that was recorded" for name in there if name in known and not _is_as(run, name, known)
    ]
    not_recorded = [name for name in there if name not in known]
    damaged += [f"{name}: {wrong}" for name in not_recorded if (wrong := _shard_damage(run, name))]
    named = {line.partition(": ")[0] for line in damaged}
    return Verification(
        intact=[name for name in there if name in known and name not in named],
        damaged=sorted(damaged),
        not_recorded=[name for name in not_recorded if name not in named],
    )


def _is_as(run: Path, name: str, known: Mapping[str, str]) -> bool:
    return (run / name).is_file() and file_sha256(run / name) == known[name]


def _unchanged(run: Path, before: Mapping[str, str], gone: set[str]) -> dict[str, str]:
    """The records of what has its recorded content, and of what was gone and still is."""
    return {
        name: digest
        for name, digest in before.items()
        if _is_as(run, name, before) or (name in gone and not (run / name).is_file())
    }


def _listed(run: Path) -> set[str]:
    """The files that the manifest lists; none where it cannot be read."""
    try:
        return {path.relative_to(run).as_posix() for path in listed_files(run, Manifest.read(run))}
    except StoreError:
        return set()


def _shard_damage(run: Path, name: str) -> str:
    if not (name.startswith("features/") and name.endswith(".parquet")):
        return ""
    try:
        read_shard(run / name)
    except StoreError as error:
        return str(error).partition(": ")[2]
    return ""


def _files(run: Path) -> list[str]:
    """The files of a run folder as relative paths, in order; temporary ones are none."""
    files = (path for path in run.rglob("*") if path.is_file() and not is_temporary(path))
    return sorted(path.relative_to(run).as_posix() for path in files)


def _is_in(name: str, parts: Sequence[str]) -> bool:
    place = PurePosixPath(name)
    return any(place == PurePosixPath(part) or PurePosixPath(part) in place.parents for part in parts)


def _write(run: Path, checksums: Mapping[str, str]) -> None:
    write_text(run / CHECKSUMS, checksum_lines(checksums))


def checksum_lines(checksums: Mapping[str, str]) -> str:
    """What `SHA256SUMS` says, given checksums by relative path."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(checksums.items()))
