"""Samples of the expected figures that are gone: are they a random part? With error rates by simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import fisher_exact

from gradscore.check.differences import BY_CHANCE, MissingSamples, missing_samples


def samples(classes, correct=1.0, *, start: int = 0) -> pd.DataFrame:
    names = [f"{place:012x}" for place in range(start, start + len(classes))]
    return pd.DataFrame({"correct": correct, "class": classes}, index=pd.Index(names))


def of(counts: list[int]) -> np.ndarray:
    """So many samples of the classes 0, 1, ..."""
    return np.repeat(np.arange(len(counts)), counts)


def test_nothing_is_gone() -> None:
    before = samples(of([20, 20]))
    assert missing_samples(before, before, paired=True, names=None) == MissingSamples(samples=40, gone=0)


def test_a_class_that_is_gone_by_hand() -> None:
    """Of four classes of 20, one is gone: its share fell from a quarter to nothing."""
    before = samples(of([20] * 4))
    found = missing_samples(before, before[before["class"] != 2], paired=True, names=["a", "b", "c", "d"])
    assert (found.samples, found.gone, found.unseen) == (80, 20, 0.25)
    assert found.lacking == ["0 instead of 20 of class c"]


ONE_OF_TWELVE = {"as many as chance leaves": (3, False), "fewer": (10, True)}


@pytest.mark.parametrize(("gone_of_first", "lacks"), ONE_OF_TWELVE.values(), ids=ONE_OF_TWELVE)
def test_the_tail_is_that_of_fisher(gone_of_first: int, lacks: bool) -> None:
    """Of 12 + 48 samples some of the first class and 6 others are gone; three tests: two classes and the errors."""
    before = samples(of([12, 48]))
    now = before.drop(before.index[[*range(gone_of_first), *range(12, 18)]])
    table = [[12 - gone_of_first, 42], [gone_of_first, 6]]
    assert bool(3 * fisher_exact(table, alternative="less").pvalue < BY_CHANCE) is lacks
    assert bool(missing_samples(before, now, paired=True, names=None).lacking) is lacks


def test_errors_that_are_gone_are_no_random_part() -> None:
    correct = np.array([0.0] * 30 + [1.0] * 170)
    before = samples(np.tile(np.arange(2), 100), correct)
    found = missing_samples(before, before.iloc[30:], paired=True, names=None)
    assert found.lacking == ["0 instead of 30 of those that the expected network got wrong"]
    assert found.unseen == pytest.approx(0.15)


def test_other_samples_of_fewer_classes() -> None:
    before, now = samples(of([50] * 4)), samples(of([66, 67, 67]), start=1000)
    found = missing_samples(before, now, paired=False, names=None)
    assert (found.gone, found.lacking, found.unseen) == (200, ["0 instead of 50 of class 3"], 0.25)


def test_other_samples_without_labels_are_not_compared() -> None:
    """Their classes are those that two networks predict."""
    before, now = samples(of([50] * 4), np.nan), samples(of([66, 67, 67]), np.nan, start=1000)
    assert missing_samples(before, now, paired=False, names=None).lacking == []


def test_samples_beyond_the_panel_are_not_gone() -> None:
    """A set that has grown: the panel keeps those with the smallest hashes, and says nothing of larger ones."""
    before = samples(np.arange(2000) % 10)
    before.index = [f"{2 * place:012x}" for place in range(2000)]
    now = samples(np.arange(2000) % 10)
    assert missing_samples(before, now, paired=True, names=None) == MissingSamples(samples=1000, gone=0)


def rate(trials: int, *, count: int, classes: int, gone: float, lost_class: bool) -> float:
    """How often something is lacking: of samples that are gone at random, together with a whole class or not."""
    random = np.random.default_rng(0)
    before = samples(np.arange(count) % classes)
    found = []
    for _ in range(trials):
        kept = random.random(count) >= gone
        kept &= (before["class"] != 0).to_numpy() | (not lost_class)
        found.append(missing_samples(before, before[kept], paired=True, names=None).unseen > 0)
    return float(np.mean(found))


AT_RANDOM = {"few": (100, 10, 0.1), "half": (523, 8, 0.49), "many classes": (1000, 100, 0.3)}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "classes", "gone"), AT_RANDOM.values(), ids=AT_RANDOM)
def test_what_is_gone_at_random_is_seldom_doubted(count: int, classes: int, gone: float) -> None:
    """At most 1 in 100; 500 trials of that rate have more than 12 with a chance of 0.002."""
    assert rate(500, count=count, classes=classes, gone=gone, lost_class=False) <= 12 / 500


WHOLE_CLASSES = {
    "nothing else gone": (100, 10, 0.0, 1.0),
    "a third of the others, too": (200, 10, 0.33, 0.99),
    "half of the others, too": (523, 8, 0.49, 0.999),
    "half of the others of few": (100, 10, 0.49, 0.2),
}


@pytest.mark.parametrize(("count", "classes", "gone", "power"), WHOLE_CLASSES.values(), ids=WHOLE_CLASSES)
def test_a_whole_class_is_seen(count: int, classes: int, gone: float, power: float) -> None:
    """Nearly always, but for ten samples of a class where half of all others are gone as well."""
    assert rate(300, count=count, classes=classes, gone=gone, lost_class=True) >= power


MANY_SMALL = {
    "half of 100 classes of 10": (100, 10, 50),
    "two of five of 1,000 classes of 2": (1000, 2, 400),
    "one of 25 of 1,000 classes of 2": (1000, 2, 40),
    "half of 20 classes of 5": (20, 5, 10),
}


@pytest.mark.parametrize(("classes", "each", "gone"), MANY_SMALL.values(), ids=MANY_SMALL)
def test_small_classes_are_seen_together_where_none_stands_out(classes: int, each: int, gone: int) -> None:
    before = samples(of([each] * classes))
    found = missing_samples(before, before[before["class"] >= gone], paired=True, names=None)
    assert found.lacking == [f"no sample of {gone} of {classes} classes"]
    assert found.unseen == pytest.approx(gone / classes)


@pytest.mark.slow
def test_small_classes_that_are_thinned_at_random_are_not() -> None:
    before = samples(of([2] * 1000))
    seen = [
        missing_samples(before, before.sample(1000, random_state=seed), paired=True, names=None).unseen > 0
        for seed in range(200)
    ]
    assert sum(seen) <= 5  # 1 in 200 is allowed: more than five of 200 come once in 1,000 times
