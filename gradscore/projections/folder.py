"""Projections on disk: shards as those of a run, beside what they were made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import ConfigError, StoreError
from ..store import ShardRows, package_versions, read_shard, shard_path, write_shard
from ..system import file_sha256, is_leftover, parse_json, write_text, writing
from .kinds import make_projection
from .table import About, Projections

MANIFEST = "projections.json"
FORMAT = 1
"""The version of the layout of such folders."""

SHARD_SIZE = 1000
"""Samples in a shard."""

SCALE = "scale"

_MOST_PARTS = 10**6


class _Manifest(BaseModel):
    """What a manifest has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    settings: About
    versions: dict[str, str]
    finished: bool
    parts: Annotated[int, Field(ge=0, le=_MOST_PARTS)]
    sha256: list[str]
    notices: list[str]

    @model_validator(mode="after")
    def _whole(self) -> _Manifest:
        if self.finished and not self.parts:
            raise ValueError("finished projections must have parts")
        if self.finished and len(self.sha256) != self.parts:
            raise ValueError("there must be a hash of each part")
        make_projection(self.settings.kind, self.settings.dim, self.settings.seed)
        return self


class ProjectionFolder:
    """A folder of projections, for writing; made or gone on with by `opened`.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        """Takes over the folder at `path`, which has `manifest`."""
        self.path, self._manifest = path, manifest

    @classmethod
    def opened(cls, path: Path, about: About) -> ProjectionFolder:
        """Starts a folder, or goes on with one that was made with the same settings, weights and versions.

        Raises:
            StoreError: `path` is something else, or was made with others.
        """
        wanted: dict[str, dict[str, Any]] = {"settings": asdict(about), "versions": package_versions()}
        if (path / MANIFEST).exists():
            manifest = read_manifest(path)
            for part, now in wanted.items():
                before = manifest[part]
                changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
                if changed:
                    raise StoreError(
                        f"{path}: these projections were made with other {part} ({', '.join(changed)}); give another "
                        "folder, or delete this one"
                    )
            return cls(path, manifest)
        found = cls(path, {"format": FORMAT, **wanted, "finished": False, "parts": 0, "sha256": [], "notices": []})
        write_text(path / MANIFEST, json.dumps(found._manifest, indent=2) + "\n")
        return found

    @staticmethod
    def prepare(path: Path) -> None:
        """Makes a folder for projections, unless there is one.

        Raises:
            StoreError: something else is there, which is left untouched.
            OutputError: it cannot be made.
        """
        with writing(path):
            is_new = not path.exists() or (path.is_dir() and all(map(is_leftover, path.iterdir())))
            if not is_new and not (path / MANIFEST).is_file():
                raise StoreError(f"{path}: wanted a new or empty folder for projections, got something else")
            path.mkdir(parents=True, exist_ok=True)

    def has(self, number: int) -> bool:
        """Whether a shard is there already."""
        return shard_path(self.path, number).exists()

    def read(self, number: int) -> Projections:
        """The projections of one shard.

        Raises:
            StoreError: it is missing or damaged.
        """
        return _read(self.path, self._manifest, [number])

    def write(self, number: int, found: Projections, *, split: str) -> None:
        """Writes a shard in one step."""
        rows = ShardRows(
            split=split,
            sample_ids=list(found.sample_ids),
            labels=found.labels,
            predictions=found.predictions,
            content_hashes=list(found.content_hashes),
            names=[SCALE, *_columns(found.about)],
            values=np.concatenate([found.scale[:, None], found.values], axis=1, dtype=np.float64),
            skipped=[],
        )
        write_shard(shard_path(self.path, number), rows)

    def finish(self, parts: int, *, notices: Sequence[str]) -> None:
        """Marks the folder as complete; `notices` say what a reader should know.

        Raises:
            StoreError: there are shards of more samples.
        """
        if self.has(parts):
            raise StoreError(
                f"{self.path}: there are projections of more samples than these; give another folder, or all samples"
            )
        hashes = [file_sha256(shard_path(self.path, number)) for number in range(parts)]
        self._manifest |= {"finished": True, "parts": parts, "sha256": hashes, "notices": list(notices)}
        write_text(self.path / MANIFEST, json.dumps(self._manifest, indent=2) + "\n")


def load_projections(path: str | Path) -> Projections:
    """Reads the projections that `project` wrote.

    Args:
        path: the folder.

    Raises:
        StoreError: there are none, they are not finished, or a shard is missing, damaged or another one.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if not manifest["finished"]:
        raise StoreError(f"{folder}: these projections are not finished; make the same call again, which goes on")
    found = _read(folder, manifest, range(manifest["parts"]))
    for number, wanted in enumerate(manifest["sha256"]):
        path = shard_path(folder, number)
        if file_sha256(path) != wanted:
            raise StoreError(
                f"{path}: not the shard that was written here: damaged, or of another folder; delete it and make the "
                "same call again"
            )
    return found


def read_manifest(path: Path) -> dict[str, Any]:
    """What the projections in a folder were made with.

    Raises:
        StoreError: there are none, or the file is damaged.
    """
    file = path / MANIFEST
    try:
        manifest = _Manifest.model_validate_json(json.dumps(parse_json(file.read_bytes())))
    except OSError as error:
        raise StoreError(f"{file}: cannot be read ({error.strerror}); give a folder that project() wrote") from None
    except (ValueError, ConfigError) as error:
        raise StoreError(
            f"{file}: damaged, or of another version ({_what(error)}); delete the folder and project again"
        ) from None
    return manifest.model_dump()


def _what(error: ValueError | ConfigError) -> str:
    """What is wrong with a manifest, in a line."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _read(folder: Path, manifest: dict[str, Any], numbers: Sequence[int]) -> Projections:
    about = About(**manifest["settings"])
    tables = [read_shard(shard_path(folder, number)) for number in numbers]
    names = _columns(about)
    for table in tables:
        there = set(table.column_names)
        lacking = next((name for name in (SCALE, *names) if name not in there), None)
        if lacking is not None:
            raise StoreError(f"{folder}: a shard has no column {lacking}; delete the folder and project again")
    found = Projections.concatenated([_of_shard(table, about) for table in tables])
    return replace(found, notices=manifest["notices"])


def _of_shard(table: pa.Table, about: About) -> Projections:
    dtype = np.dtype(about.precision)
    return Projections(
        values=np.stack([table.column(name).to_numpy().astype(dtype) for name in _columns(about)], axis=1),
        scale=table.column(SCALE).to_numpy(),
        sample_ids=table.column("sample_id").to_pylist(),
        labels=table.column("label").to_numpy(),
        predictions=table.column("prediction").to_numpy(),
        content_hashes=table.column("content_hash").to_pylist(),
        about=about,
    )


def _columns(about: About) -> list[str]:
    return [f"projection_{place:04d}" for place in range(about.dim)]
