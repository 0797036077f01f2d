"""The files of a run folder: Parquet shards of feature tables, and checksums of everything.

A shard holds the rows of a fixed range of samples and says which it had to skip. Shards are written whole or not at
all, carry checksums, and depend on nothing but their rows: the same rows give the same file byte for byte.

The checksums of every file that a command makes are in `SHA256SUMS`, in the format of `sha256sum`, which can check them
too, so that a flipped bit is found. A command that writes into a run folder does so within `changing`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..columns import BESIDE, RECOMPUTED, SIGNATURE
from ..data import SIGNATURE_SIDE
from ..errors import FORBIDDEN, GradscoreError, OutputError, StoreError, reason
from ..object_storage import CHECKSUMS, CONFIG, MANIFEST, possible_runs
from ..system import GIT_IGNORE, file_sha256, is_temporary, only_writer, replacing, write_text
from .manifest import Count, Manifest, Skipped, StoredRecord

_NOTE = b"gradscore"
_CHECKSUM = re.compile(r"([0-9a-f]{64})  (\S.*)")
_OTHER_CONTENT = "not the content that was recorded"
_REPAIR = "delete it and run the command that wrote it again, which computes it anew"


@dataclass(frozen=True)
class Recomputed:
    """Values of a few rows, computed a second time.

    `places` (n,) say which rows; `values` (n, len(names)) float64 are theirs.
    """

    places: npt.NDArray[np.intp]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ShardRows:
    """The rows of one shard: S samples of a split.

    `labels` (S,) is int64, -1 for none; `values` (S, len(names)) float64 are logits and features; `recomputed` are
    those of a few rows once more; `signatures` (S,) are of images, None of other samples, which may hide images: be of
    their shape, but no pixels.
    """

    split: str
    sample_ids: list[str]
    labels: npt.NDArray[np.int64]
    predictions: npt.NDArray[np.int64]
    content_hashes: list[str]
    names: Sequence[str]
    values: npt.NDArray[np.float64]
    skipped: list[Skipped]
    recomputed: Recomputed | None = None
    signatures: list[bytes | None] | None = None
    hides_images: bool = False


class ShardNote(StoredRecord):
    """Note of a shard about itself.

    The counts are of its rows: all, those with a label, those predicted right, those with a value that is not finite.
    """

    rows: Count
    labelled: Count
    correct: Count
    non_finite: Count
    skipped: list[Skipped]
    hides_images: bool = False


def refuse_run_files(path: Path, *, option: str) -> None:
    """Refuses to write to a file of a run, or among its files.

    Args:
        path: the file or folder to be written.
        option: what names it, for the message.

    Raises:
        OutputError: it is part of a run folder.
    """
    for folder in possible_runs(path.resolve()):
        if (folder / MANIFEST).is_file():
            raise OutputError(
                f"{option} {path}: this is part of the run folder {folder}, which it would damage; "
                "give a path outside of it"
            )


def split_folder(run: Path, split_name: str) -> Path:
    """Folder of the shards of a split of a run."""
    return run / "features" / split_name


def shard_path(folder: Path, number: int) -> Path:
    """Path of shard `number` of the split in `folder`."""
    return folder / f"part-{number:05d}.parquet"


def listed_files(run: Path, manifest: Manifest) -> list[Path]:
    """The shards of all splits that a manifest says are finished."""
    return [
        shard_path(split_folder(run, name), number)
        for name, entry in manifest.splits.items()
        if entry.finished
        for number in range(entry.parts)
    ]


def is_complete(run: Path, manifest: Manifest | None) -> bool:
    """Whether a run with this manifest is finished and no shard has gone missing since."""
    return (
        manifest is not None
        and manifest.finished
        and all(entry.finished for entry in manifest.splits.values())
        and all(path.exists() for path in listed_files(run, manifest))
    )


def write_shard(path: Path, rows: ShardRows) -> ShardNote:
    """Writes a shard in one step and returns its note."""
    labelled = rows.labels >= 0
    correct = rows.labels == rows.predictions
    note = ShardNote(
        rows=len(rows.sample_ids),
        labelled=int(labelled.sum()),
        correct=int((labelled & correct).sum()),
        non_finite=int((~np.isfinite(rows.values)).any(axis=1).sum()),
        skipped=rows.skipped,
        hides_images=rows.hides_images,
    )
    columns = {
        "sample_id": pa.array(rows.sample_ids, pa.string()),
        "split": pa.array([rows.split] * note.rows, pa.string()),
        "label": pa.array(rows.labels, pa.int64()),
        "prediction": pa.array(rows.predictions, pa.int64()),
        "correct": pa.array(correct, pa.bool_(), mask=~labelled),
        "content_hash": pa.array(rows.content_hashes, pa.string()),
    }
    columns |= {name: pa.array(rows.values[:, place], pa.float64()) for place, name in enumerate(rows.names)}
    again: list[npt.NDArray[np.float64] | None] = [None] * note.rows
    if rows.recomputed is not None:
        for place, values in zip(rows.recomputed.places.tolist(), rows.recomputed.values, strict=True):
            again[place] = values
    columns[RECOMPUTED] = pa.array(again, pa.list_(pa.float64()))
    columns[SIGNATURE] = pa.array(rows.signatures or [None] * note.rows, pa.binary(3 * SIGNATURE_SIDE**2))
    table = pa.table(columns).replace_schema_metadata({_NOTE: json.dumps(note.model_dump())})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", use_dictionary=["split"], write_page_checksum=True)
    return note


def read_note(path: Path) -> ShardNote:
    """Reads the note of a shard.

    Raises:
        StoreError: the shard is missing, damaged or was not written by gradscore.
    """
    try:
        return ShardNote.model_validate_json((_schema(path).metadata or {}).get(_NOTE, b""))
    except ValueError:
        raise StoreError(f"{path}: this Parquet file was not written by gradscore; {_REPAIR}") from None


def shard_columns(path: Path) -> list[str]:
    """The names of a feature table's columns in order, as a shard has them; `StoreError` as in `read_note`."""
    return [name for name in _schema(path).names if name not in BESIDE]


