"""The scale of known samples, by hand."""

import numpy as np

from gradscore.monitoring.scaled import FARTHEST, Scaled

KNOWN = {"confidence": np.array([0.0, 2.0]), "constant": np.array([5.0, 5.0])}


def test_values_are_standard_deviations_from_the_mean_and_a_constant_has_one() -> None:
    scale = Scaled.by(KNOWN, ["confidence", "constant"])
    other = {"confidence": np.array([1.0, 4.0]), "constant": np.array([5.0, 3.0])}
    np.testing.assert_array_equal(scale.of(other), [[0.0, 0.0], [3.0, -2.0]])


def test_what_is_far_counts_as_the_farthest() -> None:
    far = {"confidence": np.array([1e9, -1e9])}
    np.testing.assert_array_equal(Scaled.by(KNOWN, ["confidence"]).of(far), [[FARTHEST], [-FARTHEST]])


def test_without_a_name_there_is_a_row_for_each_sample() -> None:
    assert Scaled.by(KNOWN, []).of(KNOWN).shape == (2, 0)
