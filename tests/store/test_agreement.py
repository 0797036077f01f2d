"""Accuracies at chance, against what guesses do and what permuted labels give."""

import numpy as np
import pytest
from scipy.stats import binomtest

from gradscore.store.agreement import are_in_order, is_at_chance


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


def test_permuted_labels_are_at_chance_although_one_class_kept_its_place() -> None:
    """One of ten classes kept its place and has a few more samples: right in 15 %, which guesses seldom are."""
    labels = np.concatenate([np.arange(500) % 10, np.zeros(30, np.int64)])
    predictions = np.array([0, 2, 3, 4, 5, 6, 7, 8, 9, 1])[labels]
    assert binomtest(80, 530, 0.1, alternative="greater").pvalue < 1 / 1000
    assert (labels == predictions).sum() == 80
    assert is_at_chance(labels, predictions, classes=10)
    assert not are_in_order(labels, predictions, classes=10)


@pytest.mark.parametrize("accuracy", [0.25, 0.4, 0.9])
def test_a_weak_network_has_its_classes_in_order(accuracy: float) -> None:
    labels = np.arange(2000) % 10
    predictions = network(np.random.default_rng(2), labels, classes=10, accuracy=accuracy)
    assert are_in_order(labels, predictions, classes=10)


def test_one_class_for_everything_is_no_order() -> None:
    labels = np.arange(90) % 3
    assert not are_in_order(labels, np.zeros(90, np.int64), classes=3)


def test_classes_without_samples_do_not_count() -> None:
    labels = np.zeros(60, np.int64)
    assert are_in_order(labels, labels, classes=10)
    assert not are_in_order(labels, labels + 1, classes=10)
