"""Projections on disk: shards as those of a run, beside what they were made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ..errors import ConfigError, StoreError
from ..store import ShardRows, package_versions, read_shard, shard_path, write_shard
from ..system import file_sha256, is_leftover, parse_json, write_text, writing
from .kinds import make_projection
from .table import About, Projections

MANIFEST = "projections.json"

SCALE = "scale"


class Manifest(BaseModel):
    """What a folder says of its shards.

    Attributes:
        format: version of the layout of such folders.
        settings: what was projected, and how.
        versions: of the packages that computed.
        sha256: hash of every shard; none before all of them are there.
        notices: what a reader of the projections should know.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[2] = 2
    settings: About
    versions: dict[str, str]
    sha256: list[str] = []
    notices: list[str] = []

    @model_validator(mode="after")
    def _known_kind(self) -> Manifest:
        make_projection(self.settings.kind, self.settings.dim, self.settings.seed)
        return self


class ProjectionFolder:
    """A folder of projections.

    Args:
        path: the folder.
        manifest: what it says of its shards.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def read(cls, path: Path) -> ProjectionFolder:
        """A folder that is there.

        Raises:
            StoreError: there are no projections, or the manifest is damaged.
        """
        file = path / MANIFEST
        try:
            return cls(path, Manifest.model_validate_json(json.dumps(parse_json(file.read_bytes()))))
        except OSError as error:
            raise StoreError(f"{file}: cannot be read ({error.strerror}); give a folder that project() wrote") from None
        except (ValueError, ConfigError) as error:
            what = str(error).splitlines()[0]
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
            raise StoreError(
                f"{file}: damaged, or of another version ({what}); delete the folder and project again"
            ) from None

    @classmethod
    def opened(cls, path: Path, about: About) -> ProjectionFolder:
        """Starts a folder, or goes on with one that was made with the same settings, weights and versions.

        Raises:
            StoreError: it was made with others.
        """
        now = Manifest(settings=about, versions=package_versions())
        if not (path / MANIFEST).exists():
            found = cls(path, now)
            found._write_manifest()
            return found
        found = cls.read(path)
        parts = {
            "settings": (asdict(found.manifest.settings), asdict(about)),
            "versions": (found.manifest.versions, now.versions),
        }
        for part, (before, after) in parts.items():
            changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            if changed:
                raise StoreError(
                    f"{path}: these projections were made with other {part} ({', '.join(changed)}); give another "
                    "folder, or delete this one"
                )
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

    def shard(self, number: int) -> Projections:
        """The projections of one shard.

        Raises:
            StoreError: it is missing or damaged.
        """
        table, about = read_shard(shard_path(self.path, number)), self.manifest.settings
        values = [table.column(name).to_numpy().astype(np.dtype(about.precision)) for name in _columns(about)]
        return Projections(
            values=np.stack(values, axis=1),
            scale=table.column(SCALE).to_numpy(),
            sample_ids=table.column("sample_id").to_pylist(),
            labels=table.column("label").to_numpy(),
            predictions=table.column("prediction").to_numpy(),
            content_hashes=table.column("content_hash").to_pylist(),
            about=about,
        )

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

    def finish(self, shards: int, *, notices: Sequence[str]) -> None:
        """Marks the folder as complete; `notices` say what a reader should know.

        Raises:
            StoreError: there are shards of more samples.
        """
        if self.has(shards):
            raise StoreError(
                f"{self.path}: there are projections of more samples than these; give another folder, or all samples"
            )
        hashes = [file_sha256(shard_path(self.path, number)) for number in range(shards)]
        self.manifest = self.manifest.model_copy(update={"sha256": hashes, "notices": list(notices)})
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_text(self.path / MANIFEST, self.manifest.model_dump_json(indent=2) + "\n")


def load_projections(path: str | Path) -> Projections:
    """Reads the projections that `project` wrote.

    Args:
        path: the folder.

    Raises:
        StoreError: there are none, they are not finished, or a shard is missing, damaged or another one.
    """
    folder = ProjectionFolder.read(Path(path))
    hashes = folder.manifest.sha256
    if not hashes:
        raise StoreError(f"{path}: these projections are not finished; make the same call again, which goes on")
    shards = [folder.shard(number) for number in range(len(hashes))]
    for number, wanted in enumerate(hashes):
        file = shard_path(folder.path, number)
        if file_sha256(file) != wanted:
            raise StoreError(
                f"{file}: not the shard that was written here: damaged, or of another folder; delete it and make the "
                "same call again"
            )
    return replace(Projections.concatenated(shards), notices=folder.manifest.notices)


def _columns(about: About) -> list[str]:
    return [f"projection_{place:04d}" for place in range(about.dim)]
