"""The accuracy to expect: exact without shift, learnt on shifts, and with an interval that holds it."""

import numpy as np
import pytest
from scipy.special import expit

from gradscore.deployment import Reference, WatchedSet
from gradscore.monitoring import ExpectedAccuracy


def samples(count: int, *, shift: float = 0.0, seed: int = 0) -> WatchedSet:
    """Samples whose log-odds of an error move by the shift, while the scores move by half of it."""
    random = np.random.default_rng([seed, round(100 * shift)])
    truth = random.normal(-3 + shift, 1.5, count)
    scores = truth - shift / 2
    columns = {"score_wrong": scores, "confidence": -scores + random.normal(0, 0.3, count)}
    return WatchedSet(columns=columns, right=random.random(count) > expit(truth))


SHIFTED = {
    f"{kind}:{strength}": samples(400, shift=0.5 * strength, seed=ord(kind))
    for kind in "abcdef"
    for strength in (1, 3, 5)
}
REFERENCE = Reference(calibration=samples(3000, seed=1), shifted=SHIFTED)


def test_without_shift_it_is_the_accuracy_of_the_calibration_samples() -> None:
    expected = ExpectedAccuracy.learnt(REFERENCE).of(REFERENCE.calibration.columns)
    assert expected.accuracy == pytest.approx(REFERENCE.calibration.right.mean())


@pytest.mark.parametrize("shift", [0.0, 0.8, 1.7, 2.4])
def test_it_is_near_the_truth_where_the_scores_are_not(shift: float) -> None:
    window = samples(4000, shift=shift, seed=9)
    expected = ExpectedAccuracy.learnt(REFERENCE).of(window.columns)
    by_scores = 1 - expit(window.columns["score_wrong"]).mean()
    assert expected.accuracy == pytest.approx(window.right.mean(), abs=0.05)
    assert abs(expected.accuracy - window.right.mean()) <= abs(by_scores - window.right.mean()) + 0.02


def test_intervals_hold_the_truth() -> None:
    learnt = ExpectedAccuracy.learnt(REFERENCE)
    windows = [samples(500, shift=shift, seed=seed) for seed in range(100, 125) for shift in (0.0, 0.7, 1.3, 2.2)]
    found = [learnt.of(window.columns) for window in windows]
    held = [each.low <= window.right.mean() <= each.high for each, window in zip(found, windows, strict=True)]
    assert np.mean(held) >= 0.9


def test_few_samples_say_nothing() -> None:
    expected = ExpectedAccuracy.learnt(REFERENCE).of(samples(49).columns)
    assert (expected.accuracy, expected.low, expected.high) == (None, None, None)


def test_one_kind_of_shift_says_little_of_others() -> None:
    one = Reference(calibration=REFERENCE.calibration, shifted={"a:5": SHIFTED["a:5"]})
    window = samples(1000, shift=2.5, seed=9)
    alone, all_of_them = (ExpectedAccuracy.learnt(each).of(window.columns) for each in (one, REFERENCE))
    assert alone.high - alone.low > 2 * (all_of_them.high - all_of_them.low)


EVERY = {"right": True, "wrong": False}


@pytest.mark.parametrize("value", EVERY.values(), ids=EVERY.keys())
def test_calibration_samples_that_are_all_alike(value: bool) -> None:
    calibration = WatchedSet(columns=REFERENCE.calibration.columns, right=np.full(3000, value))
    expected = ExpectedAccuracy.learnt(Reference(calibration=calibration, shifted=SHIFTED)).of(calibration.columns)
    assert expected.accuracy == pytest.approx(float(value), abs=0.021)


def test_a_constant_column_is_no_harm() -> None:
    def with_constant(each: WatchedSet) -> WatchedSet:
        return WatchedSet(columns={**each.columns, "gradient a": np.zeros(len(each.right))}, right=each.right)

    reference = Reference(
        calibration=with_constant(REFERENCE.calibration),
        shifted={name: with_constant(each) for name, each in SHIFTED.items()},
    )
    window = samples(500, shift=1.0, seed=3)
    assert ExpectedAccuracy.learnt(reference).of(with_constant(window).columns).accuracy == pytest.approx(
        ExpectedAccuracy.learnt(REFERENCE).of(window.columns).accuracy, abs=1e-6
    )
