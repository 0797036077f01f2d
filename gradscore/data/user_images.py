"""The images a user names: files, folders, patterns, .npz and Parquet files, read one by one and in order."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ..errors import DataError
from ..system import closest
from .sources import DECODING_ERRORS, IMAGE_SUFFIXES, Pixels, as_pixels

PARQUET_ROWS = 64
"""Rows of a Parquet file in memory at a time."""

_COLUMN_NAMES = ("image", "img", "bytes", "path", "file", "file_name", "filename")


@dataclass(frozen=True)
class RawImage:
    """An image by name: its pixels (H, W, C) uint8, or why there are none."""

    sample_id: str
    pixels: Pixels | None
    error: str = ""


class UserImages(Protocol):
    """UserImages from one place, in order."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[RawImage]:
        """One after the other; at most a few are in memory."""


def open_user_images(samples: Sequence[str], *, column: str | None = None) -> list[UserImages]:
    """Opens what a user named.

    Args:
        samples: image files, folders (searched to the bottom), patterns such as `photos/**/*.png`, `.npz` files with an
            array `images`, and Parquet files.
        column: the column of Parquet files with encoded images or paths; found by type and name if None.

    Returns:
        The images of each, in the order given; those of folders and patterns by name.

    Raises:
        DataError: something is not there, holds no image, or cannot be read at all.
    """
    return [_opened(name, column) for name in samples]


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
            _npy_header(stream)
            for place in range(len(self)):
                name = f"{self.path}[{place}]"
                try:
                    content = stream.read(int(np.prod(one)))
                    yield RawImage(name, np.frombuffer(content, dtype=np.uint8).reshape(one))
                except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                    yield RawImage(name, None, f"{name} cannot be read: {error}")


@dataclass(frozen=True)
class ParquetImages:
    """A column of encoded images, or of paths relative to the file."""

    path: Path
    column: str
    rows: int

    def __len__(self) -> int:
        """See `UserImages`."""
        return self.rows

    def __iter__(self) -> Iterator[RawImage]:
        """See `UserImages`."""
        place = 0
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(PARQUET_ROWS, columns=[self.column]):
                for value in batch.column(0).to_pylist():
                    yield self._image(place, value)
                    place += 1

    def _image(self, place: int, value: Any) -> RawImage:
        name = f"{self.path}[{place}]"
        found = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
        if isinstance(found, bytes):
            return _decoded(name, io.BytesIO(found))
        if isinstance(found, str):
            return _decoded(found, self.path.parent / found)
        return RawImage(name, None, f"{name} is null")


def _opened(name: str, column: str | None) -> UserImages:
    path = Path(name)
    if path.is_dir():
        return Files(_some(name, [found for found in path.rglob("*") if found.suffix.lower() in IMAGE_SUFFIXES]))
    if not path.exists() and set(name) & set("*?["):
        matches = Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
        return Files(_some(name, [found for found in matches if found.is_file()]))
    if not path.exists():
        raise DataError(f"{name}: no such file or folder; check the path, or quote a pattern such as '*.png'")
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in (".parquet", ".pq"):
        return _parquet(path, column)
    return Files([path])


def _some(name: str, paths: list[Path]) -> list[Path]:
    if not paths:
        raise DataError(f"{name}: no image in it; wanted files that end in {', '.join(IMAGE_SUFFIXES)}")
    return sorted(paths)


def _npz(path: Path) -> NpzImages:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("images.npy") as stream:
            shape, fortran, dtype = _npy_header(stream)
    except (zipfile.BadZipFile, OSError, KeyError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}; wanted a .npz file with an array 'images'") from None
    if dtype != np.uint8 or fortran or len(shape) not in (3, 4) or shape[3:] not in ((), (1,), (3,)):
        raise DataError(
            f"{path}: images must be uint8 (N, H, W) or (N, H, W, 1 or 3) in C order, got {dtype} {shape}"
            + (" in Fortran order" if fortran else "")
        )
    return NpzImages(path, shape)


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype


def _parquet(path: Path, column: str | None) -> ParquetImages:
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
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
    return ParquetImages(path, column, rows)


def _is_usable(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name in ("bytes", "path") for field in kind)
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(binary or _is_text(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(name: str, source: Path | io.BytesIO) -> RawImage:
    try:
        with Image.open(source) as image:
            return RawImage(name, as_pixels(image))
    except DECODING_ERRORS as error:
        return RawImage(name, None, f"{name} cannot be decoded: {error}")
