"""Projections on disk: shards as those of a run, beside what they were made with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..data import Batch
from ..errors import ConfigError, StoreError
from ..pipeline import Cut, Progress, Sink
from ..store import ShardRows, package_versions, read_shard, shard_path, write_shard
from ..system import FloatArray, IntArray, file_sha256, is_leftover, only_writer, parse_json, write_text, writing
from .gradient_stream import Backward, GradientStream
from .kinds import Projection, make_projection
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


SAME = 1e-3
"""Largest difference between projections of the same gradient, relative to its norm: a thousand roundings of float32,
since another number of threads, or of samples in a batch, may round otherwise."""


def written(
    stream: GradientStream,
    projection: Projection,
    about: About,
    *,
    out: Path | None,
    remarks: Callable[[], Sequence[str]],
    progress: Progress | None,
) -> Projections:
    """Projects samples, or what is missing of them in a folder.

    Args:
        stream: gradients of samples.
        projection: of gradients.
        about: what is projected, and how.
        out: the folder; None to keep them in memory alone.
        remarks: what is to be said of the samples, once all were seen.
        progress: told after every batch.

    Raises:
        StoreError: `out` has something else, or projections made with other settings, weights or samples.
    """
    if out is not None:
        ProjectionFolder.prepare(out)
    with nullcontext() if out is None else only_writer(out):
        folder = None if out is None else ProjectionFolder.opened(out, about)
        sink = _ProjectionSink(about, folder, stream.samples.name)
        stream.run(
            lambda batch: projected(stream.backward, projection, batch), sink, shard_size=SHARD_SIZE, progress=progress
        )
        return sink.finished([*remarks(), *stream.backward.engine.notices])


@dataclass(frozen=True)
class Projected:
    """What was found for N samples.

    Attributes:
        values: (N, dim): the projections of the gradients over `scale`.
        scale: (N,) float64, powers of two.
        predictions: (N,) int64.
    """

    values: NDArray[Any]
    scale: FloatArray
    predictions: IntArray


def projected(backward: Backward, projection: Projection, batch: Batch) -> Projected:
    """Projects the gradients of a batch."""
    sums = projection.blank(len(batch.ids), dtype=backward.dtype, device=backward.device)
    result = backward.run(batch, projection.sink(sums))
    found = (projection.finished(sums), result.scale, result.predictions)
    return Projected(*(each.cpu().numpy() for each in found))


@dataclass(frozen=True)
class _Waiting:
    """A batch, and what was found for it; None where a shard has that already."""

    batch: Batch
    found: Projected | None


class _ProjectionSink(Sink[Projected]):
    """Makes shards of projections.

    The first batch of every shard that is there already is projected once more, and must come out the same: so that a
    folder goes on only with the loss and the model that it was made with, whatever they are called.
    """

    def __init__(self, about: About, folder: ProjectionFolder | None, split: str) -> None:
        self._about, self._folder, self._split = about, folder, split
        self._waiting: list[_Waiting] = []
        self._shards: list[Projections] = []
        self._done = 0

    def wants(self, cut: Cut) -> bool:
        """Whether a batch is not there already, or is the first of its shard."""
        return cut.is_first or self._folder is None or not self._folder.has(cut.shard)

    def take(self, cut: Cut, found: Projected | None) -> None:
        """See `Sink`."""
        self._waiting.append(_Waiting(cut.batch, found))
        if cut.is_last:
            self.close()

    def close(self) -> None:
        """See `Sink`; makes a shard of the batches that wait."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        if self._folder is None:
            self._shards.append(_joined(waiting, self._about))
        elif self._folder.has(self._done):
            _compare(self._folder.read(self._done), waiting, where=self._folder.path)
        else:
            self._folder.write(self._done, _joined(waiting, self._about), split=self._split)
        self._done += 1

    def finished(self, notices: Sequence[str]) -> Projections:
        """The projections of all samples; `notices` say what a reader should know of them."""
        folder = self._folder
        shards = self._shards if folder is None else [folder.read(number) for number in range(self._done)]
        found = Projections.concatenated(shards)
        notices = [*notices, *_overflow(found)]
        if folder is not None:
            folder.finish(self._done, notices=notices)
        return replace(found, notices=notices)


def _overflow(found: Projections) -> list[str]:
    """What is to be said where projections are not finite."""
    lost = np.asarray(~np.isfinite(found.values).all(axis=1))
    if not lost.any():
        return []
    first = found.sample_ids[int(lost.argmax())]
    return [
        f"{int(lost.sum())} of {len(found)} projections are not finite, the first of sample {first}: the network "
        "overflows there"
    ]


def _joined(waiting: Sequence[_Waiting], about: About) -> Projections:
    """The projections of batches that were projected."""
    return Projections.concatenated([_of_batch(each, about) for each in waiting])


def _of_batch(waiting: _Waiting, about: About) -> Projections:
    batch, found = waiting.batch, waiting.found
    assert found is not None
    return Projections(
        values=found.values,
        scale=found.scale,
        sample_ids=batch.ids,
        labels=batch.labels.numpy(),
        predictions=found.predictions,
        content_hashes=batch.content_hashes,
        about=about,
    )


def _compare(there: Projections, waiting: Sequence[_Waiting], *, where: Path) -> None:
    """Makes sure that a shard is of these samples, and that what was computed again is as it was.

    Raises:
        StoreError: it is not.
    """
    hashes = [name for each in waiting for name in each.batch.content_hashes]
    labels = np.concatenate([each.batch.labels.numpy() for each in waiting])
    if list(there.content_hashes) != hashes or not np.array_equal(there.labels, labels):
        raise StoreError(
            f"{where}: projections of other samples or labels than these; give another folder, or delete this one"
        )
    again = waiting[0].found
    if again is None:
        return
    before = there.values[: len(again.values)] * there.scale[: len(again.values), None]
    now = again.values * again.scale[:, None]
    finite = np.isfinite(before).all(axis=1)
    is_same = np.array_equal(finite, np.isfinite(now).all(axis=1))
    if not is_same or (_norms(before[finite] - now[finite]) > SAME * _norms(before[finite])).any():
        raise StoreError(
            f"{where}: projections came out otherwise than those there, the first those of sample "
            f"{there.sample_ids[0]}; they are of another loss or model: give another folder, or delete this one"
        )


def _norms(values: FloatArray) -> FloatArray:
    """L2 norms of rows, which may be tiny."""
    largest = np.abs(values).max(axis=1, initial=0.0)
    return np.asarray(largest * np.linalg.norm(values / np.where(largest > 0, largest, 1.0)[:, None], axis=1))
