"""The Parquet shards of a split: a shard holds the rows of a fixed range of samples and says which it had to skip.

Shards are written whole or not at all, carry checksums, and depend on nothing but their rows: the same rows give the
same file byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..columns import BESIDE, RECOMPUTED, SIGNATURE
from ..data import SIGNATURE_SIDE
from ..errors import StoreError, reason
from ..system import replacing
from .manifest import Count, Manifest, Record, Skipped

MEAN_GRADIENTS = "mean_gradients.safetensors"
"""Where mean gradients lie, for the column `gradient_cosine`; their hash is in the manifest."""

_NOTE = b"gradscore"
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


class ShardNote(Record):
    """What a shard says about itself.

    The counts are of its rows: all, those with a label, those predicted right, those with a value that is not finite.
    """

    rows: Count
    labelled: Count
    correct: Count
    non_finite: Count
    skipped: list[Skipped]


def split_folder(run: Path, split_name: str) -> Path:
    """Where the shards of a split of a run lie."""
    return run / "features" / split_name


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` of the split in `folder` lies."""
    return folder / f"part-{number:05d}.parquet"


def listed_files(run: Path, manifest: Manifest) -> list[Path]:
    """The shards of all splits that a manifest says are finished, and mean gradients."""
    shards = [
        shard_path(split_folder(run, name), number)
        for name, entry in manifest.splits.items()
        if entry.finished
        for number in range(entry.parts)
    ]
    return shards if manifest.mean_gradients_sha256 is None else [*shards, run / MEAN_GRADIENTS]


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
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: this shard is damaged ({reason(error)}); {_REPAIR}") from None
