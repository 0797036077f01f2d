"""Augmentations of batches: against NumPy and Pillow, and what they refuse."""

import numpy as np
import pytest
import torch
from PIL import Image

from gradscore.data import AUGMENTATIONS, augmentation_name, open_augmentations
from gradscore.errors import ConfigError, DataError, ModelError
from gradscore.models import trusting_code

IMAGES = torch.randn(3, 2, 6, 8, generator=torch.Generator().manual_seed(0))


def moved(images, right, down):
    """With `np.pad` on all sides, and another window of it."""
    padded = np.pad(images, ((0, 0), (0, 0), (5, 5), (5, 5)), mode="reflect")
    return padded[:, :, 5 - down : 11 - down, 5 - right : 13 - right]


def resized(images, border):
    """By Pillow, one channel at a time."""
    inner = images[:, :, border:-border, border:-border].reshape(-1, 6 - 2 * border, 8 - 2 * border)
    large = [np.asarray(Image.fromarray(channel).resize((8, 6), Image.Resampling.BILINEAR)) for channel in inner]
    return np.stack(large).reshape(images.shape)


TRUTH = {
    "mirror": lambda images: images[..., ::-1],
    "shift:1,0": lambda images: moved(images, 1, 0),
    "shift:-2,0": lambda images: moved(images, -2, 0),
    "shift:0,3": lambda images: moved(images, 0, 3),
    "shift:2,-5": lambda images: moved(images, 2, -5),
    "shift:0,0": lambda images: images,
    "crop:1": lambda images: resized(images, 1),
    "crop:2": lambda images: resized(images, 2),
}


@pytest.mark.parametrize(("name", "truth"), TRUTH.items(), ids=TRUTH)
def test_augmentations(name, truth):
    (augmentation,) = open_augmentations([name])
    np.testing.assert_allclose(augmentation(IMAGES), truth(IMAGES.numpy()), rtol=0, atol=1e-5)
    assert augmentation.name == name


def test_every_augmentation_is_tested():
    assert {name.partition(":")[0] for name in TRUTH} == set(AUGMENTATIONS)


BAD = {
    "unknown": ("mirrored", "features.augmentations.0: no augmentation 'mirrored'; did you mean 'mirror'?"),
    "too much": ("mirror:2", "'mirror:2': wanted nothing after the name; write mirror"),
    "one number": ("shift:3", "wanted 2 whole numbers of pixels, got '3'; write shift:RIGHT,DOWN"),
    "halves": ("crop:1.5", "wanted 1 whole number of pixels, got '1.5'; write crop:BORDER"),
    "nothing cropped": ("crop:0", "wanted one pixel or more"),
}


@pytest.mark.parametrize(("name", "message"), BAD.values(), ids=BAD)
def test_augmentations_that_there_are_not(name, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        open_augmentations([name])


UNFIT = {
    "out of sight": ("shift:8,0", IMAGES, "'shift:8,0' moves images of 6 x 8 pixels out of sight"),
    "nothing left": ("crop:3", IMAGES, "'crop:3' leaves nothing of images of 6 x 8 pixels"),
    "mirrored rows": (
        "mirror",
        torch.zeros(3, 5),
        "'mirror' is an augmentation of images .N, C, H, W., got samples of shape .5,.",
    ),
}


@pytest.mark.parametrize(("name", "images", "message"), UNFIT.values(), ids=UNFIT)
def test_samples_that_there_is_no_augmentation_of(name, images, message):
    (augmentation,) = open_augmentations([name])
    with pytest.raises(DataError, match=message):
        augmentation(images)


CODE = """
import torch


def halved(images):
    return images / 2


def written_into(images):
    return images.mul_(0)


def flat(images):
    return images.flatten(1)


def no_tensor(images):
    return None


def broken(images):
    return images @ images.flatten()


number = 3
"""


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "augmentations.py"
    file.write_text(CODE)
    return f"python:{file}"


@trusting_code()
def test_a_function_of_the_users(code):
    (augmentation,) = open_augmentations([f"{code}:halved"])
    assert torch.equal(augmentation(IMAGES), IMAGES / 2)
    assert augmentation.name == "python:augmentations.py:halved"


@trusting_code()
def test_a_function_that_writes_into_what_it_is_given(code):
    images = IMAGES.clone()
    assert not open_augmentations([f"{code}:written_into"])[0](images).any()
    assert torch.equal(images, IMAGES)


BAD_FUNCTIONS = {
    "another shape": (
        "flat",
        DataError,
        r"'python:augmentations.py:flat' must return floats .*\(3, 2, 6, 8\); got torch.float32",
    ),
    "nothing": ("no_tensor", DataError, "got NoneType"),
    "an error": (
        "broken",
        DataError,
        "'python:augmentations.py:broken' fails for samples of shape .2, 6, 8.: RuntimeError",
    ),
    "no function": ("number", ModelError, "has no function 'number'"),
}


@pytest.mark.parametrize(("name", "error", "message"), BAD_FUNCTIONS.values(), ids=BAD_FUNCTIONS)
@trusting_code()
def test_functions_that_cannot_be_used(code, name, error, message):
    with pytest.raises(error, match=message):
        open_augmentations([f"{code}:{name}"])[0](IMAGES)


def test_code_is_run_only_if_it_is_trusted(code, monkeypatch):
    monkeypatch.delenv("GRADSCORE_TRUST_CODE", raising=False)
    with pytest.raises(ModelError, match=r"features.augmentations.0 runs the code in .*augmentations.py; .* trust"):
        open_augmentations([f"{code}:halved"])


@trusting_code()
def test_functions_of_one_name(code, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "augmentations.py").write_text(CODE)
    with pytest.raises(
        ConfigError,
        match=r"features\.augmentations\.1: there is an augmentation 'python:augmentations.py:halved' already",
    ):
        open_augmentations([f"{code}:halved", f"python:{tmp_path}/more/augmentations.py:halved"])


def test_names_hold_no_folder():
    assert augmentation_name("python:/some/where/augmentations.py:halved") == "python:augmentations.py:halved"
    assert augmentation_name("python:package.augmentations:halved") == "python:package.augmentations:halved"
