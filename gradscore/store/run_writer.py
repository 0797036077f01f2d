"""Run folders, for writing: so that an interrupted run can go on, and only from the same inputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config import Config, dump_config
from ..data import FIT, planned_splits
from ..errors import StoreError
from ..system import is_temporary, write_text
from .checksums import changing
from .manifest import (
    CONFIG,
    FORMAT,
    MANIFEST,
    Changes,
    after,
    check_same_versions,
    find_changes,
    other_inputs,
    package_versions,
    read_manifest,
    write_manifest,
)
from .run_folder import HEAD
from .shards import (
    MEAN_GRADIENTS,
    ShardNote,
    ShardRows,
    is_complete,
    read_note,
    shard_path,
    split_folder,
    write_shard,
)

PARTIAL = "partial"
"""Where processes that share the work on a run say what each has written; gone when the run is finished."""

_REWRITTEN = (MANIFEST, CONFIG)


class RunWriter:
    """Writes the shards of a run and keeps its manifest; made by `RunWriter.opened`."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        """Takes over the run folder at `path`, which has `manifest`."""
        self.path = path
        self.manifest = manifest

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, config: Config, inputs: Mapping[str, Any]) -> Iterator[RunWriter]:
        """Starts a run in `path`, or goes on with one, as the only writer.

        What it has of splits that did not change stays; tables of those that changed or are no longer asked for go.

        Raises:
            StoreError: `path` is something else, was made from other inputs, or another process writes to it.
        """
        planned = planned_splits(config.data)
        target = check_target(path, config, inputs)
        found = target.changes
        fresh = planned if target.manifest is None else found.added
        stale = [f"features/{name}" for name in (*fresh, *found.stale, *found.removed)]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: this folder cannot be made: {error.strerror}") from None
        parts = (*_REWRITTEN, HEAD, MEAN_GRADIENTS, "features")
        means = [MEAN_GRADIENTS] if FIT in found.stale else []
        with changing(path, parts, rewritten=(*_REWRITTEN, *stale, *means)):
            target = check_target(path, config, inputs)
            manifest = target.manifest or {
                "format": FORMAT,
                "finished": False,
                "inputs": inputs,
                "versions": package_versions(),
                "splits": {},
            }
            known = manifest["splits"]
            new = [name for name in planned if name not in known]
            for name in (*new, *target.changes.stale, *target.changes.removed):
                shutil.rmtree(split_folder(path, name), ignore_errors=True)
            if target.changes.stale or target.changes.removed or manifest["finished"]:
                shutil.rmtree(path / PARTIAL, ignore_errors=True)
            if FIT in target.changes.stale:
                (path / MEAN_GRADIENTS).unlink(missing_ok=True)
            manifest["splits"] = {
                info.name: {"finished": False, **known.get(info.name, {}), **asdict(info)}
                for info, _ in planned.values()
            }
            write_manifest(path, manifest)
            write_text(path / CONFIG, dump_config(config))
            yield cls(path, manifest)

    def existing(self, split_name: str, numbers: Iterable[int]) -> dict[int, ShardNote]:
        """Those of these shards of a split that are there, by number; `StoreError` names a damaged one."""
        folder = split_folder(self.path, split_name)
        paths = {number: shard_path(folder, number) for number in numbers}
        return {number: read_note(path) for number, path in paths.items() if path.exists()}

    def write(self, split_name: str, number: int, rows: ShardRows) -> ShardNote:
        """Writes shard `number` of a split."""
        return write_shard(shard_path(split_folder(self.path, split_name), number), rows)

    def note(self, **entries: str | list[str] | None) -> None:
        """Enters plain values into the manifest."""
        self.manifest |= entries
        write_manifest(self.path, self.manifest)

    def finish_split(
        self, split_name: str, notes: Sequence[ShardNote], *, samples: int, seconds: float
    ) -> dict[str, Any]:
        """Enters a complete split into the manifest and returns its entry.

        Args:
            split_name: the split.
            notes: of its shards in order.
            samples: those computed this time.
            seconds: spent on them.
        """
        labelled = sum(note.labelled for note in notes)
        entry: dict[str, Any] = self.manifest["splits"][split_name]
        entry |= {
            "finished": True,
            "parts": len(notes),
            "rows": sum(note.rows for note in notes),
            "labelled": labelled,
            "accuracy": sum(note.correct for note in notes) / labelled if labelled else None,
            "non_finite": sum(note.non_finite for note in notes),
            "skipped": [asdict(skipped) for note in notes for skipped in note.skipped],
        }
        if samples:
            entry["spent"] = {"samples": samples, "seconds": round(seconds, 3)}
        write_manifest(self.path, self.manifest)
        return entry

    def finish(self, *, feature_count: int, notices: list[str]) -> None:
        """Marks the run as complete; `notices` are what a reader of its figures should know."""
        self.manifest |= {"finished": True, "feature_count": feature_count, "notices": notices}
        write_manifest(self.path, self.manifest)
        # What shares say of themselves is needed until then; if this process ends here, the next writer removes it.
        shutil.rmtree(self.path / PARTIAL, ignore_errors=True)


@dataclass(frozen=True)
class Target:
    """Where a run is written.

    Attributes:
        manifest: of the run that goes on there, with its present inputs; None where a new run starts.
        changes: since it was made.
    """

    manifest: dict[str, Any] | None = None
    changes: Changes = field(default_factory=Changes)


def check_target(path: Path, config: Config, inputs: Mapping[str, Any]) -> Target:
    """Looks how the run in `path` can go on with these settings and inputs; nothing is changed there.

    Raises:
        StoreError: `path` is a file or a folder of something else, or a run made from other inputs.
    """
    if (path / MANIFEST).exists():
        manifest = read_manifest(path)
        changes = find_changes(manifest, config, inputs)
        if changes.common:
            raise other_inputs(path, changes.common)
        now = after(manifest, changes, inputs)
        if not is_complete(path, now):
            check_same_versions(path, manifest)
        return Target(now, changes)
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: wanted a folder for the run, got a file; give another path")
    if path.exists() and not all(map(is_temporary, path.iterdir())):
        raise StoreError(f"{path}: this folder is not empty and not a run folder; give an empty or new one")
    return Target()
