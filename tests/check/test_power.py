"""The smallest drop that a outcome notices, against all that binomial distributions can bring."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm

from gradscore.check.differences import (
    Difference,
    OverlappingRates,
    PairedRates,
    judge,
    rate_difference_overlapping,
    rate_difference_same,
)

pytestmark = pytest.mark.slow

MARGIN = 0.02
LEVEL = 0.95


def fails(found: Difference, tests: int, *, higher_is_better: bool = True) -> bool:
    verdict = judge(found, margin=MARGIN, level=LEVEL, tests=tests, higher_is_better=higher_is_better)
    return verdict.status == "fail"


def smallest(found: Difference, tests: int, *, higher_is_better: bool = True) -> float | None:
    return judge(found, margin=MARGIN, level=LEVEL, tests=tests, higher_is_better=higher_is_better).smallest_drop


def paired(lost: int, won: int, held: int, n: int) -> Difference:
    before = np.arange(n) < held
    now = before.copy()
    now[:lost] = False
    now[held : held + won] = True
    return rate_difference_same(before, now)


@pytest.mark.parametrize(("n", "held", "won", "tests"), [(50, 50, 0, 1), (100, 95, 2, 10), (300, 280, 5, 10)])
def test_paired_rates(n: int, held: int, won: int, tests: int) -> None:
    quoted = smallest(paired(won, won, held, n), tests)
    assert quoted is not None

    def power(drop: float) -> float:
        """Over all numbers of lost samples, as many being won as were found."""
        failing = [lost for lost in range(held + 1) if fails(paired(lost, won, held, n), tests)]
        return float(binom.pmf(failing, n, drop + won / n).sum())

    assert power(quoted) == pytest.approx(0.8, abs=1e-6)
    assert power(quoted - 0.01) < 0.8


def test_no_drop_is_larger_than_what_is_there() -> None:
    assert smallest(paired(0, 0, 5, 300), 10) is None
    by_error = Difference(before=0.9, now=0.9, error=0.5, method="", n=10)
    assert smallest(by_error, 1) is None


def test_a_rise_is_a_drop_of_the_others() -> None:
    rise = smallest(paired(2, 3, 20, 100), 5, higher_is_better=False)
    assert rise == smallest(paired(3, 2, 80, 100), 5)


def test_rates_of_overlapping_samples() -> None:
    rates = OverlappingRates(held=45, n_before=50, holds=40, n_now=60, both=20, lost=5, won=3, common=30)
    assert rates.complement().complement() == rates
    for quantile in (-1.6, 1.6):
        assert rates.complement().bound(quantile) == pytest.approx(-rates.bound(-quantile), abs=1e-12)


def test_samples_that_are_all_the_same_are_compared_as_such() -> None:
    before = pd.Series([True, True, False, True], index=list("abcd"))
    now = pd.Series([False, True, True, False], index=list("dcba"))
    same = rate_difference_overlapping(before, now)
    assert same.rates == PairedRates(lost=2, won=1, held=3, n=4)
    assert same.method == "paired rates"


def test_errors_none_of_which_are_the_same_add_their_limits() -> None:
    """Method 10 of Newcombe, 1998 (Statistics in Medicine 17, 873-890), table II (a): 56/70 - 48/80."""
    before, now = pd.Series(np.arange(80) < 48), pd.Series(np.arange(70) < 56, index=np.arange(80, 150))
    bounds = [rate_difference_overlapping(before, now).at(quantile) for quantile in (-1.959964, 1.959964)]
    assert bounds == pytest.approx([0.0524, 0.3339], abs=1e-4)


# Samples of which it held before and all, both of which are so many; overlap, margin.
OVERLAPPING = [(38, 38, 0.9, 0.2), (18, 20, 0.5, 0.2), (400, 485, 0.9, 0.05)]


@pytest.mark.parametrize(("held", "n", "overlap", "margin"), OVERLAPPING)
def test_the_drop_of_overlapping_samples_is_shown(held: int, n: int, overlap: float, margin: float) -> None:
    """Simulated with each sample losing it by itself."""
    common = round(overlap * n)
    before = pd.Series(np.arange(n) * held // n != (np.arange(n) + 1) * held // n, index=np.arange(n))
    assert before.sum() == held
    names = np.arange(n - common, 2 * n - common)
    kept = before.reindex(names, fill_value=True)
    kept.iloc[common:] = before.iloc[: n - common].to_numpy()
    found = rate_difference_overlapping(before, kept)
    drop = judge(found, margin=margin, level=LEVEL, tests=7).smallest_drop
    assert drop is not None
    assert margin < drop < held / n
    generator, failed, trials = np.random.default_rng(0), 0, 300
    for _ in range(trials):
        now = kept & (generator.random(n) < 1 - drop * n / held)
        verdict = judge(rate_difference_overlapping(before, now), margin=margin, level=LEVEL, tests=7)
        failed += verdict.status == "fail"
    assert 0.7 < failed / trials < 0.95


# Errors before and now, of which so many are the same; rate before; margin. Flags agree as far as they can.
NARROW = [(10, 9, 0.5, 0.2), (38, 36, 0.6, 0.05)]


@pytest.mark.parametrize(("n", "common", "rate", "margin"), NARROW)
def test_flags_that_agree_do_not_make_the_bound_too_narrow(n: int, common: int, rate: float, margin: float) -> None:
    generator, passed, trials = np.random.default_rng(n), 0, 3000
    names = np.arange(2 * n - common)
    for _ in range(trials):
        latent = generator.random(len(names))
        was, holds = latent < rate, latent < rate - margin
        found = rate_difference_overlapping(
            pd.Series(was[:n], index=names[:n]), pd.Series(holds[n - common :], index=names[n - common :])
        )
        passed += judge(found, margin=margin, level=0.95, tests=1).status == "pass"
    assert passed / trials < 0.09


def test_one_more_error_does_not_make_a_pass_of_no_evidence() -> None:
    """Six errors of both models, five of them flagged, and a flagged one of the new model."""
    before = pd.Series([True] * 5 + [False], index=range(6))
    now = pd.Series([True] * 5 + [False, True], index=range(7))
    assert judge(rate_difference_same(before, before), margin=0.2, level=0.95, tests=1).status == "undecided"
    assert judge(rate_difference_overlapping(before, now), margin=0.2, level=0.95, tests=1).status == "undecided"


@pytest.mark.parametrize(("n", "share"), [(30, 0.9), (100, 0.3)])
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
        passed += judge(found, margin=0.2, level=0.95, tests=1).status == "pass"
    assert 0.02 < passed / trials < 0.075
