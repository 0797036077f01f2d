"""The smallest drop that a gate notices, against all that binomial distributions can bring."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm

from gradscore.deployment.guard.noninferiority import (
    Difference,
    judge,
    rate_difference_other,
    rate_difference_overlapping,
    rate_difference_same,
)
from gradscore.deployment.guard.power import OverlappingRates, PairedRates, TwoRates

MARGIN = 0.02
LEVEL = 0.95


def fails(found: Difference, gates: int, *, higher_is_better: bool = True) -> bool:
    verdict = judge(found, margin=MARGIN, level=LEVEL, gates=gates, higher_is_better=higher_is_better)
    return verdict.status == "fail"


def smallest(found: Difference, gates: int, *, higher_is_better: bool = True) -> float | None:
    return judge(found, margin=MARGIN, level=LEVEL, gates=gates, higher_is_better=higher_is_better).smallest_drop


def paired(lost: int, won: int, held: int, n: int) -> Difference:
    before = np.arange(n) < held
    now = before.copy()
    now[:lost] = False
    now[held : held + won] = True
    return rate_difference_same(before, now)


@pytest.mark.parametrize("gates", [1, 10])
@pytest.mark.parametrize(("n", "held", "won"), [(50, 50, 0), (100, 95, 2), (300, 280, 5)])
def test_paired_rates(n: int, held: int, won: int, gates: int) -> None:
    quoted = smallest(paired(won, won, held, n), gates)
    assert quoted is not None

    def power(drop: float) -> float:
        """Over all numbers of lost samples, as many being won as were found."""
        failing = [lost for lost in range(held + 1) if fails(paired(lost, won, held, n), gates)]
        return float(binom.pmf(failing, n, drop + won / n).sum())

    assert power(quoted) == pytest.approx(0.8, abs=1e-6)
    assert power(quoted - 0.01) < 0.8


@pytest.mark.parametrize(("n_before", "held", "n_now"), [(40, 40, 60), (200, 150, 50)])
def test_two_rates(n_before: int, held: int, n_now: int) -> None:
    before = np.arange(n_before) < held
    quoted = smallest(rate_difference_other(before, np.arange(n_now) < n_now), 5)
    assert quoted is not None
    failing = [k for k in range(n_now + 1) if fails(rate_difference_other(before, np.arange(n_now) < k), 5)]
    assert binom.pmf(failing, n_now, held / n_before - quoted).sum() == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_samples_cannot_show_any_drop(n: int) -> None:
    assert smallest(paired(0, 0, n, n), 5) is None
    assert smallest(rate_difference_other([True] * n, [True] * n), 5) is None


def test_no_drop_is_larger_than_what_is_there() -> None:
    assert smallest(paired(0, 0, 5, 300), 10) is None
    by_error = Difference(before=0.9, now=0.9, error=0.5, method="", n=10)
    assert smallest(by_error, 1) is None


def test_a_rise_is_a_drop_of_the_others() -> None:
    rise = smallest(paired(2, 3, 20, 100), 5, higher_is_better=False)
    assert rise == smallest(paired(3, 2, 80, 100), 5)
    apart, others = rate_difference_other([True, False] * 20, [False] * 40), [True, False] * 20
    assert smallest(apart, 5, higher_is_better=False) == smallest(rate_difference_other(others, [True] * 40), 5)


def test_rates_of_overlapping_samples() -> None:
    rates = OverlappingRates(apart=TwoRates(45, 50, 40, 60), both=20, lost=5, won=3, common=30)
    assert rates.complement().complement() == rates
    for quantile in (-1.6, 1.6):
        assert rates.complement().bound(quantile) == pytest.approx(-rates.bound(-quantile), abs=1e-12)
    assert rates.smallest_drop(margin=0.1, quantile=2.0) == rates.apart.smallest_drop(margin=0.1, quantile=2.0)


def test_samples_that_are_all_the_same_or_all_others_are_compared_as_such() -> None:
    before = pd.Series([True, True, False, True], index=list("abcd"))
    now = pd.Series([False, True, True, False], index=list("dcba"))
    same = rate_difference_overlapping(before, now)
    assert same.rates == PairedRates(lost=2, won=1, held=3, n=4)
    assert same.method == "paired rates"
    others = rate_difference_overlapping(before, now.set_axis(list("efgh")))
    assert (others.method, others.rates) == ("two rates", TwoRates(3, 4, 2, 4))


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_model_worse_by_the_margin_passes_no_more_often_than_it_may(n: int, share: float) -> None:
    """Of n before and n now, a share the same, whose flags correlate; the rate falls by 0.2 exactly."""
    generator = np.random.default_rng(n)
    common, trials, passed = int(share * n), 1500, 0
    names = np.arange(2 * n - common)
    for _ in range(trials):
        latent = generator.normal(size=len(names))
        was = norm.cdf(latent) < 0.9
        then = norm.cdf(0.8 * latent + 0.6 * generator.normal(size=len(names))) < 0.7
        found = rate_difference_overlapping(
            pd.Series(was[:n], index=names[:n]), pd.Series(then[n - common :], index=names[n - common :])
        )
        passed += judge(found, margin=0.2, level=0.95, gates=1).status == "pass"
    assert 0.02 < passed / trials < 0.075
