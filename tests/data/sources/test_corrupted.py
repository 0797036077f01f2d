import numpy as np
import pytest

from gradscore.data import open_images, open_split
from gradscore.data.settings import DatasetConfig, PreprocessingConfig
from gradscore.data.sources import ArraySource, open_source
from gradscore.data.sources.image_changes import CORRUPTIONS
from gradscore.data.sources.made import ShiftedImages
from gradscore.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 20, 10, 3), dtype=np.uint8)
BASE = ArraySource(IMAGES, list("abcd"), np.arange(4))


def corrupted(kind, severity=3, seed=0):
    return ShiftedImages(kind, severity, BASE, seed=seed)


def difference(source, index=0):
    return np.abs(source.image(index).astype(float) - IMAGES[index]).mean()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_shape_type_and_labels_stay(kind):
    source = corrupted(kind)
    assert (source.image(1).shape, source.image(1).dtype) == ((20, 10, 3), np.uint8)
    np.testing.assert_array_equal(source.labels, BASE.labels)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_more_severe_is_farther_from_the_image(kind):
    sizes = [difference(corrupted(kind, severity)) for severity in range(1, 6)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_an_image_depends_on_place_and_seed_alone(kind):
    np.testing.assert_array_equal(corrupted(kind).image(2), corrupted(kind).image(2))


def test_brightness_by_hand():
    source = ShiftedImages("brightness", 2, ArraySource(np.array([[[[10], [230]]]], np.uint8), ["a"], None), seed=0)
    assert source.image(0).ravel().tolist() == [50, 255]


def test_contrast_by_hand():
    """The mean is 100; at severity 5 a fifth of the distance from it is left."""
    source = ShiftedImages("contrast", 5, ArraySource(np.array([[[[50], [150]]]], np.uint8), ["a"], None), seed=0)
    assert source.image(0).ravel().tolist() == [90, 110]


def test_names_and_content_tell_kind_and_severity():
    assert corrupted("blur", 2).ids[0] == "blur2-a"
    assert len({corrupted(kind, level).content() for kind in CORRUPTIONS for level in (1, 2)}) == 2 * len(CORRUPTIONS)


def test_a_split_of_corrupted_images_is_labelled():
    spec = DatasetConfig(source="corrupted:noise", arguments={"severity": 1}, select={"stop": 3})
    options = {"preprocessing": PreprocessingConfig(), "num_classes": 4, "seed": 0}
    split = open_split(spec, labelled=True, made_of=BASE, **options)
    assert [split[place].label for place in range(len(split))] == [0, 1, 2]


BAD = {
    "kind": ("fog", 3, BASE, "no corruption 'fog': wanted one of blur"),
    "severity": ("blur", 6, BASE, "wanted a severity of 1 to 5"),
    "no number": ("blur", "high", BASE, "got 'high'"),
    "no images": ("blur", 3, None, "name it in data.shifted"),
}


@pytest.mark.parametrize(("kind", "severity", "base", "message"), BAD.values(), ids=BAD)
def test_refused(kind, severity, base, message):
    with pytest.raises(DataError, match=message):
        open_source(f"corrupted:{kind}", {"severity": severity}, base=base)


def test_nothing_to_corrupt():
    with pytest.raises(DataError, match=r"data\.shifted"):
        open_images(DatasetConfig(source="corrupted:blur"), num_classes=None, made_of=None, seed=0)
