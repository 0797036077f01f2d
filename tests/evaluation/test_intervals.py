"""Intervals of areas, of FPR95s and of the Brier score: what they are made of, and how often they hold the truth."""

import numpy as np
import pytest

from gradscore.evaluation.intervals import AREAS, ENOUGH, RATES, brier_interval, metric_bounds
from gradscore.evaluation.metrics import METRICS, aurc, brier

ONE_BY_ONE = {**METRICS, "aurc": aurc}


def sample(*, levels, seed=0, n=300, shift=1.0):
    generator = np.random.default_rng(seed)
    truth = generator.random(n) < 0.25
    return np.round(generator.normal(size=n) + shift * truth, levels), truth


def bounds_of(name, scores, truth, *, fixed_sizes=False):
    return metric_bounds(scores, truth, areas=[name], fixed_sizes=fixed_sizes).get(name)


def rate_bounds(scores, truth):
    return metric_bounds(scores, truth, areas=[], fixed_sizes=True)


@pytest.mark.parametrize("levels", [9, 0], ids=["no ties", "ties"])
@pytest.mark.parametrize("name", AREAS)
def test_influences_are_what_more_weight_moves_an_area_by(name, levels):
    scores, truth = sample(levels=levels, n=40)
    order = np.argsort(scores, kind="stable")
    scores, truth = scores[order], truth[order]
    copies, more = 2000, 40
    repeated = [np.repeat(each, copies) for each in (scores, truth)]
    whole = ONE_BY_ONE[name](*repeated)
    moved = [
        ONE_BY_ONE[name](np.r_[repeated[0], np.repeat(score, more)], np.r_[repeated[1], np.repeat(kind, more)]) - whole
        for score, kind in zip(scores, truth, strict=True)
    ]
    # Copies of a sample are tied with it: with so few samples that alone moves what comes of their order.
    found = AREAS[name].influences(scores, truth) * more / copies
    assert found == pytest.approx(np.array(moved), abs=0.1 * np.abs(moved).max())


@pytest.mark.parametrize("name", AREAS)
def test_an_interval_holds_its_area(name):
    scores, truth = sample(levels=1)
    low, high = bounds_of(name, scores, truth)
    assert 0 <= low < ONE_BY_ONE[name](scores, truth) < high <= 1


PERFECT = {"aupr_in": 1.0, "aupr_out": 1.0}


@pytest.mark.parametrize(("name", "value"), PERFECT.items())
def test_perfect_separation_is_not_certainty(name, value):
    """One of 25 positives lost would not have been a surprise."""
    truth = np.arange(500) < 25
    low, high = bounds_of(name, truth.astype(float), truth)
    one_lost = ONE_BY_ONE[name](np.where(np.arange(500) == 0, -1.0, truth), truth)
    assert value in (low, high)
    assert low <= one_lost <= high


def test_too_few_samples_of_a_class_have_no_interval():
    scores = np.arange(200.0)
    assert bounds_of("aupr_in", scores, scores >= 201 - ENOUGH) is None
    assert bounds_of("aupr_in", scores, scores >= 200 - ENOUGH) is not None
    assert bounds_of("aupr_in", scores, scores >= ENOUGH - 1) is None
    assert rate_bounds(scores, scores >= 201 - ENOUGH) == {}


def test_the_number_of_errors_is_part_of_what_is_uncertain():
    scores, truth = sample(levels=9, n=1000)
    fixed, drawn = (bounds_of("aurc", scores, truth, fixed_sizes=each) for each in (True, False))
    assert drawn[1] - drawn[0] > 1.2 * (fixed[1] - fixed[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", AREAS)
def test_intervals_cover_about_as_often_as_they_say(name):
    true = ONE_BY_ONE[name](*sample(levels=9, seed=99, n=200_000))
    bounds = [bounds_of(name, *sample(levels=9, seed=seed)) for seed in range(300)]
    assert np.mean([low <= true <= high for low, high in bounds]) == pytest.approx(0.95, abs=0.04)


@pytest.mark.slow
def test_few_positives_that_rank_low_now_and_then():
    """The percentile bootstrap holds the true area in one of three such sets."""

    def drawn(seed, positives, negatives):
        generator = np.random.default_rng(seed)
        truth = np.arange(positives + negatives) < positives
        far = truth & (generator.random(len(truth)) > 0.02)
        return generator.normal(size=len(truth)) + 20.0 * far, truth

    true = METRICS["aupr_in"](*drawn(0, 25_000, 500_000))
    bounds = [bounds_of("aupr_in", *drawn(seed, 25, 500), fixed_sizes=True) for seed in range(1, 201)]
    assert np.mean([low <= true <= high for low, high in bounds]) > 0.93


def two_normals(seed, positives=60, negatives=500, shift=2.0):
    generator = np.random.default_rng(seed)
    truth = np.arange(positives + negatives) < positives
    return generator.normal(size=len(truth)) + shift * truth, truth


def test_both_conventions_hold_their_rate():
    scores, truth = two_normals(0)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", RATES)
def test_intervals_of_rates_cover_about_as_often_as_they_say(name):
    true = METRICS[name](*two_normals(10**6, 500_000, 500_000))
    bounds = [rate_bounds(*two_normals(seed, positives=300))[name] for seed in range(300)]
    assert np.mean([low <= true <= high for low, high in bounds]) == pytest.approx(0.95, abs=0.04)


@pytest.mark.slow
def test_intervals_cover_where_scores_are_tied():
    """The threshold of 95 % lies on a step, and moves the rate by a whole step from set to set."""

    def tied(seed, positives, negatives):
        scores, truth = two_normals(seed, positives, negatives, shift=2.35)
        return np.round(2 * scores) / 2, truth

    true = METRICS["fpr95_ood_positive"](*tied(10**6, 500_000, 500_000))
    bounds = [rate_bounds(*tied(seed, 300, 1000))["fpr95_ood_positive"] for seed in range(200)]
    assert np.mean([low <= true <= high for low, high in bounds]) > 0.93


def test_a_rate_of_zero_is_not_certain():
    low, high = rate_bounds(np.r_[np.ones(30), np.zeros(100)], np.arange(130) < 30)["fpr95_id_positive"]
    assert (low, high > 0.05) == (0.0, True)


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
