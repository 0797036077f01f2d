"""What is said of the meta model against baselines: on the whole, and on each set of a group."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from gradscore.evaluation.records import Record
from gradscore.evaluation.verdicts import Verdict, verdicts

SETS = ("cifar", "dtd", "mnist", "omniglot", "places", "svhn")
SINGLE = ("energy", "knn", "msp")
"""The best of them is `energy` in the mean and on most sets, and `knn` on two."""

WON, EVEN, LOST = (0.02, 0.01, 1e-4), (0.005, 0.01, 0.3), (-0.05, 0.01, 1e-6)
"""Gains: the value, half the width of the interval, and the p-value."""

SLIGHTLY_LOST = (-0.02, 0.019, 0.04)
"""Below zero by itself, but not when three baselines were to choose from."""


def figure(dataset: str, score: str, value: float, *, task: str = "ood") -> Record:
    return Record(
        task=task, dataset=dataset, protocol="leave_one_dataset_out", score=score, metric="auroc", value=value,
        low=value - 0.02, high=value + 0.02, n=1000, n_positive=500,
    )  # fmt: skip


def gain(dataset: str, over: str, found: tuple[float, float, float], *, task: str = "ood") -> Record:
    value, half, p_value = found
    return Record(
        task=task, dataset=dataset, protocol="leave_one_dataset_out", score="chosen", metric=f"auroc_gain_over_{over}",
        value=value, low=value - half, high=value + half, p_value=p_value, n=1000, n_positive=500,
    )  # fmt: skip


def of_set(dataset: str, found: tuple[float, float, float], *, best: str = "energy", task: str = "ood") -> list[Record]:
    """The records of one data set; the meta model gains on the two that are not the best whatever is `found`."""
    areas = [figure(dataset, name, 0.9 if name == best else 0.6, task=task) for name in SINGLE]
    gains = [gain(dataset, name, found if name == best else WON, task=task) for name in SINGLE]
    return [figure(dataset, "chosen", 0.9 + found[0], task=task), *areas, *gains]


def of_group(
    mean: tuple[float, float, float], *, complete: bool = True, **found: tuple[float, float, float]
) -> Verdict:
    """The verdict on six sets: those that are named gain what is given, the others win; on two `knn` is the best."""
    best = {"mnist": "knn", "omniglot": "knn"}
    sets = [each for name in SETS for each in of_set(name, found.get(name, WON), best=best.get(name, "energy"))]
    records = [*sets, *of_set("all (mean)", mean)]
    (verdict,) = verdicts(records, groups={"all": SETS}, complete=complete)
    return verdict


GROUPS = {
    "all won": ({"mean": WON}, "better", {}),
    "two lost": ({"mean": WON, "mnist": LOST, "omniglot": LOST}, "mixed", {"mnist": "worse", "omniglot": "worse"}),
    "one undecided": ({"mean": WON, "dtd": EVEN}, "better", {"dtd": "undecided"}),
    "one below zero by chance among three": ({"mean": WON, "dtd": SLIGHTLY_LOST}, "better", {"dtd": "undecided"}),
    "undecided in the mean": ({"mean": EVEN, "mnist": LOST}, "undecided", {"mnist": "worse"}),
    "worse in the mean": ({"mean": LOST, **dict.fromkeys(SETS, LOST)}, "worse", dict.fromkeys(SETS, "worse")),
    "the strongest not computed": ({"mean": WON, "complete": False}, "provisional", {}),
    "two lost and the strongest not computed": (
        {"mean": WON, "complete": False, "mnist": LOST, "svhn": LOST},
        "mixed",
        {"mnist": "worse", "svhn": "worse"},
    ),
}


@pytest.mark.parametrize(("given", "outcome", "others"), GROUPS.values(), ids=GROUPS)
def test_a_group_is_better_in_the_mean_or_not_and_so_is_each_of_its_sets(given, outcome: str, others: dict) -> None:
    verdict = of_group(**given)
    won = "better" if given.get("complete", True) else "provisional"
    assert (verdict.outcome, verdict.best) == (outcome, "energy")
    assert {each.what: each.outcome for each in verdict.sets} == dict.fromkeys(SETS, won) | others


def test_each_set_is_compared_with_the_baseline_that_is_best_on_it() -> None:
    sets = {each.what: (each.best, each.outcome) for each in of_group(WON, mnist=LOST).sets}
    assert sets["mnist"] == ("knn", "worse")
    assert sets["svhn"] == ("energy", "better")


ALONE = {
    "won": (WON, True, "better"),
    "even": (EVEN, True, "undecided"),
    "lost": (LOST, True, "worse"),
    "won, the strongest not computed": (WON, False, "provisional"),
    "lost, the strongest not computed": (LOST, False, "worse"),
}


@pytest.mark.parametrize("task", ["ood", "misclassification"])
@pytest.mark.parametrize(("found", "complete", "outcome"), ALONE.values(), ids=ALONE)
def test_one_set_is_said_of_alone(found, complete: bool, outcome: str, task: str) -> None:
    (verdict,) = verdicts(of_set("svhn", found, task=task), complete=complete)
    assert (verdict.outcome, verdict.best, verdict.sets) == (outcome, "energy", ())


def test_a_group_of_one_set_is_that_set() -> None:
    (verdict,) = verdicts([*of_set("svhn", WON), *of_set("far (mean)", WON)], groups={"far": ["svhn"]})
    assert (verdict.outcome, verdict.best, verdict.what) == ("better", "energy", "far")


def test_without_a_baseline_nothing_is_compared() -> None:
    (verdict,) = verdicts([figure("svhn", "chosen", 0.9)])
    assert (verdict.outcome, verdict.best) == ("undecided", None)


def test_a_small_gain_over_a_copy_that_chance_puts_first_is_not_called_better() -> None:
    """The gain over the one that came out best is sure; over another, as good on paper, it is not."""
    records = of_set("mnist", WON)
    unsure = gain("mnist", "knn", (0.03, 0.06, 0.3))
    others = [each for each in records if each.metric != unsure.metric]
    (verdict,) = verdicts([*others, unsure])
    assert verdict.gain is not None
    assert verdict.gain.low is not None
    assert (verdict.best, verdict.gain.low > 0, verdict.outcome) == ("energy", True, "undecided")


UNSURE = (0.02, 0.1, 0.7)
"""A larger gain, of which less is known."""

SETTLED = {
    "by the only gain": ({"energy": EVEN}, EVEN, 0.05),
    "by the gain that takes most": ({"energy": EVEN, "knn": UNSURE, "msp": WON}, UNSURE, 0.05),
    "below zero, among three": ({"energy": SLIGHTLY_LOST, "knn": UNSURE, "msp": WON}, SLIGHTLY_LOST, 0.05 / 3),
}


@pytest.mark.parametrize(("gains", "slowest", "level"), SETTLED.values(), ids=SETTLED)
def test_so_many_times_as_many_samples_settle_it_in_four_cases_of_five(
    gains: dict, slowest: tuple, level: float
) -> None:
    areas = [figure("a", name, 0.9 - 0.1 * place) for place, name in enumerate(gains)]
    records = [figure("a", "chosen", 0.9), *areas, *(gain("a", name, found) for name, found in gains.items())]
    (verdict,) = verdicts(records)
    value, half, _ = slowest
    error = half / norm.ppf(0.975) / math.sqrt(verdict.times)
    assert norm.sf(norm.isf(level / 2) - abs(value) / error) == pytest.approx(0.8, abs=1e-9)


def test_no_number_of_samples_settles_what_is_not_ahead_of_all() -> None:
    behind = [figure("a", "chosen", 0.9), figure("a", "energy", 0.9), gain("a", "energy", (0.0, 0.01, 1.0))]
    assert verdicts(behind)[0].times == math.inf
