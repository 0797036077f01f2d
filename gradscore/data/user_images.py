"""The samples a user names: files, folders, patterns, archives and tables, read one by one and in order."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError
from ..system import closest
from .sources import (
    IMAGE_SUFFIXES,
    READING_ERRORS,
    SOURCES,
    ImageSource,
    Raw,
    UnreadableImageError,
    array_form,
    decoded,
    open_source,
    path_below,
    read_header,
)

PARQUET_ROWS = 64
"""Rows of a Parquet file in memory at a time."""

_TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet"}
"""Kinds of sources by the endings of their files."""

_COLUMN_NAMES = ("image", "img", "bytes", "path", "file", "file_name", "filename")


@dataclass(frozen=True)
class RawImage:
    """An image by name: its pixels (H, W, C) uint8, or what else the samples are; or why there are none."""

    sample_id: str
    pixels: Raw | None
    error: str = ""


class UserImages(Protocol):
    """UserImages from one place, in order."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[RawImage]:
        """One after the other; at most a few are in memory."""


def open_user_images(
    samples: Sequence[str], *, column: str | None = None, root: Path | None = None
) -> list[UserImages]:
    """Opens what a user named.

    Paths in a Parquet file are relative to its folder. One that leads out of that folder, through `..`, a link or from
    the root, is an image with an error: whoever wrote the list should not choose which files are read.

    Args:
        samples: image files, folders (searched to the bottom), patterns such as `photos/**/*.png`, `.npz`, `.csv`,
            `.tsv`, `.tar` and Parquet files, or a data source that is a path, `hf:<dir>` for one.
        column: the column of Parquet files with encoded images or paths; found by type and name if None.
        root: paths in Parquet files may lead anywhere below this folder; the folder of each file if None.

    Returns:
        The images of each, in the order given; those of folders and patterns by name.

    Raises:
        DataError: something is not there, holds no image, or cannot be read at all.
    """
    return [_opened(name, column, root) for name in samples]


