"""Image files in folders, and NumPy archives."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...system import IntArray, closest
from .raw_samples import (
    IMAGE_SUFFIXES,
    LABEL_NAMES,
    ArraySource,
    Pixels,
    Request,
    Values,
    as_labels,
    as_texts,
    channels_last,
    content_of_files,
    decoded,
    file_of,
)


@dataclass(frozen=True)
class FileSource:
    """Image files below a folder.

    Attributes:
        root: the folder.
        paths: of the files, relative to it, as the system has them.
        ids: the same as text, what is no UTF-8 as escapes.
        labels: (N,) or None.
        class_names: of the labels: the names of the sub-folders.
    """

    root: Path
    paths: Sequence[str]
    ids: Sequence[str]
    labels: IntArray | None
    class_names: Sequence[str] | None = None

    def sample(self, index: int) -> Pixels:
        """See `SampleSource`."""
        path = self.root / self.paths[index]
        return decoded(path, name=str(path))

    def content(self) -> str:
        """See `SampleSource`."""
        return content_of_files([self.root / name for name in self.paths])


def folder_source(request: Request) -> FileSource:
    """Image files in class sub-folders (classes in alphabetical order), or flat and without labels.

    A class is a folder right below the root; images of it lie in that folder at any depth. Hidden files and folders,
    whose names begin with a dot, do not count.
    """
    root = Path(request.name)
    if not root.is_dir():
        raise DataError(f"data folder {root} {'is a file, wanted a folder' if root.exists() else 'does not exist'}")
    where = f"data folder {root}"
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    flat = _images_below(root, "*", root)
    if classes and flat:
        raise DataError(f"{where} holds both images ({flat[0]}, ...) and sub-folders ({classes[0]}, ...)")
    if not classes:
        return FileSource(root, _some(flat, root), as_texts(flat, where=where), None)
    found = [(path, label) for label, name in enumerate(classes) for path in _images_below(root / name, "**/*", root)]
    labels = np.array([label for _, label in found], dtype=np.int64)
    paths = _some([path for path, _ in found], root)
    return FileSource(root, paths, as_texts(paths, where=where), labels, as_texts(classes, where=where))


def _some(paths: list[str], root: Path) -> list[str]:
    if not paths:
        raise DataError(f"data folder {root} has no image in it: wanted files that end in {', '.join(IMAGE_SUFFIXES)}")
    return paths


def _images_below(folder: Path, pattern: str, root: Path) -> list[str]:
    files = [path for path in folder.glob(pattern) if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return sorted(path.relative_to(root).as_posix() for path in files if not is_hidden(path, root))


def is_hidden(path: Path, root: Path) -> bool:
    """Whether a file below a folder, or a folder between them, is hidden, as what notebooks and systems leave is."""
    return any(part.startswith(".") for part in path.relative_to(root).parts)


IMAGES = "images"

CLASS_NAMES = "class_names"

READING_ERRORS = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, RecursionError, NotImplementedError),
    *(RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError, OverflowError),
)
"""Errors that reading a damaged archive raises."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DEFLATE_LIMIT = 1032
"""Deflate packs no bytes into less than one of so many.

Source: zlib, "zlib Technical Details", maximum compression factor.
"""

_OVERHEAD = 64


def npz_source(request: Request) -> ArraySource:
    """The array `images`, or all arrays but those of labels; several of these are keyword arguments of the model.

    Images are uint8 (N, H, W), (N, H, W, C) or (N, C, H, W); anything else goes to the model as it is. `labels` are
    numbers, or names. The arguments `inputs` (a name or several) and `labels` name other arrays.
    """
    path = file_of(request)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            for name in names:
                _check_array(archive, name, path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as loaded:
            arrays: dict[str, Values] = {name: loaded[name] for name in names}
    except READING_ERRORS as error:
        raise DataError(f"data file {path} cannot be read: {error}; is it a complete .npz file?") from error
    if not arrays:
        raise DataError(f"data file {path} has no array in it")
    label = request.arguments.get("labels", next((name for name in LABEL_NAMES if name in arrays), None))
    chosen: Any = request.arguments.get("inputs")
    if chosen is None:
        others = [name for name in arrays if name not in (label, CLASS_NAMES)]
        chosen = [IMAGES] if IMAGES in arrays else others
    chosen = [chosen] if isinstance(chosen, str) else list(chosen)
    if not chosen:
        raise DataError(f"data file {path} has no array of samples, only {', '.join(arrays)}")
    for argument, wanted in (("inputs", chosen), ("labels", [] if label is None else [label])):
        for name in wanted:
            if name not in arrays:
                raise DataError(
                    f"data file {path}: no array {name!r} (arguments.{argument}); {closest(str(name), arrays)}"
                )
    count = len(arrays[chosen[0]]) if arrays[chosen[0]].ndim else 0
    for name in chosen:
        if arrays[name].ndim == 0 or len(arrays[name]) != count or arrays[name].dtype.kind not in "fiub":
            raise DataError(
                f"data file {path}: wanted numbers for {count} samples in array '{name}', got {arrays[name].dtype} "
                f"{arrays[name].shape}; name the arrays that the model takes in arguments: {{inputs: ...}}"
            )
    labels = class_names = None
    if label is not None:
        found = arrays[label]
        if found.shape != (count,) or found.dtype.kind not in "iubUS":
            raise DataError(
                f"data file {path}: {label} must be integers or names of shape ({count},), got {found.dtype} "
                f"{found.shape}"
            )
        known = [str(name) for name in arrays[CLASS_NAMES]] if CLASS_NAMES in arrays else None
        labels, class_names = as_labels(found.tolist(), where=f"data file {path}: {label}", names=known)
    samples = channels_last(arrays[chosen[0]]) if len(chosen) == 1 else {name: arrays[name] for name in chosen}
    return ArraySource(samples, [str(place) for place in range(count)], labels, class_names)


def _check_array(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    """Refuses an array of Python objects, or one that claims to be larger than what is there can unpack to."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in _METHODS:
        raise ValueError(f"array '{name}' is compressed in a way that NumPy does not use")
    with archive.open(info) as stream:
        is_old = np.lib.format.read_magic(stream) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
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
