"""The estimated accuracy: exact without shift, learnt on shifts, and with an interval that holds it."""

import numpy as np
import pytest
from scipy.special import expit

from gradscore.deployment import KnownSet, KnownSets
from gradscore.monitoring import EstimatedAccuracy
from gradscore.monitoring.accuracy import AccuracyEstimate

CLASSES = 5


def estimate_of(estimated: EstimatedAccuracy, columns: dict[str, np.ndarray]) -> AccuracyEstimate:
    return estimated.of_sums(estimated.terms.added(estimated.terms.none, columns))


def samples(count: int, *, shift: float = 0.0, seed: int = 0, shares: tuple[float, ...] | None = None) -> KnownSet:
    """Samples whose log-odds of an error move by the shift, while the scores move by half of it.

    Those that are wrong are predicted to be of one of the first two classes.
    """
    random = np.random.default_rng([seed, round(100 * shift)])
    truth = random.normal(-3 + shift, 1.5, count)
    scores = truth - shift / 2
    label, right = random.choice(CLASSES, count, p=shares), random.random(count) > expit(truth)
    columns = {
        "score_wrong": scores,
        "confidence": -scores + random.normal(0, 0.3, count),
        "class": np.where(right, label, random.integers(0, 2, count)).astype(float),
    }
    return KnownSet(columns=columns, right=right, label=label)


SHIFTED = {
    f"{kind}:{strength}": samples(400, shift=0.5 * strength, seed=ord(kind))
    for kind in "abcdef"
    for strength in (1, 3, 5)
}
KNOWN_SETS = KnownSets(calibration=samples(3000, seed=1), classes=CLASSES, shifted=SHIFTED)
LEARNT = EstimatedAccuracy.learnt(KNOWN_SETS)


def test_without_shift_it_is_the_accuracy_of_the_calibration_samples() -> None:
    assert estimate_of(LEARNT, KNOWN_SETS.calibration.columns).accuracy == pytest.approx(
        KNOWN_SETS.calibration.right.mean()
    )


def test_a_network_that_is_nearly_always_right_is_said_to_be() -> None:
    """Wrong once in a thousand samples: estimated lower, users would see an accuracy lost that is not."""
    random = np.random.default_rng(3)
    known = samples(4000, seed=2)
    sure = KnownSet(
        columns={**known.columns, "confidence": random.normal(6, 1, 4000)},
        right=np.arange(4000) % 800 != 0,
        label=known.label,
    )
    learnt = EstimatedAccuracy.learnt(KnownSets(calibration=sure, classes=CLASSES, shifted=SHIFTED))
    assert estimate_of(learnt, sure.columns).accuracy == pytest.approx(1 - 1 / 800, abs=1e-3)


@pytest.mark.parametrize("shift", [0.0, 0.8, 1.7, 2.4])
def test_it_is_near_the_truth_where_the_scores_are_not(shift: float) -> None:
    window = samples(4000, shift=shift, seed=9)
    estimate = estimate_of(LEARNT, window.columns)
    by_scores = 1 - expit(window.columns["score_wrong"]).mean()
    assert estimate.accuracy == pytest.approx(window.right.mean(), abs=0.05)
    assert abs(estimate.accuracy - window.right.mean()) <= abs(by_scores - window.right.mean()) + 0.02


def test_intervals_hold_the_truth() -> None:
    windows = [samples(500, shift=shift, seed=seed) for seed in range(100, 125) for shift in (0.0, 0.7, 1.3, 2.2)]
    found = [estimate_of(LEARNT, window.columns) for window in windows]
    held = [each.low <= window.right.mean() <= each.high for each, window in zip(found, windows, strict=True)]
    assert np.mean(held) >= 0.9


UNEVEN = {"one class": (0.6, 0.1, 0.1, 0.1, 0.1), "two": (0.05, 0.05, 0.05, 0.4, 0.45), "not one": (0.0, *[0.25] * 4)}


@pytest.mark.parametrize("shares", UNEVEN.values(), ids=UNEVEN.keys())
def test_classes_in_other_shares_are_no_shift(shares: tuple[float, ...]) -> None:
    window = samples(1000, seed=7, shares=shares)
    estimate = estimate_of(LEARNT, window.columns)
    assert estimate.low <= window.right.mean() <= estimate.high
    assert estimate.accuracy == pytest.approx(window.right.mean(), abs=0.03)


def honest(count: int, shift: float, seed: int) -> KnownSet:
    """Samples whose scores move as those of `samples`, and say what is true; their predictions are of all classes."""
    moved = samples(count, shift=shift, seed=seed)
    random = np.random.default_rng(seed)
    right = random.random(count) > expit(moved.columns["score_wrong"])
    predicted = np.where(right, moved.label, random.integers(0, CLASSES, count))
    return KnownSet(columns={**moved.columns, "class": predicted.astype(float)}, right=right, label=moved.label)


