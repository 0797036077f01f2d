"""Changes of images: into out-of-distribution ones, and such that leave their class as it is.

Every change is a function of the image (H, W, C) uint8, what it needs beside, and a generator of random numbers, and
returns an image of the same form.

- The first of them make samples of no class, for `SYNTHETIC` in `synthetic`.
- `CORRUPTIONS` are the covariate shifts that figures are reported on, in five severities.
- `SHIFTS` are what P(wrong) under shift is learnt on. None of them is a corruption, so that figures on corrupted images
  are about shifts that nothing has seen.

Source: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations",
and Cubuk et al. 2020, "RandAugment", for the kinds; how strong they are is for small images.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from scipy import ndimage
from scipy.special import expit

from .raw_samples import Pixels

MOST_SEVERE = 5
"""Corruptions and shifts have severities from 1 to this."""

SEVERITIES = (1, 3, 5)
"""Severities that P(wrong) under shift is learnt with."""

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
    return _blurred(image, max(1.0, min(image.shape[:2]) / 8))


def matched(other: Pixels, image: Pixels) -> Pixels:
    """Another image with the size and the channels of an image: grey in all of three, or colours made grey."""
    if other.shape[2] != image.shape[2]:
        grey = other[..., 0] if other.shape[2] == 1 else np.asarray(Image.fromarray(other).convert("L"))
        other = np.repeat(grey[..., None], image.shape[2], axis=2)
    return other if other.shape == image.shape else _resized(other, image.shape[:2])


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


def mild_blur(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """A Gaussian blur with a standard deviation of 2 % of the shorter side per severity."""
    return _blurred(image, 0.02 * severity * min(image.shape[:2]))


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
    "blur": mild_blur,
    "brightness": brightness,
    "contrast": contrast,
    "noise": noise,
}


def rotation(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Turned by 8 degrees per severity, either way."""
    angle = np.deg2rad(8.0 * severity) * random.choice([-1, 1])
    return _moved(image, [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def shear(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Columns moved by 14 % of their distance from the middle per severity, either way."""
    return _moved(image, [[1.0, 0.0], [0.14 * severity * random.choice([-1, 1]), 1.0]])


def translation(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Moved by 6 % of the shorter side per severity, in any direction."""
    way = random.uniform(0, 2 * np.pi)
    distance = 0.06 * severity * min(image.shape[:2])
    return _moved(image, np.eye(2), (distance * np.sin(way), distance * np.cos(way)))


def enlarged(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """The middle, 15 % larger per severity."""
    return _moved(image, np.eye(2) / (1 + 0.15 * severity))


def reduced(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """15 % smaller per severity, with reflected borders."""
    return _moved(image, np.eye(2) * (1 + 0.15 * severity))


def elastic(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Bent smoothly, by at most 2.5 % of the shorter side per severity."""
    side = min(image.shape[:2])
    bends = [ndimage.gaussian_filter(random.uniform(-1, 1, image.shape[:2]), side / 12, mode="reflect") for _ in "yx"]
    grid = np.meshgrid(*map(np.arange, image.shape[:2]), indexing="ij")
    places = [
        axis + bend * (0.025 * severity * side / max(np.abs(bend).max(), 1e-9))
        for axis, bend in zip(grid, bends, strict=True)
    ]

    def bent(channel: Pixels) -> Pixels:
        return _to_pixels(ndimage.map_coordinates(channel.astype(float), places, order=1, mode="reflect"))

    return _by_channel(image, bent)


def darker(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """A gamma of 1 and 0.5 more per severity."""
    return _to_pixels(255 * (image / 255) ** (1 + 0.5 * severity))


def lighter(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """A gamma of one over 1 and 0.5 more per severity."""
    return _to_pixels(255 * (image / 255) ** (1 / (1 + 0.5 * severity)))


def posterised(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """Few values in each channel: 8, 6, 4, 3 and 2."""
    steps = (8, 6, 4, 3, 2)[severity - 1] - 1
    return _to_pixels(np.round(image / 255 * steps) / steps * 255)


def pixelated(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """Made of larger pixels: 13 % fewer of them each way per severity."""
    height, width = image.shape[:2]
    small = (max(1, round(width * (1 - 0.13 * severity))), max(1, round(height * (1 - 0.13 * severity))))

    def one(channel: Pixels) -> Pixels:
        reduced_once = Image.fromarray(channel).resize(small, Image.Resampling.BOX)
        return np.asarray(reduced_once.resize((width, height), Image.Resampling.NEAREST))

    return _by_channel(image, one)


def jpeg(image: Pixels, severity: int, _random: Generator) -> Pixels:
    """Compressed with a quality of 60, 40, 25, 15 and 8."""
    quality = (60, 40, 25, 15, 8)[severity - 1]

    def one(pixels: Pixels) -> Pixels:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        return np.asarray(Image.open(file))

    return one(np.ascontiguousarray(image)) if image.shape[2] == 3 else _by_channel(image, one)


def saturation(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Colours 20 % paler or 60 % stronger per severity; grey images stay as they are."""
    grey = image.mean(2, keepdims=True)
    factor = 1 - 0.2 * severity if random.random() < 0.5 else 1 + 0.6 * severity
    return _to_pixels(grey + (image - grey) * factor)


def occlusion(image: Pixels, severity: int, random: Generator) -> Pixels:
    """A square of one colour anywhere, its side 12 % of the shorter one per severity."""
    height, width = image.shape[:2]
    side = max(1, round(0.12 * severity * min(height, width)))
    top, left = int(random.integers(height - side + 1)), int(random.integers(width - side + 1))
    covered = image.copy()
    covered[top : top + side, left : left + side] = random.integers(0, 256, image.shape[2])
    return covered


def dead_pixels(image: Pixels, severity: int, random: Generator) -> Pixels:
    """1.5 % of the pixels per severity black or white."""
    dead = random.random(image.shape[:2]) < 0.015 * severity
    changed = image.copy()
    changed[dead] = np.where(random.random((int(dead.sum()), 1)) < 0.5, 0, 255)
    return changed


def glare(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Light that falls off from a random place: 18 % per severity of the way to white there, half at half the side."""
    far = np.hypot(*_from_place(image, random)) / (0.5 * min(image.shape[:2]))
    return _lit(image, 0.18 * severity / (1 + far**2))


def stripes(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Light through a blind: in waves of 20 to 50 % of the side, 12 % per severity of the way to white at most."""
    side, angle = min(image.shape[:2]) * random.uniform(0.2, 0.5), random.uniform(0, 2 * np.pi)
    y, x = _from_place(image, random)
    return _lit(image, 0.06 * severity * (1 + np.sin(2 * np.pi * (np.sin(angle) * y + np.cos(angle) * x) / side)))


def shadow(image: Pixels, severity: int, random: Generator) -> Pixels:
    """Darker by 17 % per severity on one side of a soft edge through a random place."""
    (y, x), angle = _from_place(image, random), random.uniform(0, 2 * np.pi)
    beyond = (np.sin(angle) * y + np.cos(angle) * x) / (0.05 * min(image.shape[:2]))
    return _to_pixels(image.astype(np.float64) * (1 - 0.17 * severity * expit(beyond))[..., None])


SHIFTS: dict[str, Callable[[Pixels, int, Generator], Pixels]] = {
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
    "glare": glare,
    "stripes": stripes,
    "shadow": shadow,
}
"""New kinds go to the end: the place of a kind decides which images it is made of."""


def _from_place(image: Pixels, random: Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distances of pixels below and to the right of a random one."""
    y, x = (random.uniform(0, side) for side in image.shape[:2])
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return rows - y, columns - x


def _lit(image: Pixels, light: NDArray[np.float64]) -> Pixels:
    """Light (H, W) laid over the image, in shares of the way to white."""
    return _to_pixels(image + light[..., None] * (255.0 - image.astype(np.float64)))


def _colours(random: Generator, count: int, channels: int) -> NDArray[np.float64]:
    """Colours (count, channels) of any kind; grey, all of them, one time in two."""
    colours = random.uniform(0, 255, (count, channels))
    return np.repeat(colours[:, :1], channels, axis=1) if random.random() < 0.5 else colours


def _canvas(image: Pixels) -> Image.Image:
    return Image.new("L", (image.shape[1] * _FINER, image.shape[0] * _FINER))


def _blend(canvas: Image.Image, image: Pixels, below: NDArray[Any], ink: NDArray[np.float64]) -> Pixels:
    """Image with ink where the canvas, (4 H, 4 W), is drawn on."""
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

    def resized(channel: Pixels) -> Pixels:
        return np.asarray(Image.fromarray(channel).resize((width, height), Image.Resampling.BICUBIC))

    return _by_channel(image, resized)


def _blurred(image: Pixels, radius: float) -> Pixels:
    return _by_channel(
        image, lambda channel: np.asarray(Image.fromarray(channel).filter(ImageFilter.GaussianBlur(radius)))
    )


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
