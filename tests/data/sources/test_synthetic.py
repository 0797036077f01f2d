"""Synthetic images: what each kind must keep and must change, and that nothing else than seed and position counts."""

import numpy as np
import pytest

from gradscore.data import ArraySource, open_source
from gradscore.data.sources.synthetic import SYNTHETIC, kinds_of
from gradscore.errors import ConfigError, DataError, GradscoreError

SHAPES = {"grey, odd sides": (9, 7, 7, 1), "colour": (9, 8, 8, 3)}


KINDS = kinds_of(images=True)
LABELS = np.array([0, 1, 2] * 3)


def make_base(shape: tuple[int, ...] = (9, 8, 8, 3), labels: np.ndarray | None = LABELS) -> ArraySource:
    images = np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)
    return ArraySource(images, [f"image{number}" for number in range(len(images))], labels)


def make_images(kind: str, base: ArraySource, seed: int = 0) -> np.ndarray:
    source = open_source(f"synthetic:{kind}", base=base, seed=seed)
    return np.stack([source.sample(place) for place in range(len(source.ids))])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_image_changes_and_keeps_its_shape(kind: str, shape: tuple[int, ...]) -> None:
    base = make_base(shape)
    made = make_images(kind, base)
    assert made.shape == shape
    assert made.dtype == np.uint8
    assert (made != base.values).any((1, 2, 3)).all()
    assert open_source(f"synthetic:{kind}", base=base, seed=0).labels is None
    assert open_source(f"synthetic:{kind}", base=base, seed=0).ids[2] == f"{kind}-image2"


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_depends_on_seed_and_position_alone(kind: str) -> None:
    base = make_base()
    before = base.values.copy()
    source, other = (open_source(f"synthetic:{kind}", base=base, seed=seed) for seed in (3, 4))
    backwards = np.stack([source.sample(place) for place in reversed(range(9))])[::-1]
    np.testing.assert_array_equal(make_images(kind, base, 3), backwards)
    np.testing.assert_array_equal(base.values, before)
    assert source.content() != other.content()
    assert (make_images(kind, base, 4) != backwards).any() == draws(kind, base.values[0])


def draws(kind: str, image: np.ndarray) -> bool:
    """Whether a kind takes random numbers, be it for the sample beside."""
    numbers = np.random.default_rng(0)
    before = numbers.bit_generator.state
    SYNTHETIC[kind].change(image, image, numbers)
    return SYNTHETIC[kind].beside is not None or numbers.bit_generator.state != before


@pytest.mark.parametrize("kind", ["permuted_pixels", "jigsaw", "rotate90"])
def test_pixels_only_move(kind: str) -> None:
    base = make_base()
    for made, image in zip(make_images(kind, base), base.values, strict=True):
        np.testing.assert_array_equal(np.unique(made.reshape(-1, 3), axis=0), np.unique(image.reshape(-1, 3), axis=0))


def test_noise_has_the_moments_it_names() -> None:
    base = make_base((4, 100, 100, 3), labels=None)
    uniform = make_images("uniform_noise", base).astype(float)
    normal = make_images("gaussian_noise", base).astype(float)
    assert uniform.mean() == pytest.approx(127.5, abs=1)
    assert uniform.std() == pytest.approx(np.sqrt((256**2 - 1) / 12), abs=1)
    assert normal.mean() == pytest.approx(127.5, abs=1)
    assert np.percentile(normal, 84.134) - np.percentile(normal, 50) == pytest.approx(64, abs=2)


def test_blur_smooths() -> None:
    base = make_base()
    roughness = [
        np.abs(np.diff(images.astype(float), axis=1)).mean() for images in (make_images("blur", base), base.values)
    ]
    assert roughness[0] < roughness[1] / 2


