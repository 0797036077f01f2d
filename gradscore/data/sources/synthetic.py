"""Out-of-distribution images made of in-distribution ones: each from its own position and seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from ...errors import DataError
from .base import ImageSource, Pixels, Request


def uniform_noise(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """Independent pixels between 0 and 255."""
    return random.integers(0, 256, image.shape, dtype=np.uint8)


def gaussian_noise(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """Independent normal pixels with mean 127.5 and standard deviation 64, clipped."""
    return _to_pixels(random.normal(127.5, 64.0, image.shape))


def permuted_pixels(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """The image's own pixels in random order."""
    return random.permutation(image.reshape(-1, image.shape[2])).reshape(image.shape)


def blur(image: Pixels, _other: Pixels, _random: Generator) -> Pixels:
    """A Gaussian blur with a standard deviation of an eighth of the shorter side."""
    radius = max(1.0, min(image.shape[:2]) / 8)
    blurred = [
        Image.fromarray(channel).filter(ImageFilter.GaussianBlur(radius)) for channel in np.moveaxis(image, 2, 0)
    ]
    return np.stack([np.asarray(channel) for channel in blurred], 2)


def mixup(image: Pixels, other: Pixels, _random: Generator) -> Pixels:
    """The mean of two images of different classes."""
    return _to_pixels((image.astype(np.float64) + other) / 2)


def cutmix(image: Pixels, other: Pixels, random: Generator) -> Pixels:
    """The left or upper half of one image beside the other half of an image of another class."""
    mixed, axis = image.copy(), int(random.integers(2))
    half = (slice(None),) * axis + (slice(image.shape[axis] // 2, None),)
    mixed[half] = other[half]
    return mixed


def jigsaw(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """The four quarters in another order; an odd row or column stays."""
    height, width = image.shape[0] // 2, image.shape[1] // 2
    corners = [(y, x) for y in (0, height) for x in (0, width)]
    order = random.permutation(4)
    while (order == np.arange(4)).all():
        order = random.permutation(4)
    mixed = image.copy()
    for (y, x), (from_y, from_x) in zip(corners, (corners[place] for place in order), strict=True):
        mixed[y : y + height, x : x + width] = image[from_y : from_y + height, from_x : from_x + width]
    return mixed


def rotate90(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """A rotation by 90 degrees, either way."""
    return np.ascontiguousarray(np.rot90(image, 1 + 2 * int(random.integers(2))))


KINDS: dict[str, Callable[[Pixels, Pixels, Generator], Pixels]] = {
    "blur": blur,
    "cutmix": cutmix,
    "gaussian_noise": gaussian_noise,
    "jigsaw": jigsaw,
    "mixup": mixup,
    "permuted_pixels": permuted_pixels,
    "rotate90": rotate90,
    "uniform_noise": uniform_noise,
}
"""New kinds go to the end: the place of a kind is part of its random seed."""

OF_TWO_CLASSES = ("cutmix", "mixup")


@dataclass(frozen=True)
class SyntheticSource:
    """Images made of those of another source, one for each.

    Attributes:
        kind: a name of `KINDS`.
        base: in-distribution images of the fit split.
        seed: of the random choices, together with the position.
    """

    kind: str
    base: ImageSource
    seed: int

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        return [f"{self.kind}-{name}" for name in self.base.ids]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """See `ImageSource`: there are none."""
        return None

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        random = np.random.default_rng([self.seed, index, list(KINDS).index(self.kind)])
        image = self.base.image(index)
        other = image
        if self.kind in OF_TWO_CLASSES:
            labels = np.asarray(self.base.labels)
            other = self.base.image(int(random.choice(np.flatnonzero(labels != labels[index]))))
            if other.shape != image.shape:
                raise DataError(f"synthetic:{self.kind} needs images of one size, got {image.shape} and {other.shape}")
        return KINDS[self.kind](image, other, random)

    def content(self) -> str:
        """See `ImageSource`."""
        return f"{self.kind} {self.seed} {self.base.content()}"


def synthetic_source(request: Request) -> SyntheticSource:
    """Out-of-distribution images made of the in-distribution fit images, one for each.

    Raises:
        DataError: no such kind, or nothing to make them of.
    """
    kind, base = request.name, request.base
    if kind not in KINDS:
        raise DataError(f"no synthetic set {kind!r}: wanted one of {', '.join(KINDS)}")
    if base is None:
        raise DataError(
            f"synthetic:{kind} is made of the in-distribution fit samples, so only OOD sets can be synthetic"
        )
    if kind in OF_TWO_CLASSES and (base.labels is None or len(np.unique(base.labels)) < 2):
        raise DataError(f"synthetic:{kind} mixes two classes; the in-distribution fit samples have fewer")
    return SyntheticSource(kind, base, int(request.arguments.get("seed", request.seed)))


def _to_pixels(values: NDArray[np.float64]) -> Pixels:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)
