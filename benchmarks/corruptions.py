"""The 19 corruptions of CIFAR-10-C in five severities, written anew from their formulas, for images of any size.

Each is a function of the image (H, W, C) uint8, of its parameters and of a generator of random numbers. Nothing is
learnt on them: they are neither `SHIFTS` nor `CORRUPTIONS` of the package. What there is to know of them:

- `frost` lays fractal noise over the image, with the colour, contrast and spectrum of the photographs of frost.
- `spatter` takes the outline of the drops for the edges that an edge detector finds.
- `glass` takes pixels from neighbours, as the program does; the paper has them exchanged.
- `snow` and `motion` blur as ImageMagick does, along whole pixels and to one side, without its rounding.
- Images of one channel stay so, and `saturate` leaves them as they are.

Source: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations",
and the parameters for 32 x 32 pixels of its program make_cifar_c.py.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]

FROST = ((0.57, 0.67, 0.70), 0.13, 0.06, 1.2)
"""Mean colour of photographs of frost, standard deviations of its brightness between and within images, and the power
of the frequency that the amplitude falls with."""

WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


def gaussian_noise(image: Array, deviation: float, random: Generator) -> Array:
    return image + random.normal(scale=deviation, size=image.shape)


def shot_noise(image: Array, photons: float, random: Generator) -> Array:
    return random.poisson(image * photons) / photons


def impulse_noise(image: Array, share: float, random: Generator) -> Array:
    return np.where(random.random(image.shape) < share, random.random(image.shape) < 0.5, image)


def speckle_noise(image: Array, deviation: float, random: Generator) -> Array:
    return image * (1 + random.normal(scale=deviation, size=image.shape))


def gaussian_blur(image: Array, sigma: float, _random: Generator) -> Array:
    return ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest")


def glass_blur(image: Array, parameters: tuple[float, int], random: Generator) -> Array:
    """Blurred, every pixel taken from itself or a neighbour above or to the left, so many times, and blurred again."""
    sigma, times = parameters
    mixed, (height, width) = gaussian_blur(image, sigma, random), image.shape[:2]
    for _ in range(times):
        y, x = np.mgrid[:height, :width]
        inner = (y > 1) & (x > 1)
        mixed = mixed[y - inner * random.integers(2, size=y.shape), x - inner * random.integers(2, size=x.shape)]
    return gaussian_blur(mixed, sigma, random)


def defocus_blur(image: Array, parameters: tuple[float, float], _random: Generator) -> Array:
    """With a disk whose edge is blurred over three pixels."""
    radius, edge = parameters
    y, x = np.mgrid[-3:4, -3:4]
    line = np.exp(-np.array([1.0, 0.0, 1.0]) / (2 * edge**2))
    kernel = ndimage.convolve((x**2 + y**2 <= radius**2).astype(float), np.outer(line, line), mode="constant")
    return ndimage.convolve(image, kernel[..., None] / kernel.sum(), mode="mirror")


def motion_blur(image: Array, parameters: tuple[float, float], random: Generator) -> Array:
    return _dragged(image, *parameters, float(random.uniform(-45, 45)))


def zoom_blur(image: Array, most: float, _random: Generator) -> Array:
    """The mean of the image, twice, and of enlarged ones in steps of 1 %."""
    enlarged = [_zoomed(image, factor) for factor in np.arange(1, most, 0.01)]
    return np.mean([image, *enlarged], axis=0)


def snow(image: Array, parameters: tuple[float, ...], random: Generator) -> Array:
    """Flakes that fall and, turned round, once more, over a paler image."""
    mean, deviation, size, least, radius, sigma, share = parameters
    flakes = _zoomed(random.normal(mean, deviation, image.shape[:2])[..., None], size)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    flakes = _dragged(flakes, radius, sigma, float(random.uniform(-135, -45)))
    grey = image @ [0.299, 0.587, 0.114] if image.shape[2] == 3 else image[..., 0]
    paler = np.maximum(image, 1.5 * grey[..., None] + 0.5)
    return share * image + (1 - share) * paler + flakes + np.rot90(flakes, 2)


def frost(image: Array, parameters: tuple[float, float], random: Generator) -> Array:
    (colour, between, within, power), (height, width) = FROST, image.shape[:2]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.irfft2(np.fft.rfft2(random.normal(size=(height, width))) / frequency**power, s=(height, width))
    ice = noise / noise.std() * within + random.normal(scale=between)
    hue = np.array(colour) if image.shape[2] == 3 else np.mean(colour)
    return parameters[0] * image + parameters[1] * np.clip(ice[..., None] + hue, 0, 1)


def fog(image: Array, parameters: tuple[float, float], random: Generator) -> Array:
    thickness, decay = parameters
    brightest, (height, width) = image.max(), image.shape[:2]
    clouds = _plasma(max(height, width), decay, random)[:height, :width, None]
    return (image + thickness * clouds) * brightest / (brightest + thickness)


def brightness(image: Array, added: float, _random: Generator) -> Array:
    """The value of hue, saturation and value."""
    value = image.max(axis=2, keepdims=True)
    return np.where(value > 0, image / np.maximum(value, 1e-9), 1) * np.minimum(value + added, 1)


def saturate(image: Array, parameters: tuple[float, float], _random: Generator) -> Array:
    """The saturation of hue, saturation and value; the hue of grey is red."""
    if image.shape[2] == 1:
        return image
    factor, added = parameters
    value, range_ = image.max(axis=2, keepdims=True), np.ptp(image, axis=2, keepdims=True)
    away = np.where(range_ > 0, (value - image) / np.maximum(range_, 1e-9), [0, 1, 1])
    saturation = np.clip(factor * range_ / np.maximum(value, 1e-9) + added, 0, 1)
    return value * (1 - away * saturation)


def contrast(image: Array, factor: float, _random: Generator) -> Array:
    means = image.mean(axis=(0, 1), keepdims=True)
    return means + factor * (image - means)


def elastic(image: Array, parameters: tuple[float, float, float], random: Generator) -> Array:
    """Three corners of the middle moved, then bent; all lengths in shares of the side."""
    height, width = image.shape[:2]
    side = min(height, width)
    bend, sigma, most = (each * side for each in parameters)
    third, (y, x) = side // 3, (height // 2, width // 2)
    corners = np.array([[y + third, x + third, 1], [y - third, x + third, 1], [y - third, x - third, 1]])
    moved = corners + random.uniform(-most, most, (3, 3)) * [1, 1, 0]
    turn = np.linalg.solve(moved, corners)[:, :2]
    grid = np.stack(np.mgrid[:height, :width], axis=-1).astype(float)
    turned = _resampled(image, np.concatenate([grid, np.ones((height, width, 1))], axis=2) @ turn, "mirror")
    noise = random.uniform(-1, 1, (height, width, 2))
    return _resampled(turned, grid + bend * ndimage.gaussian_filter(noise, (sigma, sigma, 0), truncate=3), "reflect")


def pixelate(image: Array, size: float, _random: Generator) -> Array:
    height, width = image.shape[:2]

    def coarse(channel: Array) -> Array:
        small = Image.fromarray(channel.astype(np.float32)).resize(
            (int(width * size), int(height * size)), Image.Resampling.BOX
        )
        return np.asarray(small.resize((width, height), Image.Resampling.BOX), dtype=np.float64)

    return np.stack([coarse(channel) for channel in np.moveaxis(image, 2, 0)], axis=2)


def jpeg(image: Array, quality: int, _random: Generator) -> Array:
    file, pixels = io.BytesIO(), np.round(255 * image).astype(np.uint8)
    Image.fromarray(pixels if image.shape[2] == 3 else pixels[..., 0]).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file), dtype=np.float64).reshape(image.shape) / 255


def spatter(image: Array, parameters: tuple[float, ...], random: Generator) -> Array:
    """Drops of water, bright where they are far from their edge; or of mud."""
    mean, deviation, sigma, least, strength, mud = parameters
    liquid = ndimage.gaussian_filter(random.normal(mean, deviation, image.shape[:2]), sigma, mode="nearest")
    drops = liquid > least
    colour = np.array(MUD if mud else WATER)
    colour = colour if image.shape[2] == 3 else colour.mean(keepdims=True)
    if mud:
        cover = ndimage.gaussian_filter(drops.astype(float), strength, mode="nearest")[..., None]
        cover = np.where(cover < 0.8, 0, cover)
        return image * (1 - cover) + colour * cover
    edges = drops & ~ndimage.binary_erosion(drops, border_value=1)
    far = np.minimum(ndimage.distance_transform_edt(~edges), 20) if edges.any() else np.full(drops.shape, 20.0)
    far = np.floor(ndimage.uniform_filter(far, 3, mode="mirror"))
    ranks = np.searchsorted(np.sort(far, axis=None), far, side="right") / far.size
    least_rank = ranks.min()
    even = 255 * (ranks - least_rank) / max(1 - least_rank, 1e-9)
    embossed = np.clip(ndimage.correlate(even, EMBOSS, mode="mirror"), 0, 255)
    water = np.where(drops, liquid, 0) * ndimage.uniform_filter(embossed, 3, mode="mirror")
    return image + strength * (water / max(float(water.max()), 1e-9))[..., None] * colour


Recipe = tuple[Callable[[Array, Any, Generator], Array], tuple[Any, ...]]

RECIPES: dict[str, Recipe] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": (speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic": (elastic, ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": (jpeg, (80, 65, 58, 50, 40)),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "spatter": (
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
}


def corrupted(image: Pixels, kind: str, severity: int, random: Generator) -> Pixels:
    """An image (H, W, C) under a kind of corruption, with a severity of 1 to 5."""
    change, parameters = RECIPES[kind]
    found = change(image / 255, parameters[severity - 1], random)
    return (255 * np.clip(found, 0, 1) + 1e-6).astype(np.uint8)


def _zoomed(image: Array, factor: float) -> Array:
    """The middle, enlarged to the whole."""
    height, width = image.shape[:2]
    parts = [int(np.ceil(side / factor)) for side in (height, width)]
    top, left = (height - parts[0]) // 2, (width - parts[1]) // 2
    large = ndimage.zoom(image[top : top + parts[0], left : left + parts[1]], (factor, factor, 1), order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return large[top : top + height, left : left + width]


def _dragged(image: Array, radius: float, sigma: float, angle: float) -> Array:
    """Blurred to one side: places along the angle, in degrees, count as half a normal distribution."""
    steps = np.arange(2 * int(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    way = np.deg2rad(angle)
    y, x = (np.ceil(steps * each - 0.5).astype(int) for each in (np.sin(way), np.cos(way)))
    height, width = image.shape[:2]
    rows = np.clip(np.arange(height) + y[:, None], 0, height - 1)
    columns = np.clip(np.arange(width) + x[:, None], 0, width - 1)
    return np.tensordot(weights / weights.sum(), image[rows[:, :, None], columns[:, None, :]], axes=1)


def _plasma(side: int, decay: float, random: Generator) -> Array:
    """(n, n) clouds between 0 and 1 by the diamond-square algorithm, n the next power of two: each step halves the grid
    and divides its noise by the square of `decay`."""
    heights, noise = np.zeros((1, 1)), 1.0

    def between(*corners: Array) -> Array:
        return np.mean(corners, axis=0) + noise * random.uniform(-1, 1, corners[0].shape)

    while len(heights) < side:
        below, right = np.roll(heights, -1, 0), np.roll(heights, -1, 1)
        middle = between(heights, below, right, np.roll(below, -1, 1))
        finer = np.empty((2 * len(heights), 2 * len(heights)))
        finer[::2, ::2], finer[1::2, 1::2] = heights, middle
        finer[::2, 1::2] = between(heights, right, middle, np.roll(middle, 1, 0))
        finer[1::2, ::2] = between(heights, below, middle, np.roll(middle, 1, 1))
        heights, noise = finer, noise / decay**2
    return (heights - heights.min()) / np.ptp(heights)


def _resampled(image: Array, places: Array, mode: str) -> Array:
    """The image with the value at (y, x) taken from places (H, W, 2), between pixels."""
    y_x = np.moveaxis(places, 2, 0)
    return np.stack(
        [ndimage.map_coordinates(channel, y_x, order=1, mode=mode) for channel in np.moveaxis(image, 2, 0)], axis=2
    )
