"""Where raw images come from: uint8 arrays (H, W, C) with an id and, where there is one, a label."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from ..system import import_torchvision

Pixels = NDArray[np.uint8]

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


EIGHT_BIT_MODES = ("1", "CMYK", "HSV", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "YCbCr")

DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What Pillow raises for damaged files."""


class UnreadableImageError(DataError):
    """One image cannot be decoded."""


class ImageSource(Protocol):
    """Raw images by position."""

    @property
    def ids(self) -> Sequence[str]:
        """Stable names."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """(N,), or None without labels; -1 for a sample without one."""

    def image(self, index: int) -> Pixels:
        """(H, W, C) uint8.

        Raises:
            UnreadableImageError: it cannot be decoded.
        """

    def content(self) -> str:
        """What tells whether the images changed, as far as that is cheap to say."""


@dataclass(frozen=True)
class ArraySource:
    """Images in memory.

    Attributes:
        images: (N, H, W, C) uint8.
        ids: N names.
        labels: (N,) or None.
    """

    images: Pixels
    ids: Sequence[str]
    labels: NDArray[np.int64] | None

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        pixels: Pixels = self.images[index]
        return pixels

    def content(self) -> str:
        """See `ImageSource`: a hash of all pixels."""
        return hashlib.sha256(np.ascontiguousarray(self.images).data).hexdigest()


@dataclass(frozen=True)
class FileSource:
    """Image files below a folder.

    Attributes:
        root: the folder.
        ids: paths relative to it.
        labels: (N,) or None.
    """

    root: Path
    ids: Sequence[str]
    labels: NDArray[np.int64] | None

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        path = self.root / self.ids[index]
        try:
            with Image.open(path) as image:
                return as_pixels(image)
        except DECODING_ERRORS as error:
            raise UnreadableImageError(f"{path} cannot be decoded: {error}") from error

    def content(self) -> str:
        """See `ImageSource`: sizes of the files."""
        sizes = [str((self.root / name).stat().st_size) for name in self.ids]
        return hashlib.sha256(" ".join(sizes).encode()).hexdigest()


@dataclass(frozen=True)
class TorchvisionSource:
    """A torchvision data set.

    Attributes:
        dataset: returns (PIL image, label).
        ids: positions as text.
        labels: (N,) or None.
    """

    dataset: Any
    ids: Sequence[str]
    labels: NDArray[np.int64] | None

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        try:
            return as_pixels(self.dataset[index][0])
        except DECODING_ERRORS as error:
            raise UnreadableImageError(f"image {index} cannot be decoded: {error}") from error

    def content(self) -> str:
        """See `ImageSource`: the data set's own description."""
        return repr(self.dataset)


def open_source(source: str, arguments: Mapping[str, Any]) -> ImageSource:
    """Opens a source of raw images.

    Args:
        source: `sklearn:digits`, `npz:<file>`, `folder:<dir>` or `torchvision:<Dataset>`.
        arguments: passed to torchvision's data set; the others take none.

    Returns:
        The images.

    Raises:
        DataError: the source cannot be used.
    """
    kind, _, name = source.partition(":")
    if kind == "torchvision":
        return torchvision_source(name, arguments)
    if arguments:
        raise DataError(f"data source {source!r} takes no arguments, got {', '.join(arguments)}")
    if kind == "npz":
        return npz_source(Path(name))
    if kind == "folder":
        return folder_source(Path(name))
    if source == "sklearn:digits":
        return digits_source()
    raise DataError(
        f"unknown data source {source!r}: wanted sklearn:digits, npz:<file>, folder:<dir>, torchvision:<Dataset>, "
        "or for OOD sets synthetic:<kind>"
    )


def as_pixels(image: Image.Image) -> Pixels:
    """A PIL image as (H, W, 1) if it is grey, (H, W, 3) otherwise; palettes and transparency become RGB.

    Args:
        image: of eight bits per channel.

    Raises:
        ValueError: other depths, which would be clipped.
    """
    if image.mode not in EIGHT_BIT_MODES:
        raise ValueError(f"wanted eight bits per channel, got Pillow mode {image.mode}")
    grey = image.mode in ("1", "L")
    array = np.asarray(image.convert("L" if grey else "RGB"))
    return array[..., None] if grey else array


def digits_source() -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, values 0..16 stretched to 0..255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    return ArraySource(images, [str(index) for index in range(len(images))], digits.target.astype(np.int64))


def npz_source(path: Path) -> ArraySource:
    """Arrays `images`, uint8 (N, H, W) or (N, H, W, C), and optionally `labels`, integers (N,)."""
    if not path.is_file():
        raise DataError(f"data file {path} does not exist")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in ("images", "labels") if name in arrays}
            names = list(arrays)
    except (OSError, ValueError, TypeError, BadZipFile, EOFError, KeyError, zlib.error) as error:
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


def folder_source(root: Path) -> FileSource:
    """Image files in class sub-folders (classes in alphabetical order), or flat and without labels."""
    if not root.is_dir():
        raise DataError(f"data folder {root} does not exist")
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    flat = _images_below(root, "*")
    if classes and flat:
        raise DataError(f"data folder {root} holds both images ({flat[0]}, ...) and sub-folders ({classes[0]}, ...)")
    if not classes:
        return FileSource(root, flat, None)
    found = [(path, label) for label, name in enumerate(classes) for path in _images_below(root, f"{name}/**/*")]
    labels = np.array([label for _, label in found], dtype=np.int64)
    return FileSource(root, [path for path, _ in found], labels)


def _images_below(root: Path, pattern: str) -> list[str]:
    files = [path for path in root.glob(pattern) if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return sorted(path.relative_to(root).as_posix() for path in files)


def torchvision_source(name: str, arguments: Mapping[str, Any]) -> TorchvisionSource:
    """A data set of `torchvision.datasets`; nothing is downloaded unless the arguments say `download: true`."""
    import_torchvision()
    datasets = importlib.import_module("torchvision.datasets")
    if name not in datasets.__all__:
        close = difflib.get_close_matches(name, datasets.__all__, 3)
        raise DataError(
            f"torchvision has no data set {name!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
        )
    try:
        dataset = getattr(datasets, name)(**arguments)
    except (RuntimeError, OSError, TypeError, ValueError, ImportError) as error:
        raise DataError(f"torchvision:{name} with arguments {dict(arguments)} failed: {error}") from error
    targets = getattr(dataset, "targets", getattr(dataset, "labels", getattr(dataset, "_labels", None)))
    labels = None if targets is None else np.asarray(targets)
    if labels is not None and (labels.shape != (len(dataset),) or labels.dtype.kind not in "iu"):
        raise DataError(
            f"torchvision:{name} is not a set for classification: wanted {len(dataset)} integer labels, "
            f"got {labels.dtype} {labels.shape}"
        )
    ids = [str(index) for index in range(len(dataset))]
    return TorchvisionSource(dataset, ids, None if labels is None else labels.astype(np.int64))
