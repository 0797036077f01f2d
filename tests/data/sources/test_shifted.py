"""Images under covariate shift: they keep form and labels, grow with the severity, and are the same every time."""

import numpy as np
import pytest
from PIL import Image

from gradscore.data import (
    SEVERITIES,
    ArraySource,
    DataConfig,
    PreprocessingConfig,
    ShiftedImages,
    open_source,
    open_splits,
)
from gradscore.data.sources.image_changes import CORRUPTIONS, SHIFTS
from gradscore.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 20, 10, 3), dtype=np.uint8)
BASE = ArraySource(IMAGES, list("abcd"), np.arange(4))


def corrupted(kind, severity=3, base=BASE):
    return ShiftedImages(kind, severity, base, seed=0)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_shape_type_and_labels_stay(kind):
    source = corrupted(kind)
    assert (source.sample(1).shape, source.sample(1).dtype) == ((20, 10, 3), np.uint8)
    np.testing.assert_array_equal(source.labels, BASE.labels)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_more_severe_is_farther_from_the_image(kind):
    sizes = [np.abs(corrupted(kind, each).sample(0).astype(float) - IMAGES[0]).mean() for each in range(1, 6)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0


BY_HAND = {
    "brightness": (2, [10, 230], [50, 255]),
    "contrast": (5, [50, 150], [90, 110]),  # the mean is 100; a fifth of the distance from it is left
}


@pytest.mark.parametrize(("kind", "case"), BY_HAND.items(), ids=BY_HAND)
def test_by_hand(kind, case):
    severity, pixels, wanted = case
    base = ArraySource(np.array([[[[pixels[0]], [pixels[1]]]]], np.uint8), ["a"], None)
    assert corrupted(kind, severity, base).sample(0).ravel().tolist() == wanted


def test_names_and_content_tell_kind_and_severity():
    assert corrupted("blur", 2).ids[0] == "blur2-a"
    assert len({corrupted(kind, level).content() for kind in CORRUPTIONS for level in (1, 2)}) == 2 * len(CORRUPTIONS)


def test_a_split_of_corrupted_images_is_labelled():
    digits = {"source": "sklearn:digits"}
    shifted = {"name": "noise", "source": "corrupted:noise", "arguments": {"severity": 1}, "select": {"stop": 3}}
    data = DataConfig.model_validate({"in_dist": {"fit": digits, "test": digits}, "shifted": [shifted]})
    split = open_splits(data, preprocessing=PreprocessingConfig(), num_classes=10, seed=0)["shifted.noise"]
    assert [split[place].label for place in range(len(split))] == [0, 1, 2]


BAD = {
    "kind": ("fog", 3, BASE, "no corruption 'fog': wanted one of blur"),
    "severity": ("blur", 6, BASE, "wanted a severity of 1 to 5"),
    "no images": ("blur", 3, None, "name it in data.shifted"),
}


@pytest.mark.parametrize(("kind", "severity", "base", "message"), BAD.values(), ids=BAD)
def test_refused(kind, severity, base, message):
    with pytest.raises(DataError, match=message):
        open_source(f"corrupted:{kind}", {"severity": severity}, base=base)


ROWS, COLUMNS = np.mgrid[:24, :20]
SMOOTH = np.clip(np.stack([8 * ROWS, 250 - 8 * ROWS, 9 * COLUMNS], axis=2), 0, 255).astype(np.uint8)


FORMS = {"colour": SMOOTH, "grey": SMOOTH[:, :, :1]}


def given(images: list) -> ArraySource:
    return ArraySource(np.stack(images), [f"i{place}" for place in range(len(images))], np.arange(len(images)))


@pytest.mark.parametrize("image", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("kind", SHIFTS)
def test_a_shifted_image_is_an_image_and_the_same_every_time(kind: str, image: np.ndarray) -> None:
    made = [ShiftedImages(kind, 3, given([image]), np.array([0])).sample(0) for _ in range(2)]
    assert (made[0].shape, made[0].dtype) == (image.shape, np.uint8)
    np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("kind", SHIFTS)
def test_a_shift_grows_with_its_severity(kind: str) -> None:
    sources = [ShiftedImages(kind, severity, given([SMOOTH] * 20), np.arange(20)) for severity in SEVERITIES]
    moved = [np.mean([np.abs(source.sample(place) - 1.0 * SMOOTH).mean() for place in range(20)]) for source in sources]
    assert 0 < moved[0] < moved[1] < moved[2]


def test_ids_and_labels_are_those_of_the_places() -> None:
    source = ShiftedImages("jpeg", 3, given([SMOOTH] * 3), np.array([2, 0]))
    assert list(source.ids) == ["jpeg3-i2", "jpeg3-i0"]
    assert source.labels.tolist() == [2, 0]


def test_the_gamma_is_that_of_its_definition() -> None:
    wanted = np.round(255 * (SMOOTH / 255) ** 2.5)
    np.testing.assert_array_equal(ShiftedImages("darker", 3, given([SMOOTH]), np.array([0])).sample(0), wanted)


BLACK, WHITE = (np.full((40, 30, 1), value, dtype=np.uint8) for value in (0, 255))


@pytest.mark.parametrize("kind", ["glare", "stripes"])
def test_light_is_laid_over_what_is_black_and_not_over_what_is_white(kind: str) -> None:
    source = ShiftedImages(kind, 5, given([BLACK, WHITE]), np.array([0, 1]))
    assert 0.5 * 255 < source.sample(0).max() <= 0.9 * 255 + 1
    assert source.sample(0).min() < 0.5 * source.sample(0).max()
    np.testing.assert_array_equal(source.sample(1), WHITE)


def test_a_shadow_has_two_sides() -> None:
    dark = ShiftedImages("shadow", 5, given([WHITE] * 40), np.arange(40))
    values = np.concatenate([dark.sample(place).ravel() for place in range(40)])
    assert np.isin(values, [38, 39, 254, 255]).mean() > 0.6, "0.15 of the light, or all of it, but for the soft edge"


def test_a_grey_image_has_no_saturation() -> None:
    grey = FORMS["grey"]
    np.testing.assert_array_equal(ShiftedImages("saturation", 5, given([grey]), np.array([0])).sample(0), grey)


def test_larger_pixels_are_those_of_pillow() -> None:
    small = Image.fromarray(SMOOTH[:, :, 0]).resize((12, 15), Image.Resampling.BOX)
    wanted = np.asarray(small.resize((20, 24), Image.Resampling.NEAREST))
    found = ShiftedImages("pixelated", 3, given([SMOOTH]), np.array([0])).sample(0)
    np.testing.assert_array_equal(found[:, :, 0], wanted)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(DataError, match="jpeg is for images"):
        ShiftedImages("jpeg", 1, given([np.zeros(4)]), np.array([0])).sample(0)
