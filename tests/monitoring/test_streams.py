"""Betting against p-values: it cannot be won without a change, and is won soon with one."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest

from gradscore.monitoring.changes import CLASSES
from gradscore.monitoring.streams import (
    BETS,
    BINS,
    PATIENCE,
    SAYS,
    Stream,
    _learnt,
    after_window,
    shares_of,
    threshold_of,
)

CALIBRATION = np.random.default_rng(0).normal(size=500)
CHANGES = {
    "higher": lambda random: random.normal(0.4, 1, 3000),
    "lower": lambda random: random.normal(-0.4, 1, 3000),
    "wider": lambda random: random.normal(0, 1.6, 3000),
    "narrower": lambda random: random.normal(0, 0.6, 3000),
    "a twentieth very high": lambda random: np.where(random.random(3000) < 0.05, 5.0, random.normal(size=3000)),
    "a twentieth very low": lambda random: np.where(random.random(3000) < 0.05, -5.0, random.normal(size=3000)),
}


def slow_capital(
    values: np.ndarray, random: np.random.Generator
) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """The same game sample by sample: capital, worth since the best time, that time, and the last of little worth."""
    edges = Stream.of(CALIBRATION).edges
    # Of each gap between the samples, and of the one below all, the place.
    places = [0, *(int(np.searchsorted(edges, each, side="right")) for each in CALIBRATION)]
    draws = random.random(len(values))
    capital, best, since, until = np.zeros(len(SAYS)), np.ones(len(SAYS)), np.zeros(len(SAYS)), np.zeros(len(SAYS))
    cash, totals, came = 1.0, [], np.zeros(16)
    for time, value in enumerate(values):
        place = int(np.searchsorted(edges, value, side="right"))
        above, within = sum(each > place for each in places), places.count(place)
        p = np.array([(above + draws[time] * within) / len(places)])
        places.append(place)
        cell = min(int(16 * p[0]), 15)
        learnt = 0.5 + 0.5 * 16 * (came[cell] + 1) / (came.sum() + 16)
        came = came * (1 - 1 / 500) + (np.arange(16) == cell)
        pays = np.array([*(float(bet.pays(p)[0]) for bet in BETS), learnt])
        stake = PATIENCE / ((time + PATIENCE) * (time + PATIENCE + 1))
        capital, cash = (capital + stake) * pays, cash - stake
        since = np.where(best <= 1, time, since)
        until = np.where(best <= np.exp(3), time, until)
        best = np.maximum(best, 1) * pays
        totals.append(float(cash + capital.mean()))
    return totals, best, since, until


@pytest.mark.parametrize("bet", BETS, ids=[bet.says for bet in BETS])
def test_a_bet_pays_nothing_on_average_and_is_never_lost_whole(bet) -> None:
    mean, _ = quad(lambda p: float(bet.pays(np.array([p]))[0]), 0, 1, epsabs=1e-9, limit=400)
    assert mean == pytest.approx(1, abs=1e-5)
    assert (bet.pays(np.linspace(0, 1, 1001)) > 0).all()


@pytest.mark.parametrize("cut", [0, 50], ids=["one window", "two windows"])
def test_the_capital_is_that_of_the_game_sample_by_sample(cut: int) -> None:
    values, random = np.random.default_rng(1).normal(0.3, 1, 120), np.random.default_rng(2)
    first, before = Stream.of(CALIBRATION).after(values[:cut], random=random)
    stream, after = first.after(values[cut:], random=random)
    log_e = np.concatenate([before, after])
    totals, best, since, until = slow_capital(values, np.random.default_rng(2))
    np.testing.assert_allclose(np.exp(log_e), totals, rtol=1e-9)
    np.testing.assert_allclose(np.exp(stream.log_since), best, rtol=1e-9)
    np.testing.assert_array_equal(stream.since, since)
    np.testing.assert_array_equal(stream.until, until)
    assert stream.log_won == pytest.approx(log_e[-1])


def test_the_bet_that_learns_pays_nothing_on_average_whatever_came_before() -> None:
    recent = np.random.default_rng(0).random(16) * 50
    middles = (np.arange(1600) + 0.5) / 1600
    assert np.mean([_learnt(np.array([p]), recent)[0][0] for p in middles]) == pytest.approx(1)


def test_classes_in_other_shares_are_noticed() -> None:
    random = np.random.default_rng(0)
    usual, now = (random.choice(10, size, p=p) for size, p in ((2000, np.full(10, 0.1)), (2000, np.arange(1, 11) / 55)))
    _, log_e = Stream.of(usual.astype(float)).after(now.astype(float), random=random)
    assert log_e.max() > threshold_of(0.01, 0.1)


def test_ranks_are_uniform_without_a_change() -> None:
    stream = Stream.of(CALIBRATION)
    ranks, counts = stream._p_values(np.random.default_rng(3).normal(size=5000), np.random.default_rng(4))
    assert kstest(ranks, "uniform").pvalue > 0.01
    assert counts.sum() == 5500


@pytest.mark.slow
def test_without_a_change_few_streams_ever_raise_an_alarm() -> None:
    alpha, raised = 0.1, 0
    for seed in range(300):
        random = np.random.default_rng([5, seed])
        values = random.normal(size=2200)
        _, log_e = Stream.of(values[:200]).after(values[200:], random=random)
        raised += int(log_e.max() >= threshold_of(alpha, 1))
    assert raised <= 300 * alpha  # Ville's bound; the chance of more is below one in a thousand at half of it


def test_constant_values_raise_no_alarm() -> None:
    _, log_e = Stream.of(np.ones(100)).after(np.ones(5000), random=np.random.default_rng(0))
    assert log_e.max() < threshold_of(0.01, 1)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("before", [0, 10_000])
def test_a_change_is_found_and_dated(change, before: int) -> None:
    random = np.random.default_rng(6)
    calm, _ = Stream.of(random.normal(size=2000)).after(random.normal(size=before), random=random)
    changed, log_e = calm.after(change(random), random=random)
    found = int(np.flatnonzero(log_e >= threshold_of(0.01, 0.5))[0])
    assert found < 2000
    assert abs(changed.since[changed.leading] - before) < 400


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_begins_in_the_range_that_is_said(change) -> None:
    """About nine times in ten, and the range names two windows at most."""
    held, named = 0, 0
    for seed in range(20):
        random = np.random.default_rng([7, seed])
        values = [random.normal(size=1000) for _ in range(4)] + np.split(change(random), 3)
        streams, before, alarms = {"a": Stream.of(random.normal(size=2000))}, [], []
        for name, each in enumerate(values, 1):
            settings = {"name": str(name), "alpha": 0.01, "seed": seed}
            streams, raised, _ = after_window(streams, {"a": each}, before=before, **settings)
            before, alarms = [*before, SimpleNamespace(name=str(name), samples=1000, not_scored=0)], [*alarms, *raised]
        held += alarms[0].first <= 4001 <= alarms[0].last
        named += alarms[0].since in ("4", "5") and alarms[0].until == "5"
    assert min(held, named) >= 16


def test_bins_hold_equal_counts_but_for_the_ends() -> None:
    values = np.sort(np.random.default_rng(0).normal(size=6400))
    stream = Stream.of(values)
    assert set(values[100::100][: BINS - 1]) <= set(stream.edges.tolist())
    assert stream.counts[6:-6].min() >= 99
    assert stream.counts[6:-6].max() <= 101
    assert stream.counts.sum() == 6400


SHARES = {
    "equal": ("abcd", dict.fromkeys("abcd", 0.25)),
    "with the novelty": (["a", "novelty", "b"], {"a": 0.25, "novelty": 0.5, "b": 0.25}),
    "with all": (["a", "novelty", CLASSES, "b"], {"a": 0.2, "novelty": 0.5, CLASSES: 0.1, "b": 0.2}),
}


@pytest.mark.parametrize(("streams", "wanted"), SHARES.values(), ids=SHARES.keys())
def test_alarms_of_several_streams_share_the_bound(streams, wanted: dict[str, float]) -> None:
    assert shares_of(streams) == wanted
    assert sum(np.exp(-threshold_of(0.01, share)) for share in wanted.values()) == pytest.approx(0.01)


def test_e_values_are_the_largest_that_is_won_times_the_share_of_alpha() -> None:
    streams = {"a": Stream.of(CALIBRATION), "novelty": Stream.of(CALIBRATION), "b": Stream.of(CALIBRATION)}
    usual = np.random.default_rng(1).normal(size=600)
    values = {"a": np.empty(0), "novelty": np.empty(0), "b": np.append(np.full(30, 1.5), usual)}
    settings = {"before": [], "name": "1", "alpha": 0.01, "seed": 0}
    after, alarms, found = after_window(streams, values, **settings)
    assert (found["a"], found["novelty"]) == pytest.approx((np.log10(0.25), np.log10(0.5)))
    assert found["b"] == pytest.approx(np.log10(alarms[0].e_value))
    assert found["b"] > 2 > (after["b"].log_won + np.log(0.25)) / np.log(10)  # it has lost most of it again


def test_a_new_value_falls_into_each_gap_with_the_same_chance() -> None:
    """So the p-values in the middle of what is drawn have a mean of one half over all gaps."""
    known = np.sort(CALIBRATION)
    between = np.concatenate([[known[0] - 1], (known[1:] + known[:-1]) / 2, [known[-1] + 1]])

    class Half:
        def random(self, count: int) -> np.ndarray:
            return np.full(count, 0.5)

    p = [Stream.of(CALIBRATION)._p_values(np.array([each]), Half())[0][0] for each in between]
    assert np.mean(p) == pytest.approx(0.5, abs=1e-12)


CONSTANTS = {"a constant column that grows": (0.0, 5.0), "a constant column that falls": (0.0, -5.0)}


@pytest.mark.parametrize(("usual", "now"), CONSTANTS.values(), ids=CONSTANTS)
def test_a_change_of_a_constant_is_noticed_whichever_way_it_goes(usual: float, now: float) -> None:
    stream = Stream.of(np.full(2500, usual))
    assert stream.after(np.full(2000, now), random=np.random.default_rng(1))[1].max() > np.log(1000)


def test_values_beyond_a_tied_largest_one_are_noticed() -> None:
    usual = np.minimum(np.random.default_rng(0).random(2500), 0.7)
    now = np.where(usual[:2000] == 0.7, 9.0, usual[:2000])
    assert Stream.of(usual).after(now, random=np.random.default_rng(1))[1].max() > np.log(1000)