def read_shard(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a shard, or some of its columns, checking its checksums; `StoreError` as in `read_note`."""
    with _reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = [name for name in file.schema_arrow.names if name not in BESIDE]
        return file.read(columns=names if columns is None else list(columns)).replace_schema_metadata(None)


def _schema(path: Path) -> pa.Schema:
    with _reading(path):
        return pq.read_schema(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"{path}: this shard is missing; run the command that wrote it again to compute it") from None
    except PermissionError:
        raise StoreError(f"{path}: {FORBIDDEN}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: this shard is damaged ({reason(error)}); {_REPAIR}") from None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of a look at every file of a run folder.

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
                    still_gone = {name for name in gone if not (run / name).is_file()}
                    unchanged = {name for name in before if name in still_gone or _is_as(run, name, before)}
                    _write(run, known | {name: before[name] for name in unchanged})
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
        found = {line[2]: line[1] for line in map(_CHECKSUM.fullmatch, text.splitlines()) if line is not None}
        reason = "" if text == checksum_lines(found) else "a line is not as gradscore writes it"
    except FileNotFoundError:
        return {}
    except PermissionError:
        raise StoreError(f"{path}: {FORBIDDEN}") from None
    except (OSError, ValueError) as error:
        found, reason = {}, str(error)
    if reason:
        raise StoreError(
            f"{path}: damaged ({reason}); restore it from a copy. Delete it only where there is none: commands go on "
            "then, but nothing tells any more whether the files of this run are intact, and gradscore verify fails for "
            "good"
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


def refuse_other_content(run: Path, names: Sequence[str], *, again: str = "extract into another folder") -> None:
    """Refuses files of a run that are there and have not the content that was recorded.

    Args:
        run: the run folder.
        names: relative paths.
        again: what to do where there is no copy of them.

    Raises:
        StoreError: it names the first; or `SHA256SUMS` is damaged.
    """
    known = read_checksums(run)
    for name in names:
        if name in known and (run / name).is_file() and not _is_as(run, name, known):
            raise StoreError(
                f"{run / name}: {_OTHER_CONTENT} in {CHECKSUMS}: damaged, changed by hand, or of another run; restore "
                f"it from a copy, or {again}"
            )


def verify_run(run: Path) -> Verification:
    """Computes every checksum of a run folder anew; shards without one are read, which checks their own.

    What has a recorded checksum must be there, and so must the shards that the manifest lists. Of a finished run, these
    must have checksums, and so must the manifest and the configuration.

    Raises:
        StoreError: `SHA256SUMS` is damaged, or a finished run has none.
        OSError: a file cannot be read.
    """
    known = read_checksums(run)
    there = [name for name in _files(run) if name != CHECKSUMS]
    listed, is_finished = set[str](), False
    with suppress(StoreError):  # a manifest that cannot be read lists nothing
        manifest = Manifest.read(run)
        listed = {path.relative_to(run).as_posix() for path in listed_files(run, manifest)}
        is_finished = manifest.finished
    needed = listed | {MANIFEST, CONFIG} if is_finished else set()
    if needed and not known:
        raise StoreError(
            f"{run / CHECKSUMS}: has no checksums, and this run is finished; restore it from a copy, or make the run "
            "anew in another folder: nothing tells whether these files are intact"
        )
    damaged = [f"{name}: missing" for name in sorted((known.keys() | listed) - set(there))]
    damaged += [f"{name}: {_OTHER_CONTENT}" for name in there if name in known and not _is_as(run, name, known)]
    not_recorded = [name for name in there if name not in known]
    lacking = dict.fromkeys(needed, f"has no checksum in {CHECKSUMS}")
    damaged += [
        f"{name}: {wrong}" for name in not_recorded if (wrong := _shard_damage(run, name) or lacking.get(name, ""))
    ]
    named = {line.partition(": ")[0] for line in damaged}
    return Verification(
        intact=[name for name in there if name in known and name not in named],
        damaged=sorted(damaged),
        not_recorded=[name for name in not_recorded if name not in named],
    )


def _is_as(run: Path, name: str, known: Mapping[str, str]) -> bool:
    return (run / name).is_file() and file_sha256(run / name) == known[name]


def _shard_damage(run: Path, name: str) -> str:
    if not (name.startswith("features/") and name.endswith(".parquet")):
        return ""
    try:
        read_shard(run / name)
    except StoreError as error:
        return str(error).partition(": ")[2]
    return ""


def _files(run: Path) -> list[str]:
    """The files of a run folder as relative paths, in order; temporary ones are none, nor is what git ignores it by."""
    files = (path for path in run.rglob("*") if path.is_file() and not is_temporary(path))
    return sorted({path.relative_to(run).as_posix() for path in files} - {GIT_IGNORE})


def _is_in(name: str, parts: Sequence[str]) -> bool:
    place = PurePosixPath(name)
    return any(place == PurePosixPath(part) or PurePosixPath(part) in place.parents for part in parts)


def _write(run: Path, checksums: Mapping[str, str]) -> None:
    write_text(run / CHECKSUMS, checksum_lines(checksums))


def checksum_lines(checksums: Mapping[str, str]) -> str:
    """Content of `SHA256SUMS`, given checksums by relative path."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(checksums.items()))
