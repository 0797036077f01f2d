"""Figures of merit against peers, by hand, and where there are none."""

import itertools
from itertools import permutations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score, roc_curve

from gradscore.errors import EvaluationError
from gradscore.evaluation.metrics import (
    METRICS,
    aurc,
    auroc,
    brier,
    double_scoring,
    expected_calibration_error,
    fpr95_id_positive,
    fpr95_ood_positive,
    rarer_of,
    reliability,
    risk_coverage,
)

# scores, truth, AUROC by counting pairs
PAIRS = {
    "perfect": ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
    "inverted": ([4, 3, 2, 1], [0, 0, 1, 1], 0.0),
    "all tied": ([5, 5, 5, 5], [0, 1, 0, 1], 0.5),
    "one swap of four pairs": ([1, 3, 2, 4], [0, 0, 1, 1], 0.75),
    "one tie across the classes": ([1, 2, 2, 3], [0, 0, 1, 1], 0.875),
}

FIGURES = {**METRICS, "aurc": aurc}

BAD = {
    "nan": ([1.0, np.nan], [True, False], "1 of 2 are not finite"),
    "infinite": ([1.0, np.inf], [True, False], "first at position 1"),
    "lengths": ([1.0, 2.0, 3.0], [True, False], "one shape"),
    "two dimensions": ([[1.0, 2.0]], [[True, False]], "one shape"),
    "not boolean": ([1.0, 2.0], [2, -1], "truth"),
}


def random_case(*, seed, levels):
    generator = np.random.default_rng(seed)
    truth = generator.random(500) < 0.3
    return np.round(generator.normal(size=500) + truth, levels), truth


CASES = {
    "no ties": random_case(seed=0, levels=12),
    "some ties": random_case(seed=1, levels=1),
    "many ties": random_case(seed=2, levels=0),
}


@pytest.mark.parametrize(("scores", "truth", "expected"), PAIRS.values(), ids=PAIRS.keys())
def test_auroc_counts_pairs(scores, truth, expected):
    assert auroc(scores, np.array(truth, dtype=bool)) == expected


def first_fpr_at_95(truth, scores):
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    return fpr[tpr >= 0.95][0]


PEERS = {
    "auroc": roc_auc_score,
    "aupr_out": average_precision_score,
    "aupr_in": lambda truth, scores: average_precision_score(~truth, -scores),
    "fpr95_ood_positive": first_fpr_at_95,
    "fpr95_id_positive": lambda truth, scores: first_fpr_at_95(~truth, -scores),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("scores", "truth"), CASES.values(), ids=CASES.keys())
def test_equals_scikit_learn(scores, truth, metric):
    assert METRICS[metric](scores, truth) == pytest.approx(PEERS[metric](truth, scores), rel=1e-12)


def test_the_two_fpr95_conventions_by_hand():
    # 20 OOD samples with scores 1..20: the threshold 2 flags 19 of them, and one of two ID samples (0.5 and 2.5).
    # Of the ID samples both must be accepted: the threshold 2.5 lets the OOD samples 1 and 2 through.
    scores = np.r_[np.arange(1.0, 21.0), 0.5, 2.5]
    truth = np.r_[np.ones(20, dtype=bool), np.zeros(2, dtype=bool)]
    assert fpr95_ood_positive(scores, truth) == 0.5
    assert fpr95_id_positive(scores, truth) == 0.1


@pytest.mark.parametrize("metric", FIGURES.values(), ids=FIGURES.keys())
@pytest.mark.parametrize("truth", [[], [True, True], [False, False]], ids=["empty", "positives", "negatives"])
def test_fewer_than_two_classes_give_none(metric, truth):
    assert metric(np.arange(float(len(truth))), np.array(truth, dtype=bool)) is None


@pytest.mark.parametrize(("metric", "bad"), [*zip(FIGURES, itertools.cycle(BAD), strict=False)])
def test_unusable_input_is_refused(metric, bad):
    scores, truth, message = BAD[bad]
    with pytest.raises(EvaluationError, match=message):
        FIGURES[metric](scores, truth)


def mean_risk(wrong):
    """The definition for one order, most certain first: the mean error rate of the first 1, 2, ..., N samples."""
    return np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))


def over_orders(scores, wrong):
    """Mean of the definition over all orders that the scores allow."""
    orders = [order for order in map(list, permutations(range(len(scores)))) if (np.diff(scores[order]) >= 0).all()]
    return np.mean([mean_risk(wrong[order]) for order in orders])


def ranked(*, seed, n, levels):
    generator = np.random.default_rng(seed)
    wrong = generator.random(n) < 0.3
    return np.round(generator.normal(size=n) + wrong, levels), wrong


SMALL = {"no ties": ranked(seed=0, n=7, levels=9), "ties": ranked(seed=1, n=7, levels=0)}


@pytest.mark.parametrize(("scores", "wrong"), SMALL.values(), ids=SMALL.keys())
def test_aurc_is_the_mean_over_all_orders_of_ties(scores, wrong):
    assert aurc(scores, wrong) == pytest.approx(over_orders(scores, wrong), rel=1e-12)