@dataclass(frozen=True)
class Files:
    """Image files."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        """See `UserImages`."""
        return len(self.paths)

    def __iter__(self) -> Iterator[RawImage]:
        """See `UserImages`."""
        return (_decoded(str(path), path) for path in self.paths)


@dataclass(frozen=True)
class NpzImages:
    """The array `images` of an .npz file, (N, H, W) or (N, H, W, 1 or 3) uint8, read image by image."""

    path: Path
    shape: tuple[int, ...]

    def __len__(self) -> int:
        """See `UserImages`."""
        return self.shape[0]

    def __iter__(self) -> Iterator[RawImage]:
        """See `UserImages`."""
        one = (*self.shape[1:], 1)[:3]
        with zipfile.ZipFile(self.path) as archive, archive.open("images.npy") as stream:
            read_header(stream)
            for place in range(len(self)):
                name = f"{self.path}[{place}]"
                try:
                    content = stream.read(int(np.prod(one)))
                    yield RawImage(name, np.frombuffer(content, dtype=np.uint8).reshape(one))
                except READING_ERRORS as error:
                    yield RawImage(name, None, f"{name} cannot be read: {error}")


@dataclass(frozen=True)
class ParquetImages:
    """A column of encoded images, or of paths relative to the file that lead nowhere but below `root`."""

    path: Path
    column: str
    rows: int
    root: Path

    def __len__(self) -> int:
        """See `UserImages`."""
        return self.rows

    def __iter__(self) -> Iterator[RawImage]:
        """See `UserImages`."""
        place = 0
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(PARQUET_ROWS, columns=[self.column]):
                    for value in batch.column(0).to_pylist():
                        yield self._image(place, value)
                        place += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{self.path}: damaged from row {place} on ({reason}); copy it again") from None

    def _image(self, place: int, value: Any) -> RawImage:
        name = f"{self.path}[{place}]"
        found = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
        if isinstance(found, bytes):
            return _decoded(name, found)
        if isinstance(found, str):
            return self._file(name, found)
        return RawImage(name, None, f"{name} is null")

    def _file(self, name: str, found: str) -> RawImage:
        try:
            path = path_below(self.root, self.path.parent, found)
        except ValueError as error:
            advice = "; give --root FOLDER to allow it" if "leads out" in str(error) else ""
            return RawImage(name, None, f"{name} {error}{advice}")
        return _decoded(found, path)


@dataclass(frozen=True)
class Samples:
    """The samples of a data source."""

    source: ImageSource
    name: str

    def __len__(self) -> int:
        """See `UserImages`."""
        return len(self.source.ids)

    def __iter__(self) -> Iterator[RawImage]:
        """See `UserImages`."""
        for place, sample_id in enumerate(self.source.ids):
            name = f"{self.name}[{sample_id}]"
            try:
                yield RawImage(name, self.source.image(place))
            except UnreadableImageError as error:
                yield RawImage(name, None, str(error))


def _opened(name: str, column: str | None, root: Path | None) -> UserImages:
    path = Path(name)
    kind, _, rest = name.partition(":")
    if rest and not path.exists() and kind in SOURCES and SOURCES[kind].is_path:
        return Samples(open_source(name), name)
    if path.is_dir():
        return Files(_some(name, [found for found in path.rglob("*") if found.suffix.lower() in IMAGE_SUFFIXES]))
    if not path.exists() and set(name) & set("*?["):
        matches = Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
        return Files(_some(name, [found for found in matches if found.is_file()]))
    if not path.exists():
        raise DataError(f"{name}: no such file or folder; check the path, or quote a pattern such as '*.png'")
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in (".parquet", ".pq") and (column is not None or _holds_images(path)):
        return _parquet(path, column, (root or path.parent).resolve())
    if path.suffix in _TABLES:
        chosen = {"inputs": column, "root": None if root is None else str(root)}
        given = {key: value for key, value in chosen.items() if value is not None}
        return Samples(open_source(f"{_TABLES[path.suffix]}:{name}", given), name)
    if path.suffix == ".tar":
        return Samples(open_source(f"wds:{name}"), name)
    return Files([path])


def _some(name: str, paths: list[Path]) -> list[Path]:
    if not paths:
        raise DataError(f"{name}: no image in it; wanted files that end in {', '.join(IMAGE_SUFFIXES)}")
    return sorted(paths)


def _npz(path: Path) -> UserImages:
    try:
        with zipfile.ZipFile(path) as archive:
            if "images.npy" not in archive.namelist():
                return Samples(open_source(f"npz:{path}"), str(path))
            shape, fortran, dtype = array_form(archive, "images", path)
    except READING_ERRORS as error:
        raise DataError(f"{path}: cannot be read: {error}; wanted a .npz file of arrays") from None
    if dtype != np.uint8:
        return Samples(open_source(f"npz:{path}"), str(path))
    if dtype != np.uint8 or fortran or len(shape) not in (3, 4) or shape[3:] not in ((), (1,), (3,)):
        raise DataError(
            f"{path}: images must be uint8 (N, H, W) or (N, H, W, 1 or 3) in C order, got {dtype} {shape}"
            + (" in Fortran order" if fortran else "")
        )
    return NpzImages(path, shape)


def _parquet(path: Path, column: str | None, root: Path) -> ParquetImages:
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    usable = [field.name for field in schema if _is_usable(field.type)]
    if column is not None and column not in usable:
        raise DataError(f"{path}: no column {column!r} of encoded images or paths; {closest(column, usable)}")
    if column is None:
        binary = [field.name for field in schema if field.name in usable and not _is_text(field.type)]
        named = [name for name in _COLUMN_NAMES if name in usable]
        choice = binary if len(binary) == 1 else named or (usable if len(usable) == 1 else [])
        if not choice:
            raise DataError(
                f"{path}: which column holds the images? Give --column, one of {', '.join(usable) or 'none'}"
            )
        column = choice[0]
    return ParquetImages(path, column, rows, root)


def _holds_images(path: Path) -> bool:
    """Whether a Parquet file has a column that can only be of images, or is called so, or cannot be looked into."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return True
    usable = [field.name for field in schema if _is_usable(field.type)]
    binary = [name for name in usable if not _is_text(schema.field(name).type)]
    return bool(binary) or any(name in _COLUMN_NAMES for name in usable) or len(usable) == len(schema)


def _is_usable(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name in ("bytes", "path") for field in kind)
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(binary or _is_text(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(name: str, source: Path | bytes) -> RawImage:
    try:
        return RawImage(name, decoded(source, name=name))
    except UnreadableImageError as error:
        return RawImage(name, None, str(error))
