import numpy as np
import pytest
from delong_reference import interval_of
from scipy.stats import norm

from gradscore.errors import EvaluationError
from gradscore.evaluation.intervals import (
    mean_auroc_interval,
    paired_delong,
    paired_delong_of_truths,
    placements,
)
from gradscore.evaluation.metrics import auroc


def sample(*, seed, n=200, shift=1.0, decimals=12):
    generator = np.random.default_rng(seed)
    truth = np.arange(n) < n // 4
    return np.round(generator.normal(size=n) + shift * truth, decimals), truth


def test_interval_holds_the_auroc_and_stays_inside_the_unit_interval():
    scores, truth = sample(seed=3, n=40, shift=3.0)
    interval = interval_of(scores, truth)
    assert interval.value == pytest.approx(auroc(scores, truth))
    assert 0.0 < interval.low < interval.value < interval.high < 1.0


@pytest.mark.slow
def test_interval_covers_the_true_value_about_as_often_as_it_says():
    truth_value = norm.cdf(1.0 / np.sqrt(2.0))
    intervals = [interval_of(*sample(seed=seed)) for seed in range(400)]
    covered = np.mean([interval.low <= truth_value <= interval.high for interval in intervals])
    assert 0.91 <= covered <= 0.985


NO_INTERVAL = {
    "one positive": ([1.0, 2.0, 3.0], [True, False, False]),
    "empty": ([], []),
}


@pytest.mark.parametrize(("scores", "truth"), NO_INTERVAL.values(), ids=NO_INTERVAL.keys())
def test_no_interval_where_none_can_be_estimated(scores, truth):
    assert placements(scores, np.array(truth, dtype=bool)) is None


def newcombe(area, positives, negatives, quantile=1.959963984540054):
    """Both ends of Newcombe's interval by its definition: a grid of true areas, and those no further than allowed."""
    true = np.linspace(1e-9, 1 - 1e-9, 2_000_001)
    middle = (positives + negatives) / 2 - 1
    variance = true * (1 - true) * (1 + middle * (1 - true) / (2 - true) + middle * true / (1 + true))
    inside = true[np.abs(area - true) <= quantile * np.sqrt(variance / (positives * negatives))]
    return inside.min(), inside.max()


SEPARATED = {"two of each": (2, 2), "five and a hundred": (5, 100), "fifty and three": (50, 3)}


@pytest.mark.parametrize(("positives", "negatives"), SEPARATED.values(), ids=SEPARATED)
@pytest.mark.parametrize("sign", [1, -1], ids=["apart", "the wrong way round"])
def test_perfect_separation_has_newcombes_interval(positives, negatives, sign):
    scores = np.arange(positives + negatives, dtype=float)
    interval = interval_of(sign * scores, scores >= negatives)
    low, high = newcombe(interval.value, positives, negatives)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-5)
    assert interval.high - interval.low > 0.05


def test_one_score_for_all_has_newcombes_interval():
    interval = interval_of(np.zeros(20), np.arange(20) < 8)
    assert (interval.low, interval.high) == pytest.approx(newcombe(0.5, 8, 12), abs=1e-5)


def test_where_few_samples_carry_the_variance_the_interval_is_the_wider_one():
    scores, truth = np.arange(200.0), np.arange(200) >= 100
    scores[150] = 50.5  # one positive below half of the negatives, all others above all
    interval = interval_of(scores, truth)
    low, high = newcombe(interval.value, 100, 100)
    assert interval.low <= low + 1e-5
    assert interval.high >= high - 1e-5


def test_no_change_of_separated_scores_is_no_certainty():
    scores, truth = [1.0, 2.0, 3.0, 4.0], np.array([False, False, True, True])
    test = paired_delong(scores, scores, truth)
    # One sample of each class more, changed all the way: 1 / (2 + 2)^2 for either class.
    assert test.error == pytest.approx(np.sqrt(2 / 16))
    assert (test.difference, test.p_value) == (0.0, 1.0)
    assert test.low == pytest.approx(-1.959964 * np.sqrt(2 / 16))


def test_a_change_of_a_single_sample_is_no_certainty():
    truth = np.arange(60) >= 40
    before = np.arange(60.0)
    now = before.copy()
    now[59] = -1.0
    assert paired_delong(now, before, truth).error > 1 / 22


