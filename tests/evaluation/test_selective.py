from itertools import permutations

import numpy as np
import pytest

from gradscore.errors import EvaluationError
from gradscore.evaluation.metrics import auroc
from gradscore.evaluation.selective import augrc, aurc, eaurc, risk_coverage


def mean_risk(wrong):
    """The definition for one order, most certain first: the mean error rate of the first 1, 2, ..., N samples."""
    return np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))


def over_orders(scores, wrong):
    """Mean of the definition over all orders that the scores allow."""
    orders = [order for order in map(list, permutations(range(len(scores)))) if (np.diff(scores[order]) >= 0).all()]
    return np.mean([mean_risk(wrong[order]) for order in orders])


def sample(*, seed, n, levels):
    generator = np.random.default_rng(seed)
    wrong = generator.random(n) < 0.3
    return np.round(generator.normal(size=n) + wrong, levels), wrong


SMALL = {"no ties": sample(seed=0, n=7, levels=9), "ties": sample(seed=1, n=7, levels=0)}
LARGE = {"no ties": sample(seed=2, n=400, levels=9), "ties": sample(seed=3, n=400, levels=0)}


def test_aurc_by_hand():
    # Accepted in order right, wrong, right: risks 0, 1/2, 1/3.
    assert aurc([1.0, 2.0, 3.0], [False, True, False]) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)


def test_eaurc_by_hand():
    # A perfect score accepts the wrong one last: risks 0, 0, 1/3.
    assert eaurc([1.0, 2.0, 3.0], [False, True, False]) == pytest.approx((1 / 2) / 3)
    assert eaurc([1.0, 3.0, 2.0], [False, True, False]) == pytest.approx(0.0)


def test_augrc_by_hand():
    # Accepted wrong samples of three: 0, 0, 1, 1 at coverages 0, 1/3, 2/3, 1; trapezoids (0 + 1/2 + 1) / 3 / 3.
    assert augrc([1.0, 2.0, 3.0], [False, True, False]) == pytest.approx(1.5 / 9)


@pytest.mark.parametrize(("scores", "wrong"), SMALL.values(), ids=SMALL.keys())
def test_aurc_is_the_mean_over_all_orders_of_ties(scores, wrong):
    assert aurc(scores, wrong) == pytest.approx(over_orders(scores, wrong), rel=1e-12)


@pytest.mark.parametrize(("scores", "wrong"), LARGE.values(), ids=LARGE.keys())
def test_augrc_follows_from_auroc_and_accuracy(scores, wrong):
    accuracy = 1 - wrong.mean()
    expected = (1 - auroc(scores, wrong)) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert augrc(scores, wrong) == pytest.approx(expected, rel=1e-12)


def test_eaurc_approaches_the_limit_of_many_samples():
    scores, wrong = sample(seed=4, n=20_000, levels=9)
    share = wrong.mean()
    limit = share + (1 - share) * np.log(1 - share)
    assert eaurc(scores, wrong) == pytest.approx(aurc(scores, wrong) - limit, abs=1e-4)


def test_risk_coverage_has_a_point_for_each_distinct_score():
    curve = risk_coverage([1.0, 1.0, 2.0, 3.0], [False, True, False, True])
    assert curve.coverage.tolist() == [0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2])


@pytest.mark.parametrize("area", [aurc, eaurc, augrc])
@pytest.mark.parametrize("wrong", [[], [True, True], [False, False]], ids=["empty", "all wrong", "all right"])
def test_fewer_than_two_classes_give_none(area, wrong):
    assert area(np.arange(float(len(wrong))), np.array(wrong, dtype=bool)) is None


@pytest.mark.parametrize("area", [aurc, eaurc, augrc])
def test_scores_that_are_not_finite_are_refused(area):
    with pytest.raises(EvaluationError, match="not finite"):
        area([np.nan, 1.0], [True, False])
