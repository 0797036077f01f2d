"""Baselines of benchmarks/monitoring.py against examples worked by hand."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("monitoring_benchmark", FOLDER / "monitoring.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))  # for its neighbour `pages`
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def samples(benchmark: ModuleType, margins: list[float], right: list[int]):
    """Two classes, of which the first is predicted by so much."""
    logits = np.array([[margin, 0.0] for margin in margins])
    correct = np.array(right, dtype=np.float64)
    return benchmark.Samples({}, correct, 1 - np.array(right), np.empty(0), np.empty(0), logits)


def test_the_temperature_makes_labels_most_likely(benchmark: ModuleType) -> None:
    """Three of four are right at a margin of 4: the probability is 3/4 where 4 / T = log 3."""
    calibration = samples(benchmark, [4, 4, 4, 4], [1, 1, 1, 0])
    assert benchmark.temperature(calibration.logits, calibration.label) == pytest.approx(4 / np.log(3), rel=1e-5)


@pytest.mark.parametrize("score", ["largest_probability", "negative_entropy"])
def test_the_share_above_the_threshold_is_the_accuracy(benchmark: ModuleType, score: str) -> None:
    """One of four calibration samples is wrong, so one is below the threshold, which lies at the margin of 2."""
    calibration = samples(benchmark, [3, 1, 4, 2], [1, 1, 0, 1])
    estimate = benchmark.atc(calibration, getattr(benchmark, score))
    assert estimate(calibration) == 0.75
    assert estimate(samples(benchmark, [0.5, 1.5, 2.5, 9, 1.9], [0] * 5)) == 0.4


def test_the_two_scores_order_samples_otherwise(benchmark: ModuleType) -> None:
    """Half and half is less confident than .55, .225 and .225, whose entropy is 1.00 against log 2 = .69."""
    logits = np.log([[0.5, 0.5 - 1e-12, 1e-12], [0.55, 0.225, 0.225]])
    np.testing.assert_allclose(benchmark.largest_probability(logits), [0.5, 0.55])
    np.testing.assert_allclose(benchmark.negative_entropy(logits), [-np.log(2), -1.00002], atol=1e-4)


def test_labels_are_dealt_out_where_they_cost_least(benchmark: ModuleType) -> None:
    """Two labels of each class: the sample with .6 for the first gives way to those with .9 and .8."""
    logits = np.log([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]])
    costs = benchmark.transport_costs(logits, np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(costs, [0.1, 0.6, 0.2, 0.1])


def test_transport_estimates_are_one_less_the_mean_cost_and_a_share_below_a_threshold(benchmark: ModuleType) -> None:
    """Labels come half and half in calibration; of a window with .9, .9, .9 and .1 for the first, one is dealt wrongly.

    Calibration costs are .1 and, once in four, .9; the accuracy of .75 puts the threshold between them.
    """
    high = float(np.log(9))
    logits = np.array([[high, 0.0], [high, 0.0], [high, 0.0], [0.0, high]])
    made = benchmark.Samples(
        {}, np.array([1.0, 1, 0, 1]), np.array([0, 0, 1, 1]), np.empty(0), np.empty(0), logits
    )  # three of four are right, so that the temperature is not 1
    scale = benchmark.temperature(made.logits, made.label)
    p = 1 / (1 + np.exp(-high / scale))
    assert benchmark.transport(made, threshold=False)(made) == pytest.approx((3 * p + 1 - p) / 4)
    assert benchmark.transport(made, threshold=True)(made) == 0.75


def test_a_fall_of_the_confidence_is_one_of_the_accuracy(benchmark: ModuleType) -> None:
    made = samples(benchmark, [4, 4, 4, 4], [1, 1, 1, 0])  # at its temperature the confidence is 3/4
    lower = samples(benchmark, [0, 0, 4, 4], [1, 1, 1, 0])  # two of them at 1/2
    estimate = benchmark.difference_of_confidences(made)
    assert estimate(made) == pytest.approx(0.75)
    assert estimate(lower) == pytest.approx(0.75 - 0.125, abs=1e-6)


def test_calibrated_probabilities_are_shares_of_the_class(benchmark: ModuleType) -> None:
    """At a margin of 4 three of four are of the first class, at 0 one of two."""
    logits = np.array([[4.0, 0]] * 4 + [[0.1, 0]] * 2)
    label = np.array([0, 0, 0, 1, 0, 1])
    made = benchmark.Samples({}, 1.0 - label, label, np.empty(0), np.empty(0), logits)
    assert benchmark.calibrated(made)(made) == pytest.approx((4 * 0.75 + 2 * 0.5) / 6)
