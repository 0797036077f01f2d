"""What is looked at of a window, against NumPy and by hand; sums, which do not depend on where a call ends."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import expit

from gradscore.deployment import KnownSet, KnownSets
from gradscore.monitoring.accuracy import LITTLE, Sums, Terms
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
PLACES = {"right": 0, "confident": -3, "beyond": -2, "moved": -1}


def at(columns: dict, terms: Terms = TERMS) -> np.ndarray:
    return terms.at(terms.added(terms.none, columns).means)


def in_two_directions(moved: tuple[float, float], classes: np.ndarray, confident: np.ndarray) -> np.ndarray:
    """Terms of so many samples that none of it is noise; classes are as frequent, and differ in the first direction."""
    even = np.full(4, 0.25)
    terms = replace(
        TERMS,
        centres=np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0], [6.0, 0.0]]),
        directions=np.eye(2),
        usual=Sums(values=np.zeros(8), classes=even, confident=even, samples=np.inf),
    )
    return terms.at(Sums(values=np.r_[np.zeros(6), moved], classes=classes, confident=confident, samples=np.inf))


@pytest.mark.parametrize("seed", range(5))
def test_a_collapse_is_dealt_out_as_by_optimal_transport(seed: int) -> None:
    """As by COTT: labels come as often as ever, and what costs more than a threshold is wrong."""
    random = np.random.default_rng(seed)
    predicted, confident = random.choice(4, 400, p=(0.5, 0.35, 0.1, 0.05)), random.random(400) < 0.8
    others = np.where(confident, 0.02, 0.24)
    chances = others[:, None] + np.eye(4)[predicted] * (1 - 4 * others)[:, None]
    costs = 1 - chances[:, np.arange(400) % 4]
    rows, dealt = linear_sum_assignment(costs)
    shares = np.bincount(predicted, minlength=4) / 400, np.bincount(predicted[confident], minlength=4) / 400
    found = in_two_directions((0.0, 1e9), *shares)
    assert expit(found[PLACES["right"]]) == pytest.approx((costs[rows, dealt] < 0.5).mean())
    assert found[PLACES["confident"]] == pytest.approx(confident.mean())
    assert found[PLACES["beyond"]] == pytest.approx(np.maximum(shares[0] - 0.25, 0).sum())


def test_classes_in_other_shares_are_none() -> None:
    found = in_two_directions((0.0, 0.0), np.array([0.0, 0.1, 0.2, 0.7]), np.array([0.0, 0.05, 0.15, 0.6]))
    assert expit(found[PLACES["right"]]) == pytest.approx(0.8)
    assert found[[PLACES["beyond"], PLACES["moved"]]].tolist() == [0, 0]


def test_a_part_of_a_collapse_by_hand() -> None:
    """A movement by 3 between classes, and by 4 within: 9.3 / 25.3 of the new shares are those of classes."""
    found = in_two_directions((0.0, 4.0), np.array([0.25, 0.0, 0.0, 0.75]), np.array([0.2, 0.0, 0.0, 0.7]))
    explained = (3.75**2 - 2 * 3.75 * 1.5 + 1.5**2 + LITTLE) / ((4.5 - 2.25) ** 2 + 16 + LITTLE)
    there = 0.25 + 0.5 * explained
    assert expit(found[PLACES["right"]]) == pytest.approx(0.2 + there)
    assert found[PLACES["beyond"]] == pytest.approx(0.75 - there)
    assert found[PLACES["moved"]] == pytest.approx(np.sqrt(8))


def test_noise_is_no_movement() -> None:
    windows = np.array([at(samples(80, seed).columns) for seed in range(10, 210)])
    squared = windows[:, [PLACES["beyond"], PLACES["moved"]]] ** 2
    assert squared.mean(axis=0) == pytest.approx([0, 0], abs=0.005)  # without the correction 0.013 for the second


def test_features_count_from_the_mean_of_the_predicted_class() -> None:
    moved = {**WINDOW.columns, "feature 0": WINDOW.columns["feature 0"] + 3.0}
    before, after = at(WINDOW.columns), at(moved)
    assert after[PLACES["moved"]] ** 2 - before[PLACES["moved"]] ** 2 == pytest.approx(9 / 8, rel=0.25)
    np.testing.assert_array_equal(before[1:-2], after[1:-2])


def test_without_features_scores_alone_move() -> None:
    def without(each: KnownSet) -> KnownSet:
        return replace(each, columns={name: each.columns[name] for name in ("score_wrong", "confidence", "class")})

    terms = Terms.of(KnownSets(calibration=without(CALM), classes=4))
    np.testing.assert_allclose(at(without(WINDOW).columns, terms)[1:-2], at(WINDOW.columns)[1:-2])
    worse = {**without(WINDOW).columns, "confidence": WINDOW.columns["confidence"] - 2}
    assert at(worse, terms)[PLACES["moved"]] == pytest.approx(2 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("cut", [0, 1, 150, 299, 300])
def test_sums_in_parts_are_the_same_but_for_rounding_of_directions(cut: int) -> None:
    def part(places: slice) -> dict:
        return {name: values[places] for name, values in WINDOW.columns.items()}

    one = TERMS.added(TERMS.none, WINDOW.columns)
    two = TERMS.added(TERMS.added(TERMS.none, part(slice(cut))), part(slice(cut, None)))
    assert two.samples == one.samples == 300
    for name in ("classes", "confident"):
        np.testing.assert_array_equal(getattr(two, name), getattr(one, name))
    np.testing.assert_array_equal(two.values[:6], one.values[:6])
    np.testing.assert_allclose(two.values, one.values, rtol=1e-12)


def test_a_mixture_is_what_its_samples_are_together() -> None:
    some, others = samples(100, 3), samples(300, 4)
    both = {name: np.concatenate([some.columns[name], others.columns[name]]) for name in some.columns}
    parts = [
        (share, TERMS.means(each, np.full(len(each.right), 1 / len(each.right))))
        for share, each in ((0.25, some), (0.75, others))
    ]
    np.testing.assert_allclose(TERMS.at(Sums.mixed(parts)), at(both), rtol=1e-9)


KNOWN = {"confidence": np.array([0.0, 2.0]), "constant": np.array([5.0, 5.0])}


def test_values_are_standard_deviations_from_the_mean_and_a_constant_has_one() -> None:
    scale = Scaled.by(KNOWN, ["confidence", "constant"])
    other = {"confidence": np.array([1.0, 4.0]), "constant": np.array([5.0, 3.0])}
    np.testing.assert_array_equal(scale.of(other), [[0.0, 0.0], [3.0, -2.0]])


def test_what_is_far_counts_as_the_farthest() -> None:
    far = {"confidence": np.array([1e9, -1e9])}
    np.testing.assert_array_equal(Scaled.by(KNOWN, ["confidence"]).of(far), [[FARTHEST], [-FARTHEST]])
