"""The recipes of benchmarks/corruptions.py, against what is known of them: colour spaces, moments, and flat images."""

import colorsys
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from corruptions import RECIPES, corrupted

from gradscore.data.sources.image_changes import CORRUPTIONS, SHIFTS

Image = NDArray[np.uint8]
IMAGE = np.kron(np.random.default_rng(0).integers(40, 216, (8, 8, 3)), np.ones((4, 4, 1))).astype(np.uint8)
STRONGER = [kind for kind in RECIPES if kind not in ("elastic", "frost", "saturate", "spatter")]


def made(kind: str, severity: int, image: Image = IMAGE, seed: int = 0) -> Image:
    return corrupted(image, kind, severity, np.random.default_rng(seed))


def changed_by(kind: str, severity: int) -> float:
    return float(np.mean([np.abs(made(kind, severity, seed=seed) - 1.0 * IMAGE).mean() for seed in range(10)]))


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("image", [IMAGE, IMAGE[:28, :24, :1]])
def test_an_image_of_the_same_form_that_the_seed_decides_on(kind: str, image: Image) -> None:
    for severity in range(1, 6):
        found = made(kind, severity, image)
        assert (found.dtype, found.shape) == (np.uint8, image.shape)
        np.testing.assert_array_equal(found, made(kind, severity, image))


@pytest.mark.parametrize("kind", STRONGER)
def test_the_highest_severity_changes_more_than_the_lowest(kind: str) -> None:
    assert changed_by(kind, 5) > changed_by(kind, 1) > 0


def test_nothing_learns_on_a_recipe() -> None:
    functions: set[Callable[..., Any]] = {change for change, _ in RECIPES.values()}
    assert not functions & {*SHIFTS.values(), *CORRUPTIONS.values()}


@pytest.mark.parametrize(
    ("kind", "deviation"),
    [("gaussian_noise", 25.5), ("shot_noise", 255 * np.sqrt(0.5 / 50)), ("speckle_noise", 127.5 * 0.2)],
)
def test_noise_has_the_deviation_of_its_formula(kind: str, deviation: float) -> None:
    grey = np.full((200, 200, 3), 128, dtype=np.uint8)
    assert made(kind, 5, grey).std() == pytest.approx(deviation, rel=0.02)


def test_impulses_are_black_or_white() -> None:
    grey = np.full((200, 200, 3), 128, dtype=np.uint8)
    found = made("impulse_noise", 5, grey)
    assert (found != 128).mean() == pytest.approx(0.07, abs=0.003)
    assert {*np.unique(found).tolist()} == {0, 128, 255}


@pytest.mark.parametrize("kind", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur", "elastic"])
def test_flat_images_stay_as_they_are(kind: str) -> None:
    flat = np.full((32, 32, 3), 100, dtype=np.uint8)
    for severity in range(1, 6):
        assert np.abs(made(kind, severity, flat) - 100.0).max() <= 1


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("brightness", lambda h, s, v: (h, s, min(v + 0.3, 1))),
        ("saturate", lambda h, s, v: (h, min(2.5 * s + 0.2, 1), v)),
    ],
)
def test_colours_change_as_in_another_conversion(
    kind: str, change: Callable[[float, float, float], tuple[float, float, float]]
) -> None:
    image = np.concatenate([IMAGE, np.full((2, 32, 3), 90, dtype=np.uint8)])
    wanted = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in image.reshape(-1, 3) / 255]
    assert np.abs(made(kind, 5, image).reshape(-1, 3) - 255 * np.array(wanted)).max() <= 1


def test_contrast_shrinks_distances_from_the_mean_of_each_channel() -> None:
    found = made("contrast", 5).astype(float)
    assert np.abs(found.mean(axis=(0, 1)) - IMAGE.mean(axis=(0, 1))).max() <= 1
    assert found.std() < 0.25 * IMAGE.std()
