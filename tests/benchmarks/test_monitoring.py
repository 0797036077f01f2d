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
