"""Conformal p-values against counting by hand and against the exact law of the number of false alarms."""

import math

import numpy as np
import pytest
from scipy.stats import beta, betabinom, kstest

from gradscore.deployment.calibration import p_values, samples_needed, threshold
from gradscore.errors import ConfigError, EvaluationError

GENERATOR = np.random.default_rng

P_VALUES = {
    "above all": ([1, 2, 3], 9.0, 1 / 4),
    "below all": ([1, 2, 3], 0.0, 1.0),
    "between": ([1, 2, 3], 2.5, 2 / 4),
    "tied with one": ([1, 2, 3], 2.0, 3 / 4),
    "tied with all": ([5, 5, 5], 5.0, 1.0),
    "any order": ([3, 1, 2], 2.5, 2 / 4),
    "one sample": ([0], 1.0, 1 / 2),
}


@pytest.mark.parametrize(("calibration", "score", "wanted"), P_VALUES.values(), ids=P_VALUES)
def test_p_values_by_hand(calibration: list[float], score: float, wanted: float) -> None:
    assert p_values(calibration, [score]).tolist() == [wanted]


NEEDED = {0.5: 1, 0.1: 9, 0.05: 19, 0.025: 39, 0.3: 3, 0.01: 99, 0.07: 14}


@pytest.mark.parametrize(("alpha", "wanted"), NEEDED.items())
def test_samples_needed(alpha: float, wanted: int) -> None:
    assert samples_needed(alpha) == wanted
    assert threshold(np.arange(wanted), alpha).rank == 1
    with pytest.raises(
        EvaluationError,
        match=f"needs at least {wanted} correctly predicted calibration samples, got {wanted - 1}; .*in Python",
    ):
        threshold(np.arange(wanted - 1), alpha)


RANKS = {
    "29 of 100, whose float product is below 29": (99, 0.29, 29),
    "57 of 100": (99, 0.57, 57),
    "down": (50, 0.1, 5),
}


@pytest.mark.parametrize(("n", "alpha", "rank"), RANKS.values(), ids=RANKS)
def test_ranks_are_exact(n: int, alpha: float, rank: int) -> None:
    found = threshold(np.arange(n), alpha)
    assert (found.rank, found.value) == (rank, n - rank)


@pytest.mark.parametrize("seed", range(2))
def test_above_the_threshold_is_the_same_as_a_small_p_value(seed: int) -> None:
    generator = GENERATOR(seed)
    calibration = generator.integers(0, 30, 79).astype(float)
    scores = generator.integers(0, 40, 500).astype(float)
    found = threshold(calibration, 0.1)
    assert ((scores > found.value) == (p_values(calibration, scores) * 80 <= 8.0000001)).all()


SPLITS, NEW = 4000, 100
LAWS = {"normal": (19, 0.05, False), "Cauchy": (50, 0.1, True), "normal, many": (200, 0.2, False)}


def false_alarms(n: int, alpha: float, *, heavy: bool, seed: int) -> np.ndarray:
    """How many of `NEW` in-distribution samples are flagged, for each of many simulated calibrations."""
    generator = GENERATOR(seed)
    draw = generator.standard_cauchy if heavy else generator.standard_normal
    calibrations, new = draw((SPLITS, n)), draw((SPLITS, NEW))
    limits = np.array([threshold(row, alpha).value for row in calibrations])
    return (new > limits[:, None]).sum(axis=1)


@pytest.mark.parametrize(("n", "alpha", "heavy"), LAWS.values(), ids=LAWS)
def test_false_alarms_follow_the_exact_law_and_keep_the_bound(n: int, alpha: float, heavy: bool) -> None:
    counts = false_alarms(n, alpha, heavy=heavy, seed=n)
    rank = int(alpha * (n + 1) + 1e-9)
    law = betabinom(NEW, rank, n + 1 - rank)
    error = law.std() / np.sqrt(SPLITS)
    assert law.mean() / NEW <= alpha + 1e-12
    assert counts.mean() < alpha * NEW + 4 * error
    assert counts.mean() == pytest.approx(law.mean(), abs=4 * error)
    assert counts.var() == pytest.approx(law.var(), rel=0.15)


def test_p_values_of_in_dist_samples_are_uniform() -> None:
    generator = GENERATOR(3)
    found = np.concatenate([p_values(generator.normal(size=99), generator.normal(size=1)) for _ in range(2000)])
    jittered = found - generator.uniform(0, 0.01, len(found))
    assert kstest(jittered, "uniform").pvalue > 0.01


def test_ties_never_raise_the_rate() -> None:
    generator = GENERATOR(4)
    rates = [
        (generator.integers(0, 4, 200) > threshold(generator.integers(0, 4, 39), 0.1).value).mean() for _ in range(500)
    ]
    assert np.mean(rates) <= 0.1


def test_the_realised_rate_is_a_beta_interval() -> None:
    found = threshold(np.arange(100.0), 0.05)
    low, high = found.realised_rate()
    assert beta.cdf([low, high], 5, 96) == pytest.approx([0.05, 0.95])


def test_the_chance_of_so_many_false_alarms_counts_orders_of_all_samples() -> None:
    """Each place of 12 new samples among 19 old ones is as likely; those above the 3rd largest old one are flagged."""
    n, new = 19, 12
    orders = [math.comb(x + 2, x) * math.comb(n - 3 + new - x, new - x) / math.comb(n + new, new) for x in range(13)]
    found = threshold(np.arange(float(n)), 0.15)
    assert (found.rank, sum(orders)) == (3, pytest.approx(1))
    assert [found.chance_of(x, new) for x in range(13)] == pytest.approx([sum(orders[x:]) for x in range(13)])


BAD = {
    "alpha 0": (lambda: threshold([1.0], 0.0), "between 0 and 1, got 0"),
    "alpha 1": (lambda: threshold([1.0], 1.0), "between 0 and 1, got 1"),
    "not finite": (lambda: threshold([1.0, np.nan], 0.5), "1 of 2 are not finite"),
    "score not finite": (lambda: p_values([1.0], [np.inf]), "scores: 1 of 1 are not finite"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input(call, message: str) -> None:
    with pytest.raises((ConfigError, EvaluationError), match=message):
        call()