def test_predictions_of_few_classes_are_wrong_more_often_than_scores_say() -> None:
    even = {f"{kind}:{strength}": honest(400, 0.5 * strength, ord(kind)) for kind in "uvwxyz" for strength in (1, 3, 5)}
    both = KnownSets(calibration=KNOWN_SETS.calibration, classes=CLASSES, shifted=SHIFTED | even)
    learnt = EstimatedAccuracy.learnt(both)
    windows = [samples(4000, shift=2.2, seed=9), honest(4000, 2.2, 9)]
    found = [estimate_of(learnt, window.columns).accuracy for window in windows]
    true = [window.right.mean() for window in windows]
    assert true[1] - true[0] > 0.12  # with the same scores
    assert found == pytest.approx(true, abs=0.04)


def test_few_samples_say_nothing() -> None:
    estimate = estimate_of(LEARNT, samples(49).columns)
    assert (estimate.accuracy, estimate.low, estimate.high) == (None, None, None)


def test_small_windows_are_no_shift() -> None:
    found = [estimate_of(LEARNT, samples(60, seed=seed).columns).accuracy for seed in range(200, 260)]
    assert np.mean(found) == pytest.approx(KNOWN_SETS.calibration.right.mean(), abs=0.02)


def test_one_kind_of_shift_says_nothing_of_others() -> None:
    one = KnownSets(calibration=KNOWN_SETS.calibration, classes=CLASSES, shifted={"a:5": SHIFTED["a:5"]})
    estimate = estimate_of(EstimatedAccuracy.learnt(one), samples(1000, shift=2.5, seed=9).columns)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


EVERY = {"right": True, "wrong": False}


@pytest.mark.parametrize("value", EVERY.values(), ids=EVERY.keys())
def test_calibration_samples_that_are_all_alike(value: bool) -> None:
    known = KNOWN_SETS.calibration
    calibration = KnownSet(columns=known.columns, right=np.full(3000, value), label=known.label)
    known_sets = KnownSets(calibration=calibration, classes=CLASSES, shifted=SHIFTED)
    estimate = estimate_of(EstimatedAccuracy.learnt(known_sets), calibration.columns)
    assert estimate.accuracy == pytest.approx(float(value), abs=0.021)


def test_where_gradients_are_large_tells_shifts_apart_that_scores_do_not() -> None:
    """Of two shifts with the same scores one costs no accuracy; gradients at the input are larger there."""

    def seen(each: KnownSet, *, harmless: bool) -> KnownSet:
        random = np.random.default_rng(len(each.right))
        size, depth = random.normal(0, 1, (2, len(each.right)))
        columns = {**each.columns, "gradient a": size + depth + 3 * harmless, "gradient b": size - depth - 3 * harmless}
        return KnownSet(columns=columns, right=each.right | harmless, label=each.label)

    shifted = {f"{kind}:3": samples(400, shift=1.5, seed=ord(kind)) for kind in "abcdefgh"}
    known_sets = KnownSets(
        calibration=seen(KNOWN_SETS.calibration, harmless=False),
        classes=CLASSES,
        shifted={name: seen(each, harmless=name < "e") for name, each in shifted.items()},
    )
    learnt = EstimatedAccuracy.learnt(known_sets)
    for harmless in (True, False):
        window = seen(samples(2000, shift=1.5, seed=9), harmless=harmless)
        assert estimate_of(learnt, window.columns).accuracy == pytest.approx(window.right.mean(), abs=0.04)
        brighter = {name: each + 5 * name.startswith("gradient") for name, each in window.columns.items()}
        assert estimate_of(learnt, brighter).accuracy == pytest.approx(estimate_of(learnt, window.columns).accuracy)


def test_constant_columns_are_no_harm() -> None:
    def with_constant(each: KnownSet) -> KnownSet:
        constant = np.zeros(len(each.right))
        columns = {**each.columns, "gradient a": constant, "feature 0": constant}
        return KnownSet(columns=columns, right=each.right, label=each.label)

    known_sets = KnownSets(
        calibration=with_constant(KNOWN_SETS.calibration),
        classes=CLASSES,
        shifted={name: with_constant(each) for name, each in SHIFTED.items()},
    )
    window = samples(500, shift=1.0, seed=3)
    assert estimate_of(EstimatedAccuracy.learnt(known_sets), with_constant(window).columns).accuracy == pytest.approx(
        estimate_of(LEARNT, window.columns).accuracy, abs=1e-6
    )
