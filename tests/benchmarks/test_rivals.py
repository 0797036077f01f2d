"""The baselines of benchmarks/monitoring.py that other packages do not have, against numbers worked by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from monitoring import Samples, lines_without, matrix_norm


def window_of(logits: list[list[float]], right: list[int]) -> Samples:
    values = np.array(logits, dtype=float)
    return Samples({}, np.array(right, dtype=float), np.zeros(len(right), np.int64), values, values, values)


def test_mano_of_uncertain_logits_takes_the_taylor_approximation() -> None:
    # 1 + q + q^2 / 2 is 1, 2.5, 5 of the first and 5, 5, 1 of the second: normalised 0, 3/11, 8/11 and 1/2, 1/2, 0.
    window = window_of([[0, 1, 2], [2, 2, 0]], [1, 1])
    assert matrix_norm(window) == pytest.approx((((3 / 11) ** 4 + (8 / 11) ** 4 + 2 / 2**4) / 6) ** 0.25, rel=1e-12)


def test_mano_of_certain_logits_takes_the_softmax() -> None:
    # The cross-entropy to equal probabilities is 10 + log 2. By the Taylor approximation, the last class had all.
    assert matrix_norm(window_of([[0, 0, -30]], [1])) == pytest.approx((2 / 2**4 / 3) ** 0.25, rel=1e-12)


def test_lines_go_through_the_windows_of_other_kinds_without_ood_samples() -> None:
    even, sure = [[2.0, 2.0, 0.0]] * 4, [[0.0, 0.0, 2.0]] * 4
    own, ood = [window_of(sure, [0, 0, 0, 0])], [window_of(even, [0, 0, 0, 0])]
    windows = {
        "fog": own,
        "snow": [window_of(even, [1, 1, 0, 0]), window_of(sure, [1, 1, 1, 0])],
        "ood among them": ood,
    }
    lines = lines_without("fog", windows)
    assert list(lines) == ["gradient norm", "MaNo"]
    for line in lines.values():
        assert [line(own[0]), line(ood[0])] == pytest.approx([0.75, 0.5])
