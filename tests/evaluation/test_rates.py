"""Intervals of the FPR95s against rates that are known, and of the Brier score."""

import numpy as np
import pytest

from gradscore.evaluation.calibration import brier, brier_interval
from gradscore.evaluation.metrics import METRICS
from gradscore.evaluation.rates import ENOUGH, RATES, rate_bounds


def sample(seed, positives=60, negatives=500, shift=2.0):
    generator = np.random.default_rng(seed)
    truth = np.arange(positives + negatives) < positives
    return generator.normal(size=len(truth)) + shift * truth, truth


def test_both_conventions_hold_their_rate():
    scores, truth = sample(0)
    bounds = rate_bounds(scores, truth)
    assert list(bounds) == list(RATES)
    assert all(0 <= low < METRICS[name](scores, truth) < high <= 1 for name, (low, high) in bounds.items())


def test_a_worked_example():
    """Of 100 positives, 1 to 10 lie below the true threshold with 95 %; Wilson's interval of 50 is 0.404-0.596."""
    positives, negatives = np.arange(100.0), np.arange(-45.0, 55.0)
    low, high = rate_bounds(np.r_[positives, negatives], np.arange(200) < 100)["fpr95_ood_positive"]
    # At 5, 0 and 10: 50, 55 and 45 negatives.
    assert low == pytest.approx(0.5 - np.hypot(0.5 - 0.403832, 0.05), abs=1e-6)
    assert high == pytest.approx(0.5 + np.hypot(0.596168 - 0.5, 0.05), abs=1e-6)


@pytest.mark.parametrize("name", RATES)
def test_intervals_cover_about_as_often_as_they_say(name):
    true = METRICS[name](*sample(10**6, 500_000, 500_000))
    bounds = [rate_bounds(*sample(seed, positives=300))[name] for seed in range(300)]
    assert np.mean([low <= true <= high for low, high in bounds]) == pytest.approx(0.95, abs=0.04)


def test_intervals_cover_where_scores_are_tied():
    """The threshold of 95 % lies on a step, and moves the rate by a whole step from set to set."""

    def tied(seed, positives, negatives):
        scores, truth = sample(seed, positives, negatives, shift=2.35)
        return np.round(2 * scores) / 2, truth

    true = METRICS["fpr95_ood_positive"](*tied(10**6, 500_000, 500_000))
    bounds = [rate_bounds(*tied(seed, 300, 1000))["fpr95_ood_positive"] for seed in range(200)]
    assert np.mean([low <= true <= high for low, high in bounds]) > 0.93


def test_a_rate_of_zero_is_not_certain():
    low, high = rate_bounds(np.r_[np.ones(30), np.zeros(100)], np.arange(130) < 30)["fpr95_id_positive"]
    assert (low, high > 0.05) == (0.0, True)


LIMITS = {"positives": (ENOUGH - 1, 100), "negatives": (100, ENOUGH - 1), "no positives": (0, 100)}


@pytest.mark.parametrize("sizes", LIMITS.values(), ids=LIMITS)
def test_too_few_samples_of_a_class_have_no_interval(sizes):
    assert rate_bounds(*sample(0, *sizes)) == {}


def test_the_interval_of_the_brier_score_is_that_of_a_mean():
    generator = np.random.default_rng(2)
    p = generator.random(200)
    truth = generator.random(200) < p
    low, high = brier_interval(p, truth)
    assert (low + high) / 2 == pytest.approx(brier(p, truth))
    assert high - low == pytest.approx(2 * 1.959964 * np.std((p - truth) ** 2, ddof=1) / np.sqrt(200), rel=1e-6)


def test_the_interval_of_the_brier_score_stays_inside_its_range():
    assert brier_interval([0.0, 0.0, 0.9], [False, False, False])[0] == 0.0
    assert brier_interval([0.1], [False]) is None


CONSTANT = {
    "two samples": ([0.2, 0.8], [False, True]),
    "never wrong": ([0.0, 1.0, 0.0], [False, True, False]),
    "alike": ([0.3] * 50, [False] * 50),
}


@pytest.mark.parametrize(("p", "truth"), CONSTANT.values(), ids=CONSTANT)
def test_a_brier_score_of_differences_that_do_not_vary_has_no_interval(p: list[float], truth: list[bool]) -> None:
    assert brier_interval(p, truth) is None
