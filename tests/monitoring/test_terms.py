"""What is looked at of a window, against NumPy and by hand; sums, which do not depend on where a call ends."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from gradscore.deployment import KnownSet, KnownSets
from gradscore.monitoring.accuracy import RARE, Means, Terms
from gradscore.monitoring.streams import FARTHEST, Scaled


def samples(count: int, seed: int = 0, *, classes: int = 4, features: int = 6) -> KnownSet:
    random = np.random.default_rng(seed)
    columns = {
        "score_wrong": random.normal(-2, 1, count),
        "confidence": random.normal(2, 1, count),
        "class": random.integers(0, classes, count).astype(float),
        **{f"feature {place}": random.normal(place, 1 + place, count) for place in range(features)},
    }
    return KnownSet(columns=columns, right=random.random(count) < 0.9, label=random.integers(0, classes, count))


CALM = samples(4000)
TERMS = Terms.of(KnownSets(calibration=CALM, classes=4))
WINDOW = samples(300, 1)
PLACES = {"distance": -4, "entropy": -3, "nuclear norm": -2, "features": -1}


def at(columns: dict, terms: Terms = TERMS) -> np.ndarray:
    return terms.at(terms.added(terms.none, columns).means)


def test_the_nuclear_norm_is_that_of_the_confidences_at_the_predicted_classes() -> None:
    predictions = np.zeros((300, 4))
    predictions[np.arange(300), WINDOW.columns["class"].astype(int)] = expit(WINDOW.columns["confidence"])
    wanted = np.linalg.norm(predictions, "nuc") / np.sqrt(4 * 300)
    assert at(WINDOW.columns)[PLACES["nuclear norm"]] == pytest.approx(wanted)


def test_collapse_onto_a_class_by_hand() -> None:
    """Two classes, half of the calibration samples each; of 100 samples, 90 are of one."""
    columns = {"confidence": np.full(1000, 3.0), "class": np.repeat([0.0, 1.0], 500)}
    calm = KnownSet(columns=columns, right=np.ones(1000, bool), label=np.repeat([0, 1], 500))
    terms = Terms.of(KnownSets(calibration=calm, classes=2))
    found = at({"confidence": np.full(100, 3.0), "class": np.repeat([0.0, 1.0], [90, 10])}, terms)
    noise = 0.9 * 0.1 / 100 + 0.5 * 0.5 / 1000
    assert found[-3] == pytest.approx(np.sqrt(2 * (0.4**2 - noise) / (0.5 + RARE / 2)))
    assert found[-2] == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.1) + 1 / 200)
    assert found[-1] == pytest.approx(expit(3.0) * (np.sqrt(0.9) + np.sqrt(0.1)) / np.sqrt(2))


def test_noise_is_no_movement() -> None:
    windows = np.array([at(samples(80, seed).columns) for seed in range(10, 210)])
    large = at(samples(200_000, 5).columns)
    for name in ("entropy", "nuclear norm"):
        assert windows[:, PLACES[name]].mean() == pytest.approx(large[PLACES[name]], abs=0.01)
    squared = windows[:, [PLACES["distance"], PLACES["features"]]] ** 2
    assert squared.mean(axis=0) == pytest.approx([0, 0], abs=0.02)  # without the correction 0.04 and 0.01


def test_the_features_count_from_the_mean_of_the_predicted_class() -> None:
    moved = {**WINDOW.columns, "feature 0": WINDOW.columns["feature 0"] + 3.0}
    before, after = at(WINDOW.columns), at(moved)
    assert after[PLACES["features"]] ** 2 - before[PLACES["features"]] ** 2 == pytest.approx(9 / 6, rel=0.25)
    np.testing.assert_array_equal(before[:-1], after[:-1])


def test_without_features_there_is_no_such_term() -> None:
    def without(each: KnownSet) -> KnownSet:
        return replace(each, columns={name: each.columns[name] for name in ("score_wrong", "confidence", "class")})

    terms = Terms.of(KnownSets(calibration=without(CALM), classes=4))
    np.testing.assert_allclose(at(without(WINDOW).columns, terms), at(WINDOW.columns)[:-1])


@pytest.mark.parametrize("cut", [0, 1, 150, 299, 300])
def test_sums_in_parts_are_the_same_bit_for_bit(cut: int) -> None:
    def part(places: slice) -> dict:
        return {name: values[places] for name, values in WINDOW.columns.items()}

    one = TERMS.added(TERMS.none, WINDOW.columns)
    two = TERMS.added(TERMS.added(TERMS.none, part(slice(cut))), part(slice(cut, None)))
    assert two.samples == one.samples == 300
    for name in ("values", "classes", "certain"):
        np.testing.assert_array_equal(getattr(two, name), getattr(one, name))


def test_a_mixture_is_what_its_samples_are_together() -> None:
    some, others = samples(100, 3), samples(300, 4)
    both = {name: np.concatenate([some.columns[name], others.columns[name]]) for name in some.columns}
    parts = [
        (share, TERMS.means(each, np.full(len(each.right), 1 / len(each.right))))
        for share, each in ((0.25, some), (0.75, others))
    ]
    np.testing.assert_allclose(TERMS.at(Means.mixed(parts)), at(both), rtol=1e-9)


KNOWN = {"confidence": np.array([0.0, 2.0]), "constant": np.array([5.0, 5.0])}


def test_values_are_standard_deviations_from_the_mean_and_a_constant_has_one() -> None:
    scale = Scaled.by(KNOWN, ["confidence", "constant"])
    other = {"confidence": np.array([1.0, 4.0]), "constant": np.array([5.0, 3.0])}
    np.testing.assert_array_equal(scale.of(other), [[0.0, 0.0], [3.0, -2.0]])


def test_what_is_far_counts_as_the_farthest() -> None:
    far = {"confidence": np.array([1e9, -1e9])}
    np.testing.assert_array_equal(Scaled.by(KNOWN, ["confidence"]).of(far), [[FARTHEST], [-FARTHEST]])
