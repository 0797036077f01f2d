import io

import numpy as np
import pytest
from PIL import Image
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from gradscore.evaluation.nearness import NEIGHBOURS, chance, dimension, near_pairs, nearest, signature


def images(count, *, seed, side=32, channels=3):
    """Smooth random images: a few coarse cells, blown up."""
    cells = np.random.default_rng(seed).integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)
    made = [np.asarray(Image.fromarray(each).resize((side, side), Image.Resampling.BICUBIC)) for each in cells]
    return np.stack(made)[..., :channels]


def signatures(pixels):
    return np.stack([signature(each) for each in pixels])


def jpeg(pixels, quality):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def one_value(pixels):
    changed = pixels.copy()
    changed[7, 9, 0] ^= 255
    return changed


EDITS = {
    "jpeg 90": lambda pixels: jpeg(pixels, 90),
    "jpeg 50": lambda pixels: jpeg(pixels, 50),
    "one pixel to the right": lambda pixels: np.pad(pixels, ((0, 0), (1, 0), (0, 0)), mode="edge")[:, :-1],
    "one pixel down": lambda pixels: np.pad(pixels, ((1, 0), (0, 0), (0, 0)), mode="edge")[:-1],
    "one value": one_value,
    "half the size": lambda pixels: np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)),
}
FIT, NEW = images(500, seed=1), images(200, seed=2)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_copies_are_found_and_nothing_else(edit):
    edited = signatures([edit(each) for each in FIT[:30]])
    found = list(near_pairs(np.concatenate([signatures(NEW), edited]), signatures(FIT)))
    assert [(shown, known) for shown, known, _ in found] == [(200 + place, place) for place in range(30)]


def test_all_versions_of_an_image_are_found():
    fit = np.concatenate([FIT, [jpeg(FIT[0], quality) for quality in (40, 60, 80)]])
    found = list(near_pairs(signatures([jpeg(FIT[0], 70)]), signatures(fit)))
    assert {known for _, known, _ in found} == {0, 500, 501, 502}


def test_a_clean_set_has_none():
    assert list(near_pairs(signatures(images(3000, seed=3)), signatures(FIT))) == []


def test_images_of_one_colour_are_no_near_duplicates():
    """40 colours, two images of each and of faint content of their own: near as they are, unlike with colour out."""
    colours = np.random.default_rng(4).integers(20, 236, (40, 1, 1, 3))
    pixels = [
        (colours[place % 40] + (content.astype(np.float64) - 128) * 0.1).astype(np.uint8)
        for place, content in enumerate(images(80, seed=5))
    ]
    fit = np.concatenate([FIT, pixels[:40]])
    assert list(near_pairs(signatures(pixels[40:]), signatures(fit))) == []


def test_where_everything_is_the_same_nothing_is_near():
    plain = signatures(np.full((30, 32, 32, 3), 7, dtype=np.uint8))
    assert list(near_pairs(plain[:5], plain)) == []


def test_neighbours_against_all_distances():
    shown, known = signatures(NEW), signatures(FIT)
    wanted = cdist(shown.astype(np.float64), known.astype(np.float64))
    found = nearest(shown, known)
    np.testing.assert_allclose(found.distances, np.sort(wanted, axis=1)[:, :NEIGHBOURS], rtol=1e-5)
    np.testing.assert_array_equal(found.places[:, 0], wanted.argmin(axis=1))


def test_an_image_is_not_its_own_neighbour():
    known = signatures(FIT)
    wanted = cdist(known.astype(np.float64), known.astype(np.float64))
    np.fill_diagonal(wanted, np.inf)
    found = nearest(known, known, own=np.arange(len(known)))
    np.testing.assert_allclose(found.distances, np.sort(wanted, axis=1)[:, :NEIGHBOURS], rtol=1e-5)


def evenly(m):
    """Distances to the neighbours of 20,000 points that lie evenly in m dimensions without an edge."""
    points = np.random.default_rng(m).random((20000, m))
    return cKDTree(points, boxsize=1.0).query(points, k=NEIGHBOURS + 1)[0][:, 1:]


@pytest.mark.parametrize("m", [2, 3, 6])
def test_the_dimension_is_that_of_the_data(m):
    assert dimension(evenly(m)) == pytest.approx(m, rel=0.03)


@pytest.mark.parametrize("level", [0.3, 0.01])
@pytest.mark.parametrize("m", [2, 5])
def test_false_alarms_are_as_many_as_said(m, level):
    flagged = int((chance(evenly(m), m)[:, 0] < level).sum())
    expected = 20000 * level
    assert flagged == pytest.approx(expected, abs=6 * expected**0.5)


def test_chance_by_hand():
    distances = np.r_[1.0, np.full(8, 2.0), 2.0][None]
    assert chance(distances, 2.0)[0, 0] == pytest.approx(1 - 0.75**9, rel=1e-12)


GREYS = {"grey": 1, "two channels": 2}


@pytest.mark.parametrize("channels", GREYS.values(), ids=GREYS)
def test_signatures_are_means_of_cells(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 24, channels), dtype=np.uint8)
    wanted = pixels.mean(axis=2).reshape(8, 4, 8, 3).mean(axis=(1, 3))
    found = signature(pixels).reshape(8, 8, 3)
    np.testing.assert_allclose(found, np.repeat(wanted[..., None], 3, axis=2), atol=1.01)
