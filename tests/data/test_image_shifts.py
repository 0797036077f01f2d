"""Shifts of images: they keep the form, grow with the strength, and are the same every time."""

import numpy as np
import pytest
from PIL import Image

from gradscore.data import IMAGE_SHIFTS, STRENGTHS, ShiftedImages
from gradscore.data.sources.image_changes import CORRUPTIONS
from gradscore.errors import DataError

ROWS, COLUMNS = np.mgrid[:24, :20]
SMOOTH = np.clip(np.stack([8 * ROWS, 250 - 8 * ROWS, 9 * COLUMNS], axis=2), 0, 255).astype(np.uint8)
FORMS = {"colour": SMOOTH, "grey": SMOOTH[:, :, :1], "tiny": SMOOTH[:3, :4]}


class Given:
    """Images in memory."""

    class_names = None

    def __init__(self, images: list) -> None:
        self._images = images
        self.ids = [f"i{place}" for place in range(len(images))]
        self.labels = np.arange(len(images))

    def image(self, index: int) -> np.ndarray:
        return self._images[index]

    def content(self) -> str:
        return "given"


@pytest.mark.parametrize("image", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("kind", IMAGE_SHIFTS)
def test_a_shifted_image_is_an_image_and_the_same_every_time(kind: str, image: np.ndarray) -> None:
    made = [ShiftedImages(kind, 3, Given([image]), np.array([0])).image(0) for _ in range(2)]
    assert (made[0].shape, made[0].dtype) == (image.shape, np.uint8)
    np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("kind", IMAGE_SHIFTS)
def test_a_shift_grows_with_its_strength(kind: str) -> None:
    sources = [ShiftedImages(kind, strength, Given([SMOOTH] * 20), np.arange(20)) for strength in STRENGTHS]
    moved = [np.mean([np.abs(source.image(place) - 1.0 * SMOOTH).mean() for place in range(20)]) for source in sources]
    assert 0 < moved[0] < moved[1] < moved[2]


def test_ids_and_labels_are_those_of_the_places() -> None:
    source = ShiftedImages("jpeg", 3, Given([SMOOTH] * 3), np.array([2, 0]))
    assert list(source.ids) == ["jpeg3-i2", "jpeg3-i0"]
    assert source.labels.tolist() == [2, 0]


def test_the_gamma_is_that_of_its_definition() -> None:
    wanted = np.round(255 * (SMOOTH / 255) ** 2.5)
    np.testing.assert_array_equal(ShiftedImages("darker", 3, Given([SMOOTH]), np.array([0])).image(0), wanted)


def test_a_grey_image_has_no_saturation() -> None:
    grey = FORMS["grey"]
    np.testing.assert_array_equal(ShiftedImages("saturation", 5, Given([grey]), np.array([0])).image(0), grey)


def test_larger_pixels_are_those_of_pillow() -> None:
    small = Image.fromarray(SMOOTH[:, :, 0]).resize((12, 15), Image.Resampling.BOX)
    wanted = np.asarray(small.resize((20, 24), Image.Resampling.NEAREST))
    found = ShiftedImages("pixelated", 3, Given([SMOOTH]), np.array([0])).image(0)
    np.testing.assert_array_equal(found[:, :, 0], wanted)


def test_none_of_them_is_a_corruption_that_is_reported() -> None:
    assert not IMAGE_SHIFTS.keys() & CORRUPTIONS.keys()


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(DataError, match="jpeg is for images"):
        ShiftedImages("jpeg", 1, Given([np.zeros(4)]), np.array([0])).image(0)
