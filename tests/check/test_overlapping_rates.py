"""Rates of errors that two models share in part."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from gradscore.check.differences import (
    PairedRates,
    judge,
    rate_difference_overlapping,
    rate_difference_same,
)

pytestmark = pytest.mark.slow


def test_samples_that_are_all_the_same_are_compared_as_such() -> None:
    before = pd.Series([True, True, False, True], index=list("abcd"))
    now = pd.Series([False, True, True, False], index=list("dcba"))
    same = rate_difference_overlapping(before, now)
    assert same.rates == PairedRates(lost=2, won=1, n=4)
    assert same.method == "paired rates"


def test_errors_none_of_which_are_the_same_add_their_limits() -> None:
    """Method 10 of Newcombe, 1998 (Statistics in Medicine 17, 873-890), table II (a): 56/70 - 48/80."""
    before, now = pd.Series(np.arange(80) < 48), pd.Series(np.arange(70) < 56, index=np.arange(80, 150))
    bounds = [rate_difference_overlapping(before, now).at(quantile) for quantile in (-1.959964, 1.959964)]
    assert bounds == pytest.approx([0.0524, 0.3339], abs=1e-4)


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
