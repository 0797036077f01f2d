"""Arrays of a NumPy archive: images, or numbers of any type and shape.

Archives are looked at with distrust before anything is made as large as they say.
"""

from __future__ import annotations

import hashlib
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import DataError
from ...system import IntArray, closest
from .base import ArraySource, ImageSource, Labels, Raw, Request, Values, as_labels, no_file

IMAGES = "images"
LABELS = ("labels", "label", "y", "targets", "target")
CLASS_NAMES = "class_names"

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


@dataclass(frozen=True)
class NamedArrays:
    """Several arrays, whose names are keyword arguments of the model.

    Attributes:
        arrays: by name, (N, ...) each.
        ids: N names.
        labels: (N,) or None.
        class_names: of the labels, or None.
    """

    arrays: Mapping[str, Values]
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None = None

    def image(self, index: int) -> Raw:
        """See `ImageSource`."""
        return {name: array[index] for name, array in self.arrays.items()}

    def content(self) -> str:
        """See `ImageSource`: a hash of all values."""
        digest = hashlib.sha256()
        for name, array in self.arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def npz_source(request: Request) -> ImageSource:
    """The array `images`, or all arrays but those of labels; several of these are keyword arguments of the model.

    Images are uint8 (N, H, W), (N, H, W, C) or (N, C, H, W); anything else goes to the model as it is. `labels` are
    numbers, or names. The arguments `inputs` (a name or several) and `labels` name other arrays.
    """
    path = Path(request.name)
    arrays = _read(path)
    label = request.arguments.get("labels", next((name for name in LABELS if name in arrays), None))
    chosen = _inputs(request, arrays, label)
    count = len(arrays[chosen[0]]) if arrays[chosen[0]].ndim else 0
    for name in chosen:
        if arrays[name].ndim == 0 or len(arrays[name]) != count or arrays[name].dtype.kind not in "fiub":
            raise DataError(
                f"data file {path}: wanted numbers for {count} samples in array '{name}', got {arrays[name].dtype} "
                f"{arrays[name].shape}; name the arrays that the model takes in arguments: {{inputs: ...}}"
            )
    found = _labels(path, arrays, label, count)
    ids = [str(place) for place in range(count)]
    numbers, names = (None, None) if found is None else (found.numbers, found.names)
    if len(chosen) == 1:
        return ArraySource(_as_images(arrays[chosen[0]]), ids, numbers, names)
    return NamedArrays({name: arrays[name] for name in chosen}, ids, numbers, names)


def _read(path: Path) -> dict[str, Values]:
    if not path.is_file():
        raise DataError(f"data file {path} {no_file(path)}")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            for name in names:
                array_form(archive, name, path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in names}
    except READING_ERRORS as error:
        raise DataError(f"data file {path} cannot be read: {error}; is it a complete .npz file?") from error
    if not found:
        raise DataError(f"data file {path} has no array in it")
    return found


def _inputs(request: Request, arrays: Mapping[str, Values], label: str | None) -> list[str]:
    wanted: Any = request.arguments.get("inputs")
    if wanted is None and IMAGES in arrays:
        return [IMAGES]
    chosen = [name for name in arrays if name not in (label, CLASS_NAMES)] if wanted is None else wanted
    chosen = [chosen] if isinstance(chosen, str) else list(chosen)
    for name in chosen:
        if name not in arrays:
            raise DataError(f"data file {request.name}: no array {name!r} (arguments.inputs); {closest(name, arrays)}")
    if not chosen:
        raise DataError(f"data file {request.name} has no array of samples, only {', '.join(arrays)}")
    return chosen


def _labels(path: Path, arrays: Mapping[str, Values], label: str | None, count: int) -> Labels | None:
    if label is None:
        return None
    if label not in arrays:
        raise DataError(f"data file {path}: no array {label!r} (arguments.labels); {closest(label, arrays)}")
    found = arrays[label]
    if found.shape != (count,) or found.dtype.kind not in "iubUS":
        raise DataError(
            f"data file {path}: {label} must be integers or names of shape ({count},), got {found.dtype} {found.shape}"
        )
    names = [str(name) for name in arrays[CLASS_NAMES]] if CLASS_NAMES in arrays else None
    return as_labels(found.tolist(), where=f"data file {path}: {label}", names=names)


def _as_images(array: Values) -> Values:
    """Bytes (N, H, W), (N, H, W, C) or (N, C, H, W) as images (N, H, W, C); other arrays as they are."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return array
    if array.ndim == 3:
        return array[..., None]
    return array.transpose(0, 2, 3, 1) if array.shape[3] not in (1, 3) and array.shape[1] in (1, 3) else array


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