def test_risk_coverage_has_a_point_for_each_distinct_score():
    curve = risk_coverage([1.0, 1.0, 2.0, 3.0], [False, True, False, True])
    assert curve.coverage.tolist() == [0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2])


def sample(*, seed=0, n=2000):
    generator = np.random.default_rng(seed)
    p = generator.random(n)
    return p, generator.random(n) < p**2


def test_brier_equals_scikit_learn():
    p, truth = sample()
    assert brier(p, truth) == pytest.approx(brier_score_loss(truth, p), rel=1e-12)


def test_reliability_equals_scikit_learn():
    p, truth = sample()
    observed, predicted = calibration_curve(truth, p, n_bins=15, strategy="uniform")
    curve = reliability(p, truth)
    assert curve.observed == pytest.approx(observed, rel=1e-12)
    assert curve.predicted == pytest.approx(predicted, rel=1e-12)
    assert curve.count.sum() == len(p)


def test_calibration_error_by_hand():
    # Two bins: (0.21, 0.25 -> one of two positive) and (0.95, 1.0 -> both): gaps 0.27 and 0.025 of half each.
    found = expected_calibration_error([0.21, 0.25, 0.95, 1.0], [True, False, True, True])
    assert found == pytest.approx((0.27 + 0.025) / 2)


@pytest.mark.parametrize("figure", [brier, expected_calibration_error])
def test_no_sample_gives_none(figure):
    assert figure([], np.array([], dtype=bool)) is None


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_values_that_are_no_probabilities_are_refused(value):
    with pytest.raises(EvaluationError, match=r"wanted values in \[0, 1\]"):
        brier([0.5, value], [True, False])


def two_scores(*, seed, count, levels):
    """Scores with ties of in-distribution samples, some of them wrong, and of OOD ones, a third."""
    generator = np.random.default_rng(seed)
    in_dist = np.arange(count) >= count // 3
    good = in_dist & (generator.random(count) < 0.8)
    first, second = generator.integers(0, levels, (2, count)) + 0.3 * levels * np.stack([~good, ~in_dist])
    return first, second, good, in_dist


def by_all_pairs(first, second, good, in_dist):
    """The authors' sums (`compute_f1_and_aurc`) with the samples' scores as thresholds, and a bin for each coverage."""
    total, f1, risk = in_dist.sum(), 0.0, {}
    for low, high in itertools.product(np.unique(first), np.unique(second)):
        kept = (first <= low) & (second <= high)
        right = (kept & good).sum()
        if kept.any() and right:
            precision, recall = right / kept.sum(), right / total
            f1 = max(f1, 2 * precision * recall / (precision + recall))
        if kept.any():
            covered = (kept & in_dist).sum()
            risk[covered] = min(risk.get(covered, 1.0), 1 - right / kept.sum())
    areas = [next(risk[more] for more in range(covered, total + 1) if more in risk) for covered in range(1, total + 1)]
    return f1, np.mean(areas)


@pytest.mark.parametrize("levels", [3, 10, 1000], ids=["many ties", "ties", "few ties"])
def test_double_scoring_tries_all_pairs_of_thresholds(levels):
    samples = two_scores(seed=levels, count=60, levels=levels)
    found = double_scoring(*samples)
    assert (found.f1, found.aurc) == pytest.approx(by_all_pairs(*samples), rel=1e-12)


def test_double_scoring_by_hand():
    """A wrong sample and an OOD one, each seen by one score: of three good ones all are accepted, and nothing else."""
    good, in_dist = np.array([1, 1, 1, 0, 0], dtype=bool), np.array([1, 1, 1, 1, 0], dtype=bool)
    found = double_scoring([0, 1, 0, 9, 0], [0, 0, 1, 0, 9], good, in_dist)
    assert found.f1 == pytest.approx(2 * 1.0 * 0.75 / 1.75)
    assert found.aurc == pytest.approx((0 + 0 + 0 + 0.25) / 4)


def test_of_many_samples_quantiles_are_thresholds():
    """Against the F1 of all pairs, one threshold of the first score at a time."""
    first, second, good, in_dist = two_scores(seed=1, count=3000, levels=10**6)
    order = np.argsort(second)
    kept = np.cumsum((first[:, None] >= first[order]), axis=1)
    right = np.cumsum((first[:, None] >= first[order]) & good[order], axis=1)
    found = double_scoring(first, second, good, in_dist)
    assert found.f1 == pytest.approx((2 * right / (kept + in_dist.sum())).max(), rel=0.01)


def test_double_scoring_of_one_class_is_none():
    assert double_scoring([1, 2], [1, 2], [True, True], [True, True]) is None
    assert double_scoring([1, 2], [1, 2], [False, False], [True, False]) is None


def test_the_rarer_of_two_scores_is_the_smaller_p_value():
    """Among good samples 0, 1, 2 and 10, 20, 30: of four places, by hand."""
    found = rarer_of([0.0, 1.0, 2.0, 5.0, 0.5], [30.0, 20.0, 10.0, 5.0, 25.0], [True, True, True, False, False])
    np.testing.assert_allclose(found, [-2 / 4, -3 / 4, -2 / 4, -1 / 4, -2 / 4])
