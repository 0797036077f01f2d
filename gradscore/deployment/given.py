"""Images as they are given in Python: paths, PIL images and arrays of pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data import RawImage, as_pixels, is_pixels, open_user_images
from ..errors import DataError

Given = str | Path | Image.Image | NDArray[np.uint8]
"""One image: a path, a PIL image, or pixels (H, W) or (H, W, C) uint8. A path may name several, as `score` takes it."""


def raw_images(given: object) -> list[RawImage]:
    """The pixels of images, each with its path or its position as a name.

    Args:
        given: one or several.

    Raises:
        DataError: something else, or a single path that is not there; one of several has its error instead of pixels.
    """
    is_one = not isinstance(given, Sequence) or isinstance(given, str)
    several: Iterable[object] = [given] if is_one else given  # type: ignore[assignment]
    found: list[RawImage] = []
    for place, each in enumerate(several):
        if isinstance(each, str | Path):
            try:
                found += [image for source in open_user_images([str(each)]) for image in source]
            except DataError as error:
                if is_one:
                    raise
                found.append(RawImage(str(each), None, str(error)))
        else:
            found.append(RawImage(str(place), _pixels(each, place)))
    return found


def _pixels(image: object, place: int) -> NDArray[np.uint8]:
    if isinstance(image, Image.Image):
        try:
            return as_pixels(image)
        except ValueError as error:
            raise DataError(f"images[{place}]: {error}; convert it to 'L' or 'RGB' as in training") from None
    if is_pixels(image):
        return image if image.ndim == 3 else image[..., None]
    got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
    raise DataError(
        f"images[{place}]: wanted a path, a PIL image, or pixels (H, W) or (H, W, C) uint8, got {got}; preprocessed "
        "images come as one tensor (N, C, H, W)"
    )
