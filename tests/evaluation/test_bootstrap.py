"""Intervals by resampling against resamples written out sample by sample, and against what they promise."""

import numpy as np
import pytest

from gradscore.evaluation import bootstrap
from gradscore.evaluation.bootstrap import ENOUGH, ENOUGH_FOR_QUANTILES, RANKING, SELECTIVE, Counts, ranking_bounds
from gradscore.evaluation.calibration import brier, brier_interval
from gradscore.evaluation.metrics import METRICS
from gradscore.evaluation.selective import augrc, aurc, eaurc

ONE_BY_ONE = {**METRICS, "aurc": aurc, "eaurc": eaurc, "augrc": augrc}
COUNTED = {**RANKING, **SELECTIVE}


def sample(*, levels, seed=0, n=300):
    generator = np.random.default_rng(seed)
    truth = generator.random(n) < 0.25
    return np.round(generator.normal(size=n) + truth, levels), truth


def bounds_of(scores, truth, name, *, fixed_sizes=True, seed=1, resamples=60):
    found = ranking_bounds(
        scores, truth, metrics={name: COUNTED[name]}, seed=seed, fixed_sizes=fixed_sizes, resamples=resamples
    )
    return found.get(name)


def written_out(scores, truth, *, fixed_sizes, seed, resamples):
    """The same resamples sample by sample: draws of distinct scores, positives apart from negatives."""
    generator = np.random.default_rng(seed)
    levels = np.unique(scores)
    counts = [np.array([((scores == level) & kind).sum() for level in levels]) for kind in (truth, ~truth)]
    if fixed_sizes:
        halves = [generator.multinomial(each.sum(), each / each.sum(), size=resamples) for each in counts]
    else:
        both = np.concatenate(counts)
        halves = np.split(generator.multinomial(both.sum(), both / both.sum(), size=resamples), 2, axis=1)
    for positives, negatives in zip(*halves, strict=True):
        drawn = np.r_[np.repeat(levels, positives), np.repeat(levels, negatives)]
        yield drawn, np.arange(len(drawn)) < positives.sum()


@pytest.mark.parametrize("fixed_sizes", [True, False], ids=["sizes fixed", "sizes drawn"])
@pytest.mark.parametrize("levels", [9, 1, 0], ids=["no ties", "some ties", "many ties"])
@pytest.mark.parametrize("name", COUNTED)
def test_bounds_equal_those_of_resamples_written_out(name, levels, fixed_sizes):
    scores, truth = sample(levels=levels)
    resamples = written_out(scores, truth, fixed_sizes=fixed_sizes, seed=1, resamples=60)
    values = [ONE_BY_ONE[name](*each) for each in resamples]
    bounds = bounds_of(scores, truth, name, fixed_sizes=fixed_sizes)
    assert bounds == pytest.approx(np.quantile(values, [0.025, 0.975]), rel=1e-10)


@pytest.mark.parametrize("name", COUNTED)
def test_drawing_neighbours_together_moves_bounds_by_little(name, monkeypatch):
    scores, truth = sample(levels=9, n=4000)
    apart = bounds_of(scores, truth, name, resamples=2000)
    monkeypatch.setattr(bootstrap, "MOST_GROUPS", 500)
    together = bounds_of(scores, truth, name, resamples=2000)
    assert together == pytest.approx(apart, abs=0.1 * (apart[1] - apart[0]))


def test_drawing_neighbours_together_keeps_every_sample(monkeypatch):
    monkeypatch.setattr(bootstrap, "MOST_GROUPS", 7)
    positives, negatives = np.arange(50.0), np.ones(50)
    merged = bootstrap._merged(positives, negatives)
    assert len(merged[0]) <= 7
    assert (merged[0].sum(), merged[1].sum()) == (positives.sum(), 50)


def test_the_seed_decides_the_draws():
    case = sample(levels=9)
    assert bounds_of(*case, "aupr_out") == bounds_of(*case, "aupr_out")
    assert bounds_of(*case, "aupr_out") != bounds_of(*case, "aupr_out", seed=2)


def with_positives(count):
    return np.arange(200.0), np.arange(200) >= 200 - count


LIMITS = {"aupr_in": ENOUGH, "aupr_out": ENOUGH, "aurc": ENOUGH, "fpr95_ood_positive": ENOUGH_FOR_QUANTILES}


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_too_few_samples_of_a_class_have_no_interval(name, limit):
    assert bounds_of(*with_positives(limit - 1), name) is None
    assert bounds_of(*with_positives(limit), name) is not None
    assert bounds_of(*with_positives(200 - limit + 1), name) is None


def test_one_class_has_no_interval():
    assert bounds_of(np.arange(100.0), np.zeros(100, dtype=bool), "aurc") is None


def test_the_number_of_errors_is_part_of_what_is_uncertain():
    scores, truth = sample(levels=9, n=1000)
    fixed, drawn = (bounds_of(scores, truth, "augrc", fixed_sizes=each, resamples=2000) for each in (True, False))
    # AUGRC is (1 - AUROC) a (1 - a) + (1 - a)^2 / 2, and a varies by sqrt(0.25 * 0.75 / 1000) = 0.014.
    assert drawn[1] - drawn[0] > 1.2 * (fixed[1] - fixed[0])


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


def test_intervals_cover_about_as_often_as_they_say():
    # The average precision of 100,000 samples stands for the truth.
    truth_value = METRICS["aupr_out"](*sample(levels=9, seed=99, n=100_000))
    bounds = [bounds_of(*sample(levels=9, seed=seed), "aupr_out", fixed_sizes=False, resamples=200)
              for seed in range(200)]  # fmt: skip
    assert np.mean([low <= truth_value <= high for low, high in bounds]) > 0.88


def test_counts_add_up():
    counts = Counts(np.array([[1.0, 0.0, 2.0]]), np.array([[0.0, 3.0, 1.0]]))
    assert counts.positives_to.tolist() == [[1, 1, 3]]
    assert counts.positives_from.tolist() == [[3, 2, 2]]
    assert counts.to.tolist() == [[1, 4, 7]]


def test_bounds_stay_within_0_and_1():
    """With more than a thousand distinct scores, what merging moves is moved back after the draws."""
    truth = np.arange(3000) < 100
    found = ranking_bounds(
        truth.astype(float) * 5000 + np.arange(3000), truth, metrics=RANKING, seed=0, fixed_sizes=True
    )
    assert all(0 <= low <= high <= 1 for low, high in found.values())
