"""What a source of raw images is: uint8 arrays (H, W, C) with an id and, where there is one, a label."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...errors import DataError

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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a source.

    Attributes:
        source: as it is written, `<kind>:<name>`.
        name: what follows the kind.
        arguments: settings beside it.
        base: the in-distribution images that a source made of others is made of; None for other kinds.
        seed: of random choices.
    """

    source: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    base: ImageSource | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of data source: what `data.*.source` may say before the colon.

    Attributes:
        open: from a request to the images; raises `DataError` where they cannot be used.
        form: how it is written.
        summary: what it is, on one line.
        is_path: what follows the colon is a path, relative to the configuration file.
        arguments: names of the arguments it takes; None for any.
        made_of_others: it is made of in-distribution images: those of the fit split among the OOD sets, those of the
            test split among the shifted ones.
        same_classes: its images belong to classes of the model, so they are no OOD set.
    """

    open: Callable[[Request], ImageSource]
    form: str
    summary: str
    is_path: bool = False
    arguments: tuple[str, ...] | None = ()
    made_of_others: bool = False
    same_classes: bool = False
