"""Out-of-distribution images made of in-distribution ones: each from its own position and seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from ...errors import DataError
from .base import ImageSource, Pixels, Raw, Request, UnreadableImageError, describe_raw, is_image, wanted_image
from .synthetic_values import VALUE_KINDS, VALUES_OF_TWO_CLASSES

_FINER = 4
"""Drawings are made this many times finer than the image, so that their edges are smooth."""

_CONTRAST = 96
"""Ink differs from the ground by at least this in some channel, of 255."""


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


def strokes(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """One to three thick curves of one colour on flat ground of another, as handwriting is."""
    ground, ink = _colours(random, 2, image.shape[2])
    while np.abs(ground - ink).max() < _CONTRAST:
        ground, ink = _colours(random, 2, image.shape[2])
    canvas, size = _canvas(image), min(image.shape[:2]) * _FINER
    drawing = ImageDraw.Draw(canvas)
    for _ in range(int(random.integers(1, 4))):
        width = float(random.uniform(0.06, 0.14)) * size
        curve = _bezier(random.uniform(0.1, 0.9, (4, 2)) * canvas.size)
        drawing.line([tuple(point) for point in curve], fill=255, width=max(1, round(width)), joint="curve")
    return _blend(canvas, image, ground, ink)


def shapes(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """One to five filled ellipses, boxes and triangles of any colours on flat ground."""
    drawn = np.broadcast_to(_colours(random, 1, image.shape[2])[0], image.shape)
    for colour in _colours(random, int(random.integers(1, 6)), image.shape[2]):
        canvas = _canvas(image)
        drawing = ImageDraw.Draw(canvas)
        corners = [tuple(point) for point in random.uniform(-0.1, 1.1, (3, 2)) * canvas.size]
        left, right = sorted(corner[0] for corner in corners[:2])
        top, bottom = sorted(corner[1] for corner in corners[:2])
        match int(random.integers(3)):
            case 0:
                drawing.ellipse((left, top, right, bottom), fill=255)
            case 1:
                drawing.rectangle((left, top, right, bottom), fill=255)
            case _:
                drawing.polygon(corners, fill=255)
        drawn = _blend(canvas, image, drawn, colour)
    return _to_pixels(np.asarray(drawn, dtype=np.float64))


def patches(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """Flat patches of any colours, one to sixteen of them in a grid."""
    rows, columns = random.integers(1, 5, 2)
    colours = _colours(random, int(rows * columns), image.shape[2]).reshape(rows, columns, -1)
    y = np.arange(image.shape[0]) * rows // image.shape[0]
    x = np.arange(image.shape[1]) * columns // image.shape[1]
    return _to_pixels(colours[y[:, None], x[None]])


def gradients(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """A smooth passage from one colour to another, in any direction."""
    y, x = np.meshgrid(*(np.linspace(-1, 1, side) for side in image.shape[:2]), indexing="ij")
    angle = random.uniform(0, 2 * np.pi)
    along = np.sin(angle) * y + np.cos(angle) * x
    share = ((along - along.min()) / max(np.ptp(along), 1e-12))[..., None]
    first, last = _colours(random, 2, image.shape[2])
    return _to_pixels(first * (1 - share) + last * share)


def fractal_noise(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """Noise whose amplitude falls with frequency to a power between 0.7 and 2, as in clouds and many textures."""
    height, width, channels = image.shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    amplitude = frequency ** -random.uniform(0.7, 2.0)
    spectrum = np.fft.rfft2(random.normal(size=(channels, height, width))) * amplitude
    noise = np.moveaxis(np.fft.irfft2(spectrum, s=(height, width)), 0, 2)
    grey = noise.mean(axis=2, keepdims=True)
    mixed = grey + (noise - grey) * random.uniform(0, 1)
    contrast = random.uniform(20, 80) / max(float(mixed.std()), 1e-12)
    return _to_pixels(mixed * contrast + _colours(random, 1, channels)[0] / 2 + 64)


def zoom(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """A part of the image, a third to a half of each side, blown up to the whole."""
    height, width = (max(1, round(side * random.uniform(1 / 3, 1 / 2))) for side in image.shape[:2])
    y, x = (int(random.integers(whole - part + 1)) for whole, part in zip(image.shape, (height, width), strict=False))
    return _resized(image[y : y + height, x : x + width], image.shape[:2])


def shrink(image: Pixels, _other: Pixels, random: Generator) -> Pixels:
    """The image at a third to a half of its size, somewhere on ground of its own mean colour."""
    height, width = (max(1, round(side * random.uniform(1 / 3, 1 / 2))) for side in image.shape[:2])
    y, x = (int(random.integers(whole - part + 1)) for whole, part in zip(image.shape, (height, width), strict=False))
    small = np.broadcast_to(_to_pixels(image.mean(axis=(0, 1))), image.shape).copy()
    small[y : y + height, x : x + width] = _resized(image, (height, width))
    return small


KINDS: dict[str, Callable[[Pixels, Pixels, Generator], Pixels]] = {
    "blur": blur,
    "cutmix": cutmix,
    "gaussian_noise": gaussian_noise,
    "jigsaw": jigsaw,
    "mixup": mixup,
    "permuted_pixels": permuted_pixels,
    "rotate90": rotate90,
    "uniform_noise": uniform_noise,
    "strokes": strokes,
    "shapes": shapes,
    "patches": patches,
    "gradients": gradients,
    "fractal_noise": fractal_noise,
    "zoom": zoom,
    "shrink": shrink,
}
"""New kinds go to the end: the place of a kind is part of its random seed."""

OF_TWO_CLASSES = ("cutmix", "mixup", *VALUES_OF_TWO_CLASSES)

_AFTER_IMAGES = 1000
"""Added to the place of a kind that is not for images, in its random seed."""


@dataclass(frozen=True)
class SyntheticSource:
    """Samples made of those of another source, one for each.

    Attributes:
        kind: a name of `KINDS` or `VALUE_KINDS`.
        base: in-distribution samples of the fit split.
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

    def image(self, index: int) -> Raw:
        """See `ImageSource`."""
        if self.kind in VALUE_KINDS:
            random = np.random.default_rng([self.seed, index, _AFTER_IMAGES + list(VALUE_KINDS).index(self.kind)])
            sample = self.base.image(index)
            return VALUE_KINDS[self.kind](sample, self._other(sample, index, random), random)
        random = np.random.default_rng([self.seed, index, list(KINDS).index(self.kind)])
        where = f"synthetic:{self.kind}"
        image = wanted_image(self.base.image(index), where=where)
        other = wanted_image(self._other(image, index, random), where=where)
        if other.shape != image.shape:
            raise DataError(f"synthetic:{self.kind} needs images of one size, got {image.shape} and {other.shape}")
        return KINDS[self.kind](image, other, random)

    def content(self) -> str:
        """See `ImageSource`."""
        return f"{self.kind} {self.seed} {self.base.content()}"

    def _other(self, sample: Raw, index: int, random: Generator) -> Raw:
        """A sample of another class, where the kind mixes two; the same one otherwise."""
        if self.kind not in OF_TWO_CLASSES:
            return sample
        labels = np.asarray(self.base.labels)
        return self.base.image(int(random.choice(np.flatnonzero(labels != labels[index]))))


