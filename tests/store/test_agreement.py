"""Accuracies at chance, against what guesses do and what permuted labels give."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

from gradscore.store.agreement import accuracy_in_another_order, is_at_chance


def network(generator: np.random.Generator, labels: np.ndarray, *, classes: int, accuracy: float) -> np.ndarray:
    """Predictions that are right so often, and else any other class."""
    other = (labels + generator.integers(1, classes, size=len(labels))) % classes
    return np.where(generator.random(len(labels)) < accuracy, labels, other)


@pytest.mark.parametrize(("classes", "count"), [(2, 50), (2, 1000), (10, 50), (10, 500)])
def test_guesses_are_at_chance(classes: int, count: int) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(count) % classes
    found = [is_at_chance(labels, generator.integers(0, classes, count), classes=classes) for _ in range(400)]
    assert np.mean(found) > 0.95


# Accuracies that guesses reach less than once in five hundred times.
BETTER = [(2, 50, 37), (2, 70, 48), (2, 1000, 560), (10, 100, 21), (10, 500, 75)]


@pytest.mark.parametrize(("classes", "count", "right"), BETTER)
def test_what_guesses_do_not_reach_is_none(classes: int, count: int, right: int) -> None:
    assert binomtest(right, count, 1 / classes, alternative="greater").pvalue < 1 / 500
    labels = np.arange(count) % classes
    # Right ones in every class, and the wrong ones spread over all others.
    others = (labels + 1 + np.arange(count) // classes % (classes - 1)) % classes
    predictions = np.where(np.arange(count) % count < right, labels, others)
    predictions, labels = (values[np.random.default_rng(0).permutation(count)] for values in (predictions, labels))
    assert (predictions == labels).sum() == right
    assert not is_at_chance(labels, predictions, classes=classes)


def test_permuted_labels_are_told_although_one_class_kept_its_place() -> None:
    """One of ten classes kept its place and has a few more samples: right in 15 %, which guesses seldom are."""
    labels = np.concatenate([np.arange(500) % 10, np.zeros(30, np.int64)])
    predictions = np.array([0, 2, 3, 4, 5, 6, 7, 8, 9, 1])[labels]
    assert binomtest(80, 530, 0.1, alternative="greater").pvalue < 1 / 1000
    assert (labels == predictions).sum() == 80
    assert not is_at_chance(labels, predictions, classes=10)
    assert accuracy_in_another_order(labels, predictions, classes=10) == 1.0


@pytest.mark.parametrize(("classes", "count"), [(2, 100), (3, 60), (10, 200), (100, 400), (100, 2000)])
@pytest.mark.parametrize("accuracy", [0.7, 0.95])
def test_permuted_labels_are_told(classes: int, count: int, accuracy: float) -> None:
    generator = np.random.default_rng(2)
    truth = np.arange(count) % classes
    predictions = network(generator, truth, classes=classes, accuracy=accuracy)
    found = accuracy_in_another_order((truth + 1) % classes, predictions, classes=classes)
    assert found == pytest.approx((truth == predictions).mean(), abs=0.2)


def biased(generator: np.random.Generator, labels: np.ndarray, recalls: list[float]) -> np.ndarray:
    """Predictions that are right so often in each class, and else the first class."""
    return np.where(generator.random(len(labels)) < np.array(recalls)[labels], labels, 0)


def balanced(generator: np.random.Generator, classes: int, count: int, accuracy: float) -> tuple:
    labels = np.arange(count) % classes
    return labels, network(generator, labels, classes=classes, accuracy=accuracy)


def rare(generator: np.random.Generator, shares: list[float], recalls: list[float], count: int) -> tuple:
    labels = generator.choice(len(shares), size=count, p=shares)
    return labels, biased(generator, labels, recalls)


HEALTHY = {
    "two samples a class": (100, lambda generator: balanced(generator, 100, 200, 0.6)),
    "one sample a class": (100, lambda generator: balanced(generator, 100, 100, 0.5)),
    "a thousand classes": (1000, lambda generator: balanced(generator, 1000, 1000, 0.3)),
    "weak": (10, lambda generator: balanced(generator, 10, 2000, 0.2)),
    "rare classes of three": (3, lambda generator: rare(generator, [0.6, 0.25, 0.15], [0.9, 0.4, 0.3], 300)),
    "rare ones of two": (2, lambda generator: rare(generator, [0.7, 0.3], [0.95, 0.45], 50)),
    "one class for everything": (
        10,
        lambda generator: rare(generator, [0.61, *[0.39 / 9] * 9], [1.0, *[0.0] * 9], 400),
    ),
}


@pytest.mark.parametrize(("classes", "draw"), HEALTHY.values(), ids=HEALTHY)
def test_no_other_order_is_seen_where_there_is_none(classes: int, draw: Callable[..., tuple]) -> None:
    generator = np.random.default_rng(3)
    drawn = [draw(generator) for _ in range(20)]
    assert all(accuracy_in_another_order(*pair, classes=classes) is None for pair in drawn)


def test_guesses_are_right_in_no_order() -> None:
    generator = np.random.default_rng(4)
    for classes, count in ((2, 50), (10, 50), (10, 1000), (100, 300)):
        labels = np.arange(count) % classes
        drawn = [generator.integers(0, classes, count) for _ in range(50)]
        found = [accuracy_in_another_order(labels, each, classes=classes) for each in drawn]
        assert sum(each is not None for each in found) <= 1
