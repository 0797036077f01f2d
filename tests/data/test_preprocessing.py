"""Preprocessing against values worked out by hand."""

import numpy as np
import pytest
import torch
from PIL import Image

from gradscore.data import Preprocessing, PreprocessingConfig, preprocessing
from gradscore.errors import ConfigError, DataError, MissingExtraError

GREY = np.arange(24, dtype=np.uint8).reshape(4, 6, 1) * 10
COLOUR = np.concatenate([GREY, 255 - GREY, GREY // 2], axis=2)


def make(**settings: object) -> Preprocessing:
    return Preprocessing(PreprocessingConfig.model_validate(settings))


def test_pixels_become_fractions_in_channel_order() -> None:
    image = make()(COLOUR)
    assert image.dtype == torch.float32
    np.testing.assert_allclose(image.numpy(), COLOUR.transpose(2, 0, 1) / 255, rtol=1e-6)


def test_torchvision_is_imported_when_an_image_is_first_resized(monkeypatch) -> None:
    def imported() -> None:
        raise MissingExtraError("torchvision cannot be imported")

    monkeypatch.setattr(preprocessing, "import_torchvision", imported)
    assert make(mean=[0], std=[1])(GREY).shape == (1, 4, 6)
    resized = make(resize=2)
    with pytest.raises(MissingExtraError, match="torchvision"):
        resized(GREY)


SHAPES = {
    "shorter side": ({"resize": 2}, GREY, (1, 2, 3)),
    "both sides": ({"resize": [5, 7]}, GREY, (1, 5, 7)),
    "crop": ({"crop": [2, 4]}, GREY, (1, 2, 4)),
    "resize, then crop": ({"resize": 8, "crop": 6}, GREY, (1, 6, 6)),
    "grey to colour": ({"channels": 3}, GREY, (3, 4, 6)),
    "colour to grey": ({"channels": 1}, COLOUR, (1, 4, 6)),
    "weights": ({"weights": "ResNet18_Weights.IMAGENET1K_V1"}, COLOUR, (3, 224, 224)),
    "weights take grey images": ({"weights": "ResNet18_Weights.IMAGENET1K_V1"}, GREY, (3, 224, 224)),
}


@pytest.mark.parametrize(("settings", "pixels", "shape"), SHAPES.values(), ids=SHAPES)
def test_shape(settings: dict, pixels: np.ndarray, shape: tuple[int, ...]) -> None:
    assert make(**settings)(pixels).shape == shape


def test_crop_is_central() -> None:
    np.testing.assert_allclose(make(crop=2)(GREY)[0] * 255, [[80, 90], [140, 150]], rtol=1e-6)


def test_a_constant_image_stays_constant_when_resized() -> None:
    assert torch.equal(make(resize=9)(np.full((4, 6, 3), 51, dtype=np.uint8)), torch.full((3, 9, 13), 0.2))


def test_grey_is_that_of_pillow() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    np.testing.assert_array_equal(make(channels=1)(colours)[0] * 255, np.asarray(Image.fromarray(colours).convert("L")))


def test_grey_that_is_stored_as_colours_stays_as_it_is() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    assert torch.equal(make(channels=1)(levels.repeat(3, axis=2)), make(channels=1)(levels))


@pytest.mark.parametrize("channels", [1, 3])
def test_two_or_four_channels_are_neither_grey_nor_colours(channels: int) -> None:
    with pytest.raises(DataError, match="has 4 channels, wanted 1 or 3"):
        make(channels=channels)(np.zeros((2, 2, 4), dtype=np.uint8))


NORMALISATIONS = {
    "one value for all channels": ([0.5], [0.25], [-2, 2, 0.4]),
    "one number for all channels": (0, 1, [0, 1, 0.6]),
    "one value per channel": ([0.0, 1.0, 0.5], [1.0, 2.0, 0.1], [0, 0, 1]),
}


@pytest.mark.parametrize(("mean", "std", "wanted"), NORMALISATIONS.values(), ids=NORMALISATIONS)
def test_normalisation(mean: float | list[float], std: float | list[float], wanted: list[float]) -> None:
    pixels = np.array([[[0, 255, 153]]], dtype=np.uint8)
    assert make(mean=mean, std=std)(pixels).flatten().tolist() == pytest.approx(wanted, abs=1e-6)


def test_weights_normalise_like_their_transforms() -> None:
    image = make(weights="ResNet18_Weights.IMAGENET1K_V1")(np.full((300, 300, 3), 255, dtype=np.uint8))
    wanted = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert image.amax((1, 2)).tolist() == pytest.approx(wanted, rel=1e-5)
    assert image.amin((1, 2)).tolist() == pytest.approx(wanted, rel=1e-5)


def test_a_single_number_normalises_numbers_as_well() -> None:
    found = make(mean=1, std=[2, 4]).model_input(np.array([3.0, 9.0]))
    assert found.tolist() == [1.0, 2.0]


UNFIT = {
    "whole numbers": ({"mean": 0.5, "std": 0.2}, np.arange(4), "preprocessing.mean is for images and floats"),
    "pixels of four channels": ({"resize": 8}, np.ones((8, 8, 4), np.uint8), "1 or 3 channels, .* uint8 of shape"),
    "an image of floats": (
        {"resize": 8},
        np.ones((8, 8, 3), np.float32),
        "8 bits with 1 or 3 channels, .*: give such images, or",
    ),
}


@pytest.mark.parametrize(("settings", "values", "said"), UNFIT.values(), ids=UNFIT)
def test_samples_that_settings_do_not_fit(settings: dict, values: np.ndarray, said: str) -> None:
    with pytest.raises(DataError, match=said):
        make(**settings).model_input(values)


def test_mean_of_another_number_of_channels() -> None:
    with pytest.raises(DataError, match=r"mean has 3 values and the image 1 channels; set preprocessing\.channels"):
        make(mean=[0.5] * 3, std=[0.5] * 3)(GREY)


def test_channels_that_files_of_images_do_not_have_say_what_works() -> None:
    works = r"arrays of floats \(N, C, H, W\) in an npz: source"
    with pytest.raises(DataError, match=rf"mean has 4 values and the image 3 channels; .*{works}"):
        make(mean=[0.5] * 4, std=[0.5] * 4)(COLOUR)
    with pytest.raises(ValueError, match=rf"wanted 1 or 3, got 4; .*{works}"):
        make(channels=4)
    planes = np.ones((4, 2, 2), np.float32)
    assert make(mean=[1, 2, 3, 4], std=[2] * 4).model_input(planes)[:, 0, 0].tolist() == [0, -0.5, -1, -1.5]


def test_unknown_weights() -> None:
    with pytest.raises(ConfigError, match="torchvision has no weights 'imagenet'; wanted a name like"):
        make(weights="imagenet")
