"""The Parquet shards of a split: a shard holds the rows of a fixed range of samples and says which it had to skip.

Shards are written whole or not at all, carry checksums, and depend on nothing but their rows: the same rows give the
same file byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..columns import BESIDE, RECOMPUTED, SIGNATURE
from ..data import SIGNATURE_SIDE
from ..errors import StoreError
from ..system import parse_json, replacing

MEAN_GRADIENTS = "mean_gradients.safetensors"
"""Where mean gradients lie, for the column `gradient_cosine`; their hash is in the manifest."""

_NOTE = b"gradscore"
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
_REPAIR = "delete it and run the command that wrote it again, which computes it anew"


@dataclass(frozen=True)
class Skipped:
    """A sample that could not be used, and why."""

    sample_id: str
    error: str


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
    those of a few rows once more; `signatures` (S,) are of images, None of other samples.
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


@dataclass(frozen=True)
class ShardNote:
    """What a shard says about itself.

    The counts are of its rows: all, those with a label, those predicted right, those with a value that is not finite.
    """

    rows: int
    labelled: int
    correct: int
    non_finite: int
    skipped: list[Skipped]


def split_folder(run: Path, split_name: str) -> Path:
    """Where the shards of a split of a run lie."""
    return run / "features" / split_name


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` of the split in `folder` lies."""
    return folder / f"part-{number:05d}.parquet"


def listed_shards(run: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """The shards of all splits that the manifest of a run says are finished."""
    return [
        shard_path(split_folder(run, name), number)
        for name, entry in manifest["splits"].items()
        if entry["finished"]
        for number in range(entry["parts"])
    ]


def is_complete(path: Path, manifest: Mapping[str, Any] | None) -> bool:
    """Whether the run in `path`, with this manifest, is finished and no shard has gone missing since."""
    return (
        manifest is not None
        and manifest["finished"]
        and all(entry["finished"] for entry in manifest["splits"].values())
        and ("mean_gradients_sha256" not in manifest or (path / MEAN_GRADIENTS).exists())
        and all(shard.exists() for shard in listed_shards(path, manifest))
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
    table = pa.table(columns).replace_schema_metadata({_NOTE: _note_text(note)})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", use_dictionary=["split"], write_page_checksum=True)
    return note


def read_note(path: Path) -> ShardNote:
    """Reads the note of a shard.

    Raises:
        StoreError: the shard is missing, damaged or was not written by gradscore.
    """
    metadata = _schema(path).metadata or {}
    try:
        fields = parse_json(metadata[_NOTE])
        return ShardNote(**{**fields, "skipped": [Skipped(**entry) for entry in fields["skipped"]]})
    except (KeyError, TypeError, ValueError):
        raise StoreError(f"{path}: this Parquet file was not written by gradscore; {_REPAIR}") from None


def shard_columns(path: Path) -> list[str]:
    """The names of a feature table's columns in order, as a shard has them; `StoreError` as in `read_note`."""
    return [name for name in _schema(path).names if name not in BESIDE]


def read_shard(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a shard, or some of its columns, checking its checksums; `StoreError` as in `read_note`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = [name for name in file.schema_arrow.names if name not in BESIDE]
            return file.read(columns=names if columns is None else list(columns)).replace_schema_metadata(None)
    except FileNotFoundError:
        raise StoreError(f"{path}: this shard is missing; run the command that wrote it again to compute it") from None
    except _DAMAGE as error:
        raise StoreError(f"{path}: this shard is damaged ({_first_line(error)}); {_REPAIR}") from None


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: this shard is missing; run the command that wrote it again to compute it") from None
    except _DAMAGE as error:
        raise StoreError(f"{path}: this shard is damaged ({_first_line(error)}); {_REPAIR}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _note_text(note: ShardNote) -> str:
    skipped = [{"sample_id": entry.sample_id, "error": entry.error} for entry in note.skipped]
    counts = {"rows": note.rows, "labelled": note.labelled, "correct": note.correct, "non_finite": note.non_finite}
    return json.dumps({**counts, "skipped": skipped})
