import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from gradscore.errors import EvaluationError
from gradscore.evaluation.metrics import (
    METRICS,
    aupr_in,
    aupr_out,
    auroc,
    fpr95_id_positive,
    fpr95_ood_positive,
    one_class_reason,
)

# scores, truth, AUROC by counting pairs
PAIRS = {
    "perfect": ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
    "inverted": ([4, 3, 2, 1], [0, 0, 1, 1], 0.0),
    "all tied": ([5, 5, 5, 5], [0, 1, 0, 1], 0.5),
    "one swap of four pairs": ([1, 3, 2, 4], [0, 0, 1, 1], 0.75),
    "one tie across the classes": ([1, 2, 2, 3], [0, 0, 1, 1], 0.875),
}

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


@pytest.mark.parametrize(("scores", "truth"), CASES.values(), ids=CASES.keys())
def test_auroc_equals_scikit_learn(scores, truth):
    assert auroc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), rel=1e-12)


@pytest.mark.parametrize(("scores", "truth"), CASES.values(), ids=CASES.keys())
def test_average_precisions_equal_scikit_learn(scores, truth):
    assert aupr_out(scores, truth) == pytest.approx(average_precision_score(truth, scores), rel=1e-12)
    assert aupr_in(scores, truth) == pytest.approx(average_precision_score(~truth, -scores), rel=1e-12)


def first_fpr_at_95(truth, scores):
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    return fpr[tpr >= 0.95][0]


@pytest.mark.parametrize(("scores", "truth"), CASES.values(), ids=CASES.keys())
def test_fpr95_equals_the_first_point_of_the_roc_curve_at_95(scores, truth):
    assert fpr95_ood_positive(scores, truth) == pytest.approx(first_fpr_at_95(truth, scores), rel=1e-12)
    assert fpr95_id_positive(scores, truth) == pytest.approx(first_fpr_at_95(~truth, -scores), rel=1e-12)


def test_the_two_fpr95_conventions_by_hand():
    # 20 OOD samples with scores 1..20: the threshold 2 flags 19 of them, and one of two ID samples (0.5 and 2.5).
    # Of the ID samples both must be accepted: the threshold 2.5 lets the OOD samples 1 and 2 through.
    scores = np.r_[np.arange(1.0, 21.0), 0.5, 2.5]
    truth = np.r_[np.ones(20, dtype=bool), np.zeros(2, dtype=bool)]
    assert fpr95_ood_positive(scores, truth) == 0.5
    assert fpr95_id_positive(scores, truth) == 0.1


def test_average_precision_by_hand():
    # Ranked truth 1, 0, 1: precision 1 at the first hit, 2/3 at the second.
    assert aupr_out([3.0, 2.0, 1.0], [True, False, True]) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
@pytest.mark.parametrize("truth", [[], [True, True], [False, False]], ids=["empty", "positives", "negatives"])
def test_fewer_than_two_classes_give_none(metric, truth):
    assert metric(np.arange(float(len(truth))), np.array(truth, dtype=bool)) is None


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
@pytest.mark.parametrize(("scores", "truth", "message"), BAD.values(), ids=BAD.keys())
def test_unusable_input_is_refused(metric, scores, truth, message):
    with pytest.raises(EvaluationError, match=message):
        metric(scores, truth)


def test_no_reason_when_both_classes_are_there():
    assert one_class_reason([True, False], positive_name="error", negative_name="hit") is None


@pytest.mark.parametrize(
    ("truth", "message"),
    [([False] * 3, "no error among 3 samples"), ([], "no error and no hit among 0 samples")],
    ids=["no positive", "nothing"],
)
def test_the_reason_names_what_is_missing(truth, message):
    assert message in one_class_reason(truth, positive_name="error", negative_name="hit")
