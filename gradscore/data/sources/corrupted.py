"""Corruptions that leave the class of an image as it is: covariate shift, in five severities.

Source: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations",
for the idea and the severities; the strengths here are for small images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from ...errors import DataError
from .base import ImageSource, Pixels, Request, UnreadableImageError, class_names_of, wanted_image

SEVERITIES = 5


def blur(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """A Gaussian blur with a standard deviation of 2 % of the shorter side per severity."""
    radius = 0.02 * severity * min(image.shape[:2])
    channels = [Image.fromarray(each).filter(ImageFilter.GaussianBlur(radius)) for each in np.moveaxis(image, 2, 0)]
    return np.stack([np.asarray(channel) for channel in channels], 2)


def brightness(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """Every value 20 higher per severity, clipped."""
    return _to_pixels(image.astype(np.float64) + 20.0 * severity)


def contrast(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """Distances from the mean value shrunk by 16 % per severity."""
    mean = image.mean()
    return _to_pixels(mean + (image - mean) * (1 - 0.16 * severity))


def noise(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Normal noise added, with a standard deviation of 8 per severity."""
    return _to_pixels(image + random.normal(0.0, 8.0 * severity, image.shape))


CORRUPTIONS: dict[str, Callable[[Pixels, int, Generator], Pixels]] = {
    "blur": blur,
    "brightness": brightness,
    "contrast": contrast,
    "noise": noise,
}


@dataclass(frozen=True)
class CorruptedSource:
    """The images of another source, corrupted, with its labels.

    Attributes:
        kind: a name of `CORRUPTIONS`.
        severity: 1 to `SEVERITIES`.
        base: the images.
        seed: of the random choices, together with the position.
    """

    kind: str
    severity: int
    base: ImageSource
    seed: int

    @property
    def ids(self) -> Sequence[str]:
        """See `ImageSource`."""
        return [f"{self.kind}{self.severity}-{name}" for name in self.base.ids]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """See `ImageSource`: those of the base."""
        return self.base.labels

    @property
    def class_names(self) -> Sequence[str] | None:
        """See `ImageSource`: those of the base."""
        return class_names_of(self.base)

    def image(self, index: int) -> Pixels:
        """See `ImageSource`."""
        random = np.random.default_rng([self.seed, index, crc32(self.kind.encode())])
        image = wanted_image(self.base.image(index), where=f"corrupted:{self.kind}")
        return CORRUPTIONS[self.kind](image, self.severity, random)

    def content(self) -> str:
        """See `ImageSource`."""
        return f"{self.kind} {self.severity} {self.seed} {self.base.content()}"


def corrupted_source(request: Request) -> CorruptedSource:
    """In-distribution test images under covariate shift, as many as there are.

    Raises:
        DataError: no such kind or severity, or nothing to corrupt.
    """
    kind, severity = request.name, request.arguments.get("severity", 3)
    if kind not in CORRUPTIONS:
        raise DataError(f"no corruption {kind!r}: wanted one of {', '.join(CORRUPTIONS)}")
    if not isinstance(severity, int) or not 1 <= severity <= SEVERITIES:
        raise DataError(f"corrupted:{kind}: wanted a severity of 1 to {SEVERITIES} in arguments, got {severity!r}")
    if request.base is None:
        raise DataError(f"corrupted:{kind} is made of the in-distribution test samples: name it in data.shifted")
    with suppress(UnreadableImageError):  # what is no image is refused before anything is computed
        wanted_image(request.base.image(0), where=f"corrupted:{kind}")
    return CorruptedSource(kind, severity, request.base, request.seed)


def _to_pixels(values: NDArray[np.float64]) -> Pixels:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)