def make_classes(levels: dict[int, int]) -> ArraySource:
    """Images of class k are all of one level."""
    labels = np.repeat(list(levels), 4)
    images = np.repeat(np.array(list(levels.values()), dtype=np.uint8), 4)[:, None, None, None]
    return ArraySource(np.broadcast_to(images, (len(labels), 6, 6, 1)).copy(), [str(n) for n in labels], labels)


def test_mixup_is_the_mean_of_two_classes() -> None:
    made = make_images("mixup", make_classes({0: 0, 1: 100, 2: 240}))
    assert set(np.unique(made)) <= {50, 120, 170}
    assert len(np.unique(made)) > 1


def test_cutmix_is_half_of_each_of_two_classes() -> None:
    made = make_images("cutmix", make_classes({0: 0, 1: 100, 2: 240}))
    assert [np.unique(image, return_counts=True)[1].tolist() for image in made] == [[18, 18]] * 12


BAD_SETS = {
    "unknown kind": ("fog", make_base(), ConfigError, "no synthetic set 'fog'; valid: blur, cutmix"),
    "no images to make them of": ("blur", None, DataError, "only OOD sets can be synthetic"),
    **{
        f"{name} of one class": (name, make_base(labels=LABELS * 0), DataError, "mixes two classes")
        for name, kind in SYNTHETIC.items()
        if kind.beside == "other class"
    },
    "no labels": ("mixup", make_base(labels=None), DataError, "mixes two classes"),
}


@pytest.mark.parametrize(("kind", "base", "error", "message"), BAD_SETS.values(), ids=BAD_SETS)
def test_unusable_set(kind: str, base: ArraySource | None, error: type[GradscoreError], message: str) -> None:
    with pytest.raises(error, match=message):
        open_source(f"synthetic:{kind}", base=base, seed=0)


class OfManySizes:
    """Photographs: class 0 is small and grey, class 1 large and in colour, both plain."""

    ids = ("small", "large")
    labels = np.array([0, 1])
    images = (np.full((6, 4, 1), 100, np.uint8), np.full((9, 12, 3), [200, 100, 50], np.uint8))

    def sample(self, index: int) -> np.ndarray:
        return self.images[index]

    def content(self) -> str:
        return "many sizes"


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_many_sizes_keep_theirs(kind: str) -> None:
    made = [open_source(f"synthetic:{kind}", base=OfManySizes(), seed=0).sample(place) for place in range(2)]
    assert [sorted(each.shape) for each in made] == [sorted(each.shape) for each in OfManySizes.images]
    assert {each.dtype for each in made} == {np.dtype(np.uint8)}


def test_what_is_beside_is_brought_to_the_size_and_the_channels() -> None:
    """The grey of a colour is 0.299 red, 0.587 green, 0.114 blue: 124 of (200, 100, 50)."""
    small, large = (open_source("synthetic:mixup", base=OfManySizes(), seed=0).sample(place) for place in range(2))
    np.testing.assert_array_equal(small, np.full((6, 4, 1), 112))
    np.testing.assert_array_equal(large, np.full((9, 12, 3), [150, 100, 75]))


ODD = {"one pixel": (3, 1, 1, 1), "a row": (3, 1, 9, 3), "tall": (3, 13, 5, 3)}


@pytest.mark.parametrize("shape", ODD.values(), ids=ODD)
@pytest.mark.parametrize("kind", ["strokes", "shapes", "patches", "gradients", "fractal_noise", "zoom", "shrink"])
def test_any_shape_will_do(kind: str, shape: tuple[int, ...]) -> None:
    made = make_images(kind, make_base(shape, labels=None))
    assert (made.shape, made.dtype) == (shape, np.uint8)


@pytest.mark.parametrize("kind", ["strokes", "shapes", "patches", "gradients", "fractal_noise"])
def test_drawings_do_not_depend_on_the_images(kind: str) -> None:
    """They are of one size and number; everything else comes from the seed."""
    base = make_base((6, 12, 12, 3), labels=None)
    black = ArraySource(np.zeros_like(base.values), base.ids, None)
    np.testing.assert_array_equal(make_images(kind, base), make_images(kind, black))


