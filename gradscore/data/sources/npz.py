"""Arrays of a NumPy archive: images, or numbers of any type and shape."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from ...errors import DataError
from ...system import IntArray, closest
from .base import ArraySource, ImageSource, Raw, Request, Values, no_file
from .labels import Labels, as_labels
from .npz_archive import READING_ERRORS, array_form

IMAGES = "images"
LABELS = ("labels", "label", "y", "targets", "target")
CLASS_NAMES = "class_names"


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
        with ZipFile(path) as archive:
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
