"""Images in a NumPy archive."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np

from ...errors import DataError
from .base import ArraySource, Request
from .npz_archive import READING_ERRORS, array_form


def npz_source(request: Request) -> ArraySource:
    """Arrays `images`, uint8 (N, H, W) or (N, H, W, C), and optionally `labels`, integers (N,)."""
    path = Path(request.name)
    if not path.is_file():
        raise DataError(f"data file {path} does not exist")
    try:
        with ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            wanted = [name for name in ("images", "labels") if name in names]
            for name in wanted:
                array_form(archive, name, path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in wanted}
    except READING_ERRORS as error:
        raise DataError(f"data file {path} cannot be read: {error}; is it a complete .npz file?") from error
    images, labels = found.get("images"), found.get("labels")
    if images is None:
        raise DataError(f"data file {path} has no array 'images', only {', '.join(names) or 'nothing'}")
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise DataError(
            f"data file {path}: images must be uint8 (N, H, W) or (N, H, W, 1 or 3), got {images.dtype} {images.shape}"
        )
    if labels is not None and (labels.shape != (len(images),) or labels.dtype.kind not in "iu"):
        raise DataError(
            f"data file {path}: labels must be integers of shape ({len(images)},), got {labels.dtype} {labels.shape}"
        )
    images = images[..., None] if images.ndim == 3 else images
    ids = [str(index) for index in range(len(images))]
    return ArraySource(images, ids, None if labels is None else labels.astype(np.int64))
