"""Standard errors against simulation and hand-worked values, and verdicts against the rule they follow."""

import numpy as np
import pytest
from scipy.stats import norm

from gradscore.check.differences import (
    Difference,
    PairedRates,
    auroc_difference_same,
    judge,
    rate_difference_same,
)
from gradscore.evaluation.intervals import paired_delong


def draw(seed: int, n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of two models of the same samples, and which samples are positive."""
    generator = np.random.default_rng(seed)
    positive = np.arange(n) % 3 == 0
    common = generator.normal(size=n) + positive
    return common + 0.5 * generator.normal(size=n), common + 0.5 * generator.normal(size=n), positive


def found(value: float, error: float | None) -> Difference:
    return Difference(before=0.5, now=0.5 + value, error=error, method="", n=100)


VERDICTS = {
    "equal and certain": (found(0.0, 0.0), "pass"),
    "a drop within the margin, certain": (found(-0.04, 0.001), "pass"),
    "a drop beyond the margin, certain": (found(-0.06, 0.001), "fail"),
    "equal and uncertain": (found(0.0, 0.05), "undecided"),
    "a drop beyond the margin, uncertain": (found(-0.06, 0.05), "undecided"),
    "better": (found(0.1, 0.05), "pass"),
    "no value": (found(0.0, None), "undecided"),
}


@pytest.mark.parametrize(("difference", "status"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts(difference: Difference, status: str) -> None:
    assert judge(difference, margin=0.05, level=0.95, tests=1).status == status


def test_a_rise_is_worse_where_lower_is_better() -> None:
    verdict = judge(found(0.1, 0.001), margin=0.05, level=0.95, tests=1, higher_is_better=False)
    assert verdict.status == "fail"
    assert verdict.high == pytest.approx(-0.1 + 1.6449 * 0.001, abs=1e-6)


def test_error_rates_at_the_margin() -> None:
    values = np.random.default_rng(1).normal(-0.05, 0.02, 1500)
    statuses = [judge(found(value, 0.02), margin=0.05, level=0.95, tests=1).status for value in values]
    assert statuses.count("pass") / 1500 == pytest.approx(0.05, abs=0.02)
    assert statuses.count("fail") / 1500 == pytest.approx(0.05, abs=0.02)


def test_the_same_truth_is_compared_by_delong() -> None:
    before, now, positive = draw(0)
    difference = auroc_difference_same(before, now, positive, positive)
    test = paired_delong(now, before, positive)
    assert (difference.method, difference.value) == ("paired DeLong", pytest.approx(test.difference))
    assert difference.error == pytest.approx((test.high - test.low) / 2 / norm.ppf(0.975))


def test_two_truths_agree_with_simulation() -> None:
    def one(seed: int) -> Difference:
        before, now, positive = draw(seed, 120)
        other = positive.copy()
        other[:5] = ~other[:5]
        return auroc_difference_same(before, now, positive, other)

    differences = [one(seed) for seed in range(200)]
    assert {each.method for each in differences} == {"paired DeLong, two truths"}
    spread = np.std([each.value for each in differences], ddof=1)
    assert np.mean([each.error for each in differences]) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("shift", [0.0, 1.0], ids=["same scores", "others"])
def test_separation_before_and_after_is_undecided_with_two_samples_of_each_class(shift: float) -> None:
    scores, truth = np.arange(4.0), np.arange(4) >= 2
    found = auroc_difference_same(scores, scores + shift, truth, truth)
    assert found.value == 0.0
    assert judge(found, margin=0.05, level=0.95, tests=1).status == "undecided"


def test_separation_before_and_after_passes_with_many_samples() -> None:
    scores, truth = np.arange(400.0), np.arange(400) >= 200
    for now in (scores, scores + 1.0):
        found = auroc_difference_same(scores, now, truth, truth)
        assert judge(found, margin=0.05, level=0.95, tests=1).status == "pass"


SAME_ORDER = {
    "the same": np.arange(300.0),
    "other last bits": np.arange(300.0) * 1.0000001,
    "moved": np.arange(300.0) + 1,
}


@pytest.mark.parametrize("now", SAME_ORDER.values(), ids=SAME_ORDER)
def test_the_same_order_is_evidence_from_every_sample(now) -> None:
    truth = np.arange(300) >= 290
    found = auroc_difference_same(np.arange(300.0), now, truth, truth)
    assert (found.method, found.error) == ("same order", pytest.approx(np.sqrt(2) / 302))


@pytest.mark.parametrize("positive", [1, 299])
def test_the_same_order_is_no_evidence_from_one_sample_of_a_class(positive: int) -> None:
    truth = np.arange(300) >= 300 - positive
    found = auroc_difference_same(np.arange(300.0), np.arange(300.0), truth, truth)
    assert judge(found, margin=0.05, level=0.95, tests=1).status == "undecided"


def test_one_class_cannot_be_compared() -> None:
    scores, truth = np.arange(4.0), np.array([True, False, False, False])
    assert auroc_difference_same(scores, scores, truth, ~truth).error is None
    assert auroc_difference_same(scores, scores, np.zeros(4, bool), truth).value is None


def test_paired_rates_by_hand() -> None:
    before, now = [True] * 8 + [False] * 2, [True] * 5 + [False] * 4 + [True]
    difference = rate_difference_same(before, now)
    assert difference.value == pytest.approx(-0.2)
    assert difference.rates == PairedRates(lost=3, won=1, n=10)
    assert difference.at(-1.96) == PairedRates(3, 1, 10).bound(-1.96)
