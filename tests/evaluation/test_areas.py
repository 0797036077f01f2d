"""Intervals of areas: what samples move them by against weights that are changed, and what they promise."""

import numpy as np
import pytest

from gradscore.evaluation.areas import AREAS, ENOUGH, area_bounds, influences
from gradscore.evaluation.metrics import METRICS
from gradscore.evaluation.selective import augrc, aurc, eaurc

ONE_BY_ONE = {**METRICS, "aurc": aurc, "eaurc": eaurc, "augrc": augrc}


def sample(*, levels, seed=0, n=300, shift=1.0):
    generator = np.random.default_rng(seed)
    truth = generator.random(n) < 0.25
    return np.round(generator.normal(size=n) + shift * truth, levels), truth


def bounds_of(name, scores, truth, *, fixed_sizes=False):
    return area_bounds(scores, truth, names=[name], fixed_sizes=fixed_sizes).get(name)


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
    found = influences(name, scores, truth) * more / copies
    assert found == pytest.approx(np.array(moved), abs=0.1 * np.abs(moved).max())


@pytest.mark.parametrize("name", AREAS)
def test_an_interval_holds_its_area(name):
    scores, truth = sample(levels=1)
    low, high = bounds_of(name, scores, truth)
    assert 0 <= low < ONE_BY_ONE[name](scores, truth) < high <= 1


PERFECT = {"aupr_in": 1.0, "aupr_out": 1.0, "eaurc": 0.0}


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


def test_the_number_of_errors_is_part_of_what_is_uncertain():
    scores, truth = sample(levels=9, n=1000)
    fixed, drawn = (bounds_of("augrc", scores, truth, fixed_sizes=each) for each in (True, False))
    # AUGRC is (1 - AUROC) a (1 - a) + (1 - a)^2 / 2, and a varies by sqrt(0.25 * 0.75 / 1000) = 0.014.
    assert drawn[1] - drawn[0] > 1.2 * (fixed[1] - fixed[0])


@pytest.mark.parametrize("name", AREAS)
def test_intervals_cover_about_as_often_as_they_say(name):
    true = ONE_BY_ONE[name](*sample(levels=9, seed=99, n=200_000))
    bounds = [bounds_of(name, *sample(levels=9, seed=seed)) for seed in range(300)]
    assert np.mean([low <= true <= high for low, high in bounds]) == pytest.approx(0.95, abs=0.04)


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
