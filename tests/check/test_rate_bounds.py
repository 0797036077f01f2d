"""Bounds of differences of rates: exact error rates at the margin, and likelihoods that are maximised by search."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multinomial, norm

from gradscore.check.differences import PairedRates, judge, rate_difference_same

MARGIN = 0.02
MOST = 0.06
RARE = 1e-7
"""Outcomes less likely than this are not looked at."""


def passes_paired(lost: int, won: int, n: int) -> bool:
    """Of n samples of which some are lost, some are won, and nothing changes on the others."""
    before = np.arange(n) < lost
    now = np.arange(n) >= n - won
    return judge(rate_difference_same(before, now), margin=MARGIN, level=0.95, tests=1).status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize(("n", "changed"), [(81, 0.02), (100, 0.05), (200, 0.1), (523, 0.03)])
def test_of_models_worse_by_the_margin_few_pass(n: int, changed: float) -> None:
    lost, won = (each.ravel() for each in np.mgrid[: n // 4, : n // 6])
    cells = np.stack([lost, won, n - lost - won], axis=1)
    chance = multinomial(n, [(changed + MARGIN) / 2, (changed - MARGIN) / 2, 1 - changed])
    weights = chance.pmf(cells)
    likely = weights > RARE
    passed = [passes_paired(int(a), int(b), n) for a, b in cells[likely, :2]]
    assert weights[likely].sum() == pytest.approx(1.0, abs=1e-3)
    assert weights[likely] @ passed <= MOST


@pytest.mark.parametrize(("n", "passes"), [(81, False), (100, False), (150, True), (523, True)])
def test_nothing_lost_passes_from_where_the_rule_of_three_does(n: int, passes: bool) -> None:
    assert passes_paired(0, 0, n) is passes


def test_a_rise_of_false_alarms_is_judged_from_the_other_side() -> None:
    before, now = np.arange(200) < 4, np.arange(200) < 7
    rise = judge(rate_difference_same(before, now), margin=MARGIN, level=0.95, tests=3, higher_is_better=False)
    drop = judge(rate_difference_same(now, before), margin=MARGIN, level=0.95, tests=3)
    assert (rise.low, rise.high) == pytest.approx((drop.low, drop.high), abs=1e-9)


def log_likelihood(counts: list[int], shares: list[float]) -> float:
    return float(np.log(np.maximum(shares, 1e-300)) @ np.array(counts))


PAIRED = {"few": (3, 1, 60), "none lost": (0, 4, 100), "none won": (5, 0, 81), "none": (0, 0, 30), "most": (50, 30, 90)}
QUANTILES = [-2.0, 1.0]


@pytest.mark.parametrize("quantile", QUANTILES)
@pytest.mark.parametrize(("lost", "won", "n"), PAIRED.values(), ids=PAIRED)
def test_paired_bounds_are_where_the_score_is_the_quantile(lost: int, won: int, n: int, quantile: float) -> None:
    change = PairedRates(lost, won, n).bound(quantile)

    def loss(share: float) -> float:
        return -log_likelihood([lost, won, n - lost - won], [share, share + change, 1 - 2 * share - change])

    span = (max(0.0, -change), (1 - change) / 2)
    share = minimize_scalar(loss, bounds=span, method="bounded", options={"xatol": 1e-12}).x
    error = np.sqrt((2 * share + change - change**2) / n)
    assert ((won - lost) / n - change) / error == pytest.approx(-quantile, abs=2e-3)


ENDS = {"all lost": (5, 0, 5, -1.96, -1.0), "all won": (0, 5, 5, 1.96, 1.0)}


@pytest.mark.parametrize(("lost", "won", "n", "quantile", "wanted"), ENDS.values(), ids=ENDS)
def test_bounds_end_with_the_range_of_changes(lost: int, won: int, n: int, quantile: float, wanted: float) -> None:
    assert PairedRates(lost, won, n).bound(quantile) == wanted
    assert PairedRates(lost, won, n).bound(-quantile) * wanted < 1 - 1 / n


def test_bounds_by_hand() -> None:
    # Nothing changed: the score n d^2 = z^2 (|d| - d^2) has the root z^2 / (n + z^2).
    z = float(norm.ppf(0.95))
    assert PairedRates(0, 0, 100).bound(-z) == pytest.approx(-(z**2) / (100 + z**2))