def test_no_change_under_two_truths_is_no_certainty():
    scores, truth = np.arange(8.0), np.arange(8) >= 4
    assert paired_delong_of_truths(scores, scores, truth, truth).error == pytest.approx(np.sqrt(2 / 36))


def test_scores_of_different_length_are_refused():
    with pytest.raises(EvaluationError, match="one shape"):
        paired_delong([1.0, 2.0], [1.0, 2.0, 3.0], [True, False])


def sets(*, seed, sizes=(40, 60), negatives=100, shift=1.0):
    """Scores and truths of data sets with the same negatives."""
    generator = np.random.default_rng(seed)
    below = generator.normal(size=negatives)
    scores = [np.r_[below, generator.normal(shift, 1.0, size)] for size in sizes]
    return scores, [np.arange(len(each)) >= negatives for each in scores]


def placed(scores, truths):
    return [placements(values, truth) for values, truth in zip(scores, truths, strict=True)]


@pytest.mark.slow
def test_the_mean_covers_the_true_value_about_as_often_as_it_says():
    truth_value = norm.cdf(1.0 / np.sqrt(2.0))
    intervals = [mean_auroc_interval(placed(*sets(seed=seed))) for seed in range(400)]
    assert 0.91 <= np.mean([each.low <= truth_value <= each.high for each in intervals]) <= 0.985


@pytest.mark.parametrize(("sizes", "most"), [((10, 1000), 1.0), ((30, 1000), 1.0), ((60, 60, 60), 0.985)])
def test_the_mean_over_a_small_set_and_a_large_one_covers_the_true_value(sizes, most):
    """Most of its variance is of the small set, which shows none where all its samples rank high."""
    shift = np.sqrt(2) * norm.ppf(0.98)
    drawn = (placed(*sets(seed=seed, sizes=sizes, negatives=500, shift=shift)) for seed in range(200))
    assert 0.9 <= np.mean([each.low <= 0.98 <= each.high for each in map(mean_auroc_interval, drawn)]) <= most


def test_sets_with_other_negatives_are_refused():
    one, other = sets(seed=4, sizes=(20,)), sets(seed=4, sizes=(20,), negatives=50)
    with pytest.raises(EvaluationError, match=r"same negatives in each set, got \[50, 100\]"):
        mean_auroc_interval([*placed(*one), *placed(*other)])


def test_with_one_truth_the_test_of_two_truths_is_delongs():
    scores, truth = sample(seed=9, n=4000)
    other = scores + np.random.default_rng(10).normal(size=len(scores))
    expected = paired_delong(scores, other, truth)
    result = paired_delong_of_truths(scores, other, truth, truth)
    assert result.difference == pytest.approx(expected.difference)
    assert result.high - result.low == pytest.approx(expected.high - expected.low, rel=1e-2)


def two_classifiers(seed):
    """Two classifiers that fail on related but different samples, and equally good scores of their failures."""
    generator = np.random.default_rng(seed)
    hard = generator.normal(size=300)
    truths = [hard + 0.7 * generator.normal(size=300) > 1.0 for _ in range(2)]
    return *(hard + generator.normal(size=300) for _ in range(2)), *truths


@pytest.mark.slow
def test_two_truths_that_do_not_differ_are_called_different_as_rarely_as_promised():
    values = [paired_delong_of_truths(*two_classifiers(seed)).p_value for seed in range(400)]
    assert 0.02 <= np.mean(np.array(values) < 0.05) <= 0.09


def test_two_truths_of_other_samples_are_refused():
    with pytest.raises(EvaluationError, match="wanted the same samples, got 4 and 5"):
        paired_delong_of_truths(np.arange(4.0), np.arange(5.0), np.arange(4) > 1, np.arange(5) > 1)


def test_a_constant_score_against_a_perfect_one_has_an_error():
    """Every sample's placement then differs by the same half, so that DeLong's variance is zero."""
    truth = np.arange(60) < 30
    test = paired_delong(truth.astype(float), np.zeros(60), truth)
    assert (test.difference, test.error > 0, test.p_value < 0.001) == (0.5, True, True)