def test_the_place_of_a_kind_is_part_of_its_seed() -> None:
    """Another order would make other images of the same settings."""
    assert list(KINDS)[:15] == [
        *("blur", "cutmix", "gaussian_noise", "jigsaw", "mixup", "permuted_pixels", "rotate90", "uniform_noise"),
        *("strokes", "shapes", "patches", "gradients", "fractal_noise", "zoom", "shrink"),
    ]


def test_strokes_differ_from_the_ground_in_some_channel() -> None:
    """By 96 at least, where they cover pixels as a whole."""
    made = make_images("strokes", make_base((20, 32, 32, 3), labels=None)).astype(int)
    contrast = np.ptp(made, axis=(1, 2)).max(axis=1)
    assert (contrast >= 95).all()


def test_patches_are_a_grid_of_flat_colours() -> None:
    """At most four rows and columns, so that neighbours differ at three places at most."""
    made = make_images("patches", make_base((20, 16, 16, 3), labels=None)).astype(int)
    steps = [np.abs(np.diff(made, axis=axis)).max(axis=(3 - axis, 3)) > 0 for axis in (1, 2)]
    assert [each.sum(axis=1).max() for each in steps] == [3, 3]
    assert max(len(np.unique(image.reshape(-1, 3), axis=0)) for image in made) <= 16


def test_gradients_pass_evenly_between_two_colours() -> None:
    """Second differences are rounding alone."""
    made = make_images("gradients", make_base((20, 16, 16, 3), labels=None)).astype(int)
    assert max(np.abs(np.diff(made, 2, axis=axis)).max() for axis in (1, 2)) <= 2
    assert (np.ptp(made, axis=(1, 2)).max(axis=1) > 0).all()


def test_fractal_noise_has_more_of_low_frequencies() -> None:
    """Power at up to a sixteenth of a cycle per pixel against that above a quarter, image by image."""
    made = make_images("fractal_noise", make_base((20, 64, 64, 1), labels=None))[..., 0].astype(float)
    power = np.abs(np.fft.fft2(made - made.mean(axis=(1, 2), keepdims=True))) ** 2
    frequency = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.fftfreq(64)[None])
    low = power[:, (frequency > 0) & (frequency <= 1 / 16)].mean(axis=1)
    assert (low > 3 * power[:, frequency > 1 / 4].mean(axis=1)).all()


def test_zoom_of_flat_quarters_shows_fewer_of_them() -> None:
    """A third to a half of each side: what is not within the part is gone, and flat colours stay."""
    flat = np.full((4, 12, 12, 1), 77, dtype=np.uint8)
    np.testing.assert_array_equal(make_images("zoom", ArraySource(flat, list("abcd"), None)), flat)
    ramp = np.broadcast_to(np.arange(0, 240, 4, dtype=np.uint8)[None, None, :, None], (8, 60, 60, 1)).copy()
    widths = np.ptp(make_images("zoom", ArraySource(ramp, [str(n) for n in range(8)], None)).astype(int), axis=(1, 2))
    assert (widths >= 4 * (60 / 3 - 3)).all()
    assert (widths <= 4 * (60 / 2 + 2)).all()


def test_shrink_puts_the_whole_image_on_its_mean_colour() -> None:
    """Half black, half white: the ground is grey, and the small image holds both, a ninth to a quarter of the area."""
    image = np.zeros((8, 60, 60, 1), dtype=np.uint8)
    image[:, :, 30:] = 255
    made = make_images("shrink", ArraySource(image, [str(n) for n in range(8)], None))
    ground = (made == 128).mean(axis=(1, 2, 3))
    assert ((ground > 0.7) & (ground < 0.9)).all()
    assert {each.min() for each in made} == {0}
    assert {each.max() for each in made} == {255}
