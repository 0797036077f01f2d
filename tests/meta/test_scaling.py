import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from gradscore.errors import EvaluationError
from gradscore.meta.inputs import logarithmic
from gradscore.meta.scaling import RobustLogScaler
from gradscore.statistics import STATISTICS, Statistic


def test_only_magnitudes_are_logarithmic():
    assert logarithmic(["u/conv/mean:l1", "score/msp", "u/conv/l1", "u/conv/min:l1"]).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_magnitudes_are_scaled_in_decades_around_the_median():
    scaler = RobustLogScaler().fit([[1e-20], [-1e-10], [1.0], [1e10], [1e20]])
    spread = 20 / 1.3489795003921634
    np.testing.assert_allclose(scaler.transform([[1.0], [-1e10], [1e-20]])[:, 0], [0, 10 / spread, -20 / spread])


def test_zero_lies_one_decade_below_the_smallest_magnitude():
    scaler = RobustLogScaler().fit([[0.0], [1e-3], [1.0]])
    assert scaler.floor_ == pytest.approx([1e-4])
    assert scaler.transform([[0.0]]) == scaler.transform([[1e-9]])


def test_the_ratio_of_any_signed_statistic_keeps_its_sign(monkeypatch):
    with_sign = Statistic(summary="a middle", value=lambda moments: moments.mean, ratio=1.0, signed=True)
    monkeypatch.setitem(STATISTICS._entries, "midrange", with_sign)
    found = logarithmic(["u/conv/midrange:l1", "u/conv/midrange", "u/conv/l2:l1", "u/conv/l1:last"])
    assert found.tolist() == [False, True, True, True]


def test_signed_columns_keep_their_sign():
    scaler = RobustLogScaler(logarithmic=[False]).fit([[-1.0], [0.0], [1.0]])
    assert scaler.transform([[-1.0]]) == -scaler.transform([[1.0]])


@pytest.mark.parametrize("column", [[0.0, 0.0, 0.0], [0.1, 0.1, 0.1], [1e300, 1e300, 1e300]], ids=str)
def test_constant_columns_become_zero(column):
    scaler = RobustLogScaler().fit(np.array(column)[:, None])
    assert scaler.transform([[5.0], [1e-5]]).tolist() == [[0.0], [0.0]]


def test_spread_falls_back_to_the_standard_deviation():
    scaler = RobustLogScaler(logarithmic=[False]).fit([[0.0]] * 9 + [[10.0]])
    assert scaler.spread_ == pytest.approx([3.0])


def test_values_far_out_are_clipped():
    scaler = RobustLogScaler(logarithmic=[False]).fit([[-1.0], [0.0], [1.0]])
    assert scaler.transform([[1e9], [-1e9]]).tolist() == [[10.0], [-10.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_and_counted(value):
    table = pd.DataFrame({"good": [1.0, 2.0, 3.0], "u/conv/l1": [1.0, value, value]})
    with pytest.raises(EvaluationError, match=r"'u/conv/l1': 2 of 3 samples"):
        RobustLogScaler().fit(table)


def test_another_number_of_columns_is_refused():
    with pytest.raises(EvaluationError, match="wanted 1 columns as fitted, got 2"):
        RobustLogScaler().fit([[1.0]]).transform([[1.0, 2.0]])


def test_no_sample_is_refused():
    with pytest.raises(EvaluationError, match="at least one sample"):
        RobustLogScaler().fit(np.zeros((0, 2)))


def test_can_be_cloned():
    assert clone(RobustLogScaler(logarithmic=[True], limit=3.0)).get_params() == {"logarithmic": [True], "limit": 3.0}