def synthetic_source(request: Request) -> SyntheticSource:
    """Out-of-distribution samples made of the in-distribution fit samples, one for each.

    Raises:
        DataError: no such kind, nothing to make them of, or samples that it cannot be made of.
    """
    kind, base = request.name, request.base
    if kind not in KINDS and kind not in VALUE_KINDS:
        raise DataError(f"no synthetic set {kind!r}: wanted one of {', '.join([*KINDS, *VALUE_KINDS])}")
    if base is None:
        raise DataError(
            f"synthetic:{kind} is made of the in-distribution fit samples, so only OOD sets can be synthetic"
        )
    if kind in OF_TWO_CLASSES and (base.labels is None or len(np.unique(base.labels)) < 2):
        raise DataError(f"synthetic:{kind} mixes two classes; the in-distribution fit samples have fewer")
    found = SyntheticSource(kind, base, int(request.arguments.get("seed", request.seed)))
    _try_one(found)
    return found


def _try_one(made: SyntheticSource) -> None:
    """Looks at one sample, so that what cannot be made of such samples is refused before anything is computed."""
    with suppress(UnreadableImageError):
        raw = made.base.image(0)
        if is_image(raw) != (made.kind in KINDS):
            what, others = ("images", VALUE_KINDS) if made.kind in KINDS else ("samples that are no images", KINDS)
            raise DataError(
                f"synthetic:{made.kind} is for {what}, and these are {describe_raw(raw)}; for them there are: "
                f"{', '.join(others)}"
            )
        if made.kind in VALUE_KINDS:
            made.image(0)


def _colours(random: Generator, count: int, channels: int) -> NDArray[np.float64]:
    """Colours (count, channels) of any kind; grey, all of them, one time in two."""
    colours = random.uniform(0, 255, (count, channels))
    return np.repeat(colours[:, :1], channels, axis=1) if random.random() < 0.5 else colours


def _canvas(image: Pixels) -> Image.Image:
    return Image.new("L", (image.shape[1] * _FINER, image.shape[0] * _FINER))


def _blend(canvas: Image.Image, image: Pixels, below: NDArray[Any], ink: NDArray[np.float64]) -> Pixels:
    """What lies below with ink where the canvas, (4 H, 4 W), is drawn on."""
    size = (image.shape[1], image.shape[0])
    cover = np.asarray(canvas.resize(size, Image.Resampling.BOX), dtype=np.float64)[..., None] / 255
    return _to_pixels(below * (1 - cover) + ink * cover)


def _bezier(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Twenty points (20, 2) of the cubic curve of four points (4, 2)."""
    t = np.linspace(0, 1, 20)[:, None]
    weights = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    return weights @ points


def _resized(image: Pixels, size: tuple[int, ...]) -> Pixels:
    """Bicubic, to (height, width)."""
    height, width = size
    channels = [
        Image.fromarray(np.ascontiguousarray(channel)).resize((width, height), Image.Resampling.BICUBIC)
        for channel in np.moveaxis(image, 2, 0)
    ]
    return np.stack([np.asarray(channel) for channel in channels], 2)


def _to_pixels(values: NDArray[np.float64]) -> Pixels:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)
