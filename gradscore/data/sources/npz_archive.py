"""Arrays in .npz archives, looked at with distrust before anything is made as large as they say."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import DataError

READING_ERRORS = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, RecursionError, NotImplementedError),
    *(RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError, OverflowError),
)
"""What reading a damaged archive raises."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DEFLATE_LIMIT = 1032
"""Deflate packs no bytes into less than one of so many.

Source: zlib, "zlib Technical Details", maximum compression factor.
"""
_OVERHEAD = 64


def array_form(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of an array, if the archive can hold as much.

    Args:
        archive: of the file at `path`.
        name: of the array.
        path: the file.

    Raises:
        DataError: the array is one of Python objects.
        ValueError: the array claims to be larger than what is there can unpack to; other `READING_ERRORS` for damage.
    """
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in _METHODS:
        raise ValueError(f"array '{name}' is compressed in a way that NumPy does not use")
    with archive.open(info) as stream:
        shape, fortran, dtype = read_header(stream)
        size = math.prod(shape) * dtype.itemsize + stream.tell()
    if dtype.hasobject:
        raise DataError(
            f"data file {path}: array '{name}' holds Python objects, which are pickled and could run code, so it is "
            "not read; save numbers or text as such, np.asarray(values, dtype=np.float32) or dtype=str, say"
        )
    packed = min(info.compress_size, path.stat().st_size)
    possible = min(shape, default=1) >= 0 and 0 not in shape[1:]
    if not possible or size != info.file_size or size > _DEFLATE_LIMIT * packed + _OVERHEAD:
        raise ValueError(f"array '{name}' of shape {shape} does not fit what the archive holds of it")
    return shape, fortran, dtype


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype at the beginning of an .npy stream, which is left at the data."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype
