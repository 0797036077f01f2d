import numpy as np
import pandas as pd
import pytest
from packages import write_package
from sklearn.base import clone

from gradscore.errors import EvaluationError
from gradscore.meta.inputs import logarithmic, meta_inputs
from gradscore.meta.scaling import RobustLogScaler
from gradscore.statistics import STATISTICS

FRAME = pd.DataFrame(
    {
        "sample_id": ["a", "b"],
        "logit_0": [0.0, 2.0],
        "logit_1": [0.0, -1.0],
        "u/conv/max": [3.0, 0.0],
        "u/conv/min": [-1.0, 0.0],
        "u/conv/mean": [-0.5, 0.0],
        "u/conv/l1": [4.0, 0.0],
        "u/conv/l2": [2.0, 0.0],
        "u/head/l1": [8.0, 1.0],
    }
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("u/conv/l2:l1", [0.5, 0.0]),
        ("u/conv/max:l1", [0.75, 0.0]),
        ("u/conv/min:l1", [0.25, 0.0]),
        ("u/conv/mean:l1", [-0.125, 0.0]),
        ("u/conv/l1:last", [0.5, 0.0]),
        ("u/conv/max", [3.0, 0.0]),
        ("score/max_logit", [0.0, -2.0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inputs_hold_features_shapes_and_scores(name, expected):
    assert meta_inputs(FRAME)[name].tolist() == expected


def test_statistics_that_are_not_there_are_not_loaded(tmp_path, monkeypatch):
    points = {"gradscore.statistics": {"never": "NEVER"}}
    monkeypatch.syspath_prepend(str(write_package(tmp_path, "unloadable", "import not_there", points)))
    monkeypatch.setattr(STATISTICS, "_outside", None)
    assert "never" in STATISTICS
    assert "u/conv/l2:l1" in meta_inputs(FRAME)


def test_last_group_has_no_ratio_to_itself():
    assert "u/head/l1:last" not in meta_inputs(FRAME)


def test_only_magnitudes_are_logarithmic():
    assert logarithmic(["u/conv/mean:l1", "score/msp", "u/conv/l1", "u/conv/min:l1"]).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_inputs_without_features_and_logits_are_refused():
    with pytest.raises(EvaluationError, match="got neither"):
        meta_inputs(FRAME[["sample_id"]])


def test_magnitudes_are_scaled_in_decades_around_the_median():
    scaler = RobustLogScaler().fit([[1e-20], [-1e-10], [1.0], [1e10], [1e20]])
    spread = 20 / 1.3489795003921634
    np.testing.assert_allclose(scaler.transform([[1.0], [-1e10], [1e-20]])[:, 0], [0, 10 / spread, -20 / spread])


def test_zero_lies_one_decade_below_the_smallest_magnitude():
    scaler = RobustLogScaler().fit([[0.0], [1e-3], [1.0]])
    assert scaler.floor_ == pytest.approx([1e-4])
    assert scaler.transform([[0.0]]) == scaler.transform([[1e-9]])


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


def test_centre_and_spread_are_those_of_the_ordinary_samples():
    values = np.array([[-1.0], [0.0], [1.0], [50.0], [60.0]])
    alone = RobustLogScaler(logarithmic=[False]).fit(values[:3])
    marked = RobustLogScaler(logarithmic=[False]).fit(values, [0, 0, 0, 1, 1])
    assert (marked.centre_, marked.spread_) == (alone.centre_, alone.spread_)


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


def noisy(seed):
    """Means that are rounding, and a statistic that is one half of another up to rounding."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(seed)
    level = rng.lognormal(size=200)
    columns = {
        "u/head/mean": 1e-8 * level * noise.standard_normal(200),
        "u/head/std": level,
        "u/head/min": -level * (0.5 + 1e-8 * noise.standard_normal(200)),
        "u/head/l1": level,
    }
    return pd.DataFrame(columns)


def test_rounding_does_not_reach_the_inputs():
    one, other = meta_inputs(noisy(1)), meta_inputs(noisy(2))
    scaler = RobustLogScaler(logarithmic(list(one.columns))).fit(one)
    np.testing.assert_allclose(scaler.transform(other), scaler.transform(one), atol=1e-6)
    assert (one["u/head/mean:l1"] == 0).all()


def test_means_count_from_where_rounding_ends():
    frame = pd.DataFrame(
        {"u/conv/mean": [3e-5, -2e-5, 1e-6], "u/conv/std": [1.0, 1.0, 1.0], "u/conv/l1": [1.0, 1.0, 1.0]}
    )
    found = meta_inputs(frame)
    np.testing.assert_allclose(found["u/conv/mean"], [3e-5, -2e-5, 1e-5])
    np.testing.assert_allclose(found["u/conv/mean:l1"], [2e-5, -1e-5, 0])
