"""Shifts of images that leave their class as it is, unlike any of `corrupted:`: what P(wrong) under shift is learnt on.

None of them is blur, brightness, contrast or normal noise, so that figures on `corrupted:` sets are about shifts that
nothing has seen.

Source: Hendrycks and Dietterich 2019 and Cubuk et al. 2020, "RandAugment", for the kinds; the strengths are for small
images.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from .sources import ImageSource, Pixels
from .sources.base import wanted_image

STRENGTHS = (1, 3, 5)
"""How strong a shift is, as the severities of `corrupted:`."""


def rotation(image: Pixels, strength: int, random: Generator) -> Pixels:
    """Turned by 8 degrees per strength, either way."""
    angle = np.deg2rad(8.0 * strength) * random.choice([-1, 1])
    return _moved(image, [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def shear(image: Pixels, strength: int, random: Generator) -> Pixels:
    """Columns moved by 14 % of their distance from the middle per strength, either way."""
    return _moved(image, [[1.0, 0.0], [0.14 * strength * random.choice([-1, 1]), 1.0]])


def translation(image: Pixels, strength: int, random: Generator) -> Pixels:
    """Moved by 6 % of the shorter side per strength, in any direction."""
    way = random.uniform(0, 2 * np.pi)
    distance = 0.06 * strength * min(image.shape[:2])
    return _moved(image, np.eye(2), (distance * np.sin(way), distance * np.cos(way)))


def enlarged(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """The middle, 15 % larger per strength."""
    return _moved(image, np.eye(2) / (1 + 0.15 * strength))


def reduced(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """15 % smaller per strength, with reflected borders."""
    return _moved(image, np.eye(2) * (1 + 0.15 * strength))


def elastic(image: Pixels, strength: int, random: Generator) -> Pixels:
    """Bent smoothly, by at most 2.5 % of the shorter side per strength."""
    side = min(image.shape[:2])
    bends = [ndimage.gaussian_filter(random.uniform(-1, 1, image.shape[:2]), side / 12, mode="reflect") for _ in "yx"]
    grid = np.meshgrid(*map(np.arange, image.shape[:2]), indexing="ij")
    places = [
        axis + bend * (0.025 * strength * side / max(np.abs(bend).max(), 1e-9))
        for axis, bend in zip(grid, bends, strict=True)
    ]

    def bent(channel: Pixels) -> Pixels:
        return _to_pixels(ndimage.map_coordinates(channel.astype(float), places, order=1, mode="reflect"))

    return _by_channel(image, bent)


def darker(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """A gamma of 1 and 0.5 more per strength."""
    return _to_pixels(255 * (image / 255) ** (1 + 0.5 * strength))


def lighter(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """A gamma of one over 1 and 0.5 more per strength."""
    return _to_pixels(255 * (image / 255) ** (1 / (1 + 0.5 * strength)))


def posterised(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """Few values in each channel: 8, 6, 4, 3 and 2."""
    steps = (8, 6, 4, 3, 2)[strength - 1] - 1
    return _to_pixels(np.round(image / 255 * steps) / steps * 255)


def pixelated(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """Made of larger pixels: 13 % fewer of them each way per strength."""
    height, width = image.shape[:2]
    small = (max(1, round(width * (1 - 0.13 * strength))), max(1, round(height * (1 - 0.13 * strength))))

    def one(channel: Pixels) -> Pixels:
        reduced_once = Image.fromarray(channel).resize(small, Image.Resampling.BOX)
        return np.asarray(reduced_once.resize((width, height), Image.Resampling.NEAREST))

    return _by_channel(image, one)


def jpeg(image: Pixels, strength: int, _random: Generator) -> Pixels:
    """Compressed with a quality of 60, 40, 25, 15 and 8."""
    quality = (60, 40, 25, 15, 8)[strength - 1]

    def one(pixels: Pixels) -> Pixels:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        return np.asarray(Image.open(file))

    return one(np.ascontiguousarray(image)) if image.shape[2] == 3 else _by_channel(image, one)


def saturation(image: Pixels, strength: int, random: Generator) -> Pixels:
    """Colours 20 % paler or 60 % stronger per strength; grey images stay as they are."""
    grey = image.mean(2, keepdims=True)
    factor = 1 - 0.2 * strength if random.random() < 0.5 else 1 + 0.6 * strength
    return _to_pixels(grey + (image - grey) * factor)


def occlusion(image: Pixels, strength: int, random: Generator) -> Pixels:
    """A square of one colour anywhere, its side 12 % of the shorter one per strength."""
    height, width = image.shape[:2]
    side = max(1, round(0.12 * strength * min(height, width)))
    top, left = int(random.integers(height - side + 1)), int(random.integers(width - side + 1))
    covered = image.copy()
    covered[top : top + side, left : left + side] = random.integers(0, 256, image.shape[2])
    return covered


def dead_pixels(image: Pixels, strength: int, random: Generator) -> Pixels:
    """1.5 % of the pixels per strength black or white."""
    dead = random.random(image.shape[:2]) < 0.015 * strength
    changed = image.copy()
    changed[dead] = np.where(random.random((int(dead.sum()), 1)) < 0.5, 0, 255)
    return changed


IMAGE_SHIFTS: dict[str, Callable[[Pixels, int, Generator], Pixels]] = {
    "rotation": rotation,
    "shear": shear,
    "translation": translation,
    "enlarged": enlarged,
    "reduced": reduced,
    "elastic": elastic,
    "darker": darker,
    "lighter": lighter,
    "posterised": posterised,
    "pixelated": pixelated,
    "jpeg": jpeg,
    "saturation": saturation,
    "occlusion": occlusion,
    "dead_pixels": dead_pixels,
}


@dataclass(frozen=True)
class ShiftedImages:
    """Images of another source under a shift, with its labels.

    Attributes:
        kind: a name of `IMAGE_SHIFTS`.
        strength: 1 to 5.
        base: the images.
        places: (n,) which of them.
    """

    kind: str
    strength: int
    base: ImageSource
    places: NDArray[np.int64]

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        ids = self.base.ids
        return [f"{self.kind}{self.strength}-{ids[place]}" for place in self.places]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """See `ImageSource`: those of the base."""
        return None if self.base.labels is None else self.base.labels[self.places]

    def image(self, index: int) -> Pixels:
        """See `ImageSource`; the same place, kind and strength give the same values."""
        place = int(self.places[index])
        random = np.random.default_rng([place, self.strength, crc32(self.kind.encode())])
        image = wanted_image(self.base.image(place), where=self.kind)
        return np.ascontiguousarray(IMAGE_SHIFTS[self.kind](image, self.strength, random))

    def content(self) -> str:
        """See `ImageSource`."""
        return f"{self.kind} {self.strength} {self.base.content()}"


def _moved(image: Pixels, matrix: Any, offset: tuple[float, float] = (0.0, 0.0)) -> Pixels:
    """The image with place x taken from the matrix times x, about the middle, plus the offset; borders reflect."""
    turn, middle = np.asarray(matrix, dtype=np.float64), (np.array(image.shape[:2]) - 1) / 2
    start = middle - turn @ middle + np.asarray(offset)

    def moved(channel: Pixels) -> Pixels:
        return _to_pixels(ndimage.affine_transform(channel.astype(float), turn, start, order=1, mode="reflect"))

    return _by_channel(image, moved)


def _by_channel(image: Pixels, change: Callable[[Pixels], Pixels]) -> Pixels:
    return np.stack([change(np.ascontiguousarray(channel)) for channel in np.moveaxis(image, 2, 0)], 2)


def _to_pixels(values: NDArray[np.float64]) -> Pixels:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)
