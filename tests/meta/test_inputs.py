"""What meta models look at: names, groups, scale, and what is stored."""

import json

import numpy as np
import pandas as pd
import pytest
from meta_tables import AUGMENTATION, make_inputs, make_table
from safetensors.numpy import load_file
from scipy.stats import norm

from gradscore.errors import EvaluationError, StoreError
from gradscore.meta import DESCRIPTION, MetaInputs, RecomputedRows, group_of, write_files
from gradscore.meta import inputs as module
from gradscore.meta.inputs import ARRAYS, FeatureColumns, Scaling, logarithmic
from gradscore.statistics import STATISTICS, Statistic

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

SHAPES = {
    "u/conv/l2:l1": [0.5, 0.0],
    "u/conv/max:l1": [0.75, 0.0],
    "u/conv/min:l1": [0.25, 0.0],
    "u/conv/mean:l1": [-0.125, 0.0],
    "u/conv/l1:last": [0.5, 0.0],
    "u/conv/max": [3.0, 0.0],
}


def gradient_inputs(frame):
    features = FeatureColumns(frame.columns)
    return pd.DataFrame(features.gradient_inputs(frame), columns=features.gradients)


@pytest.mark.parametrize(("name", "wanted"), SHAPES.items(), ids=SHAPES)
def test_gradients_give_features_and_shapes(name, wanted):
    assert gradient_inputs(FRAME)[name].tolist() == wanted


def test_neither_features_nor_logits_are_refused():
    with pytest.raises(EvaluationError, match="got neither"):
        gradient_inputs(FRAME[["sample_id"]])


def noisy(seed):
    """As a network in float32 gives it: means that are rounding, and a minimum that is half of L1 up to rounding."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(seed)
    level = rng.lognormal(size=200)
    columns = {
        "u/head/mean": 1e-8 * level * noise.standard_normal(200),
        "u/head/min": -level * (0.5 + 1e-8 * noise.standard_normal(200)),
        "u/head/max": level * rng.uniform(0.5, 0.9, 200) * (1 + 1e-7 * noise.standard_normal(200)),
        "u/head/l1": level,
    }
    return pd.DataFrame({"logit_0": level, "logit_1": -level, **columns})


FLOAT32, BFLOAT16 = 2**-23, 2**-7
RATIOS_OF_ROUNDING = ["u/head/min:l1", "u/head/mean:l1"]


def twice(samples=16, unit=FLOAT32):
    return RecomputedRows(noisy(1)[:samples], noisy(2)[:samples], unit)


@pytest.mark.parametrize("samples", [2, 5, 16])
def test_inputs_that_come_out_otherwise_are_left_out(samples, tmp_path):
    inputs = make_inputs(noisy(1), twice=twice(samples))
    assert inputs.left_out == RATIOS_OF_ROUNDING
    write_files(tmp_path, inputs.files())
    assert MetaInputs.load(tmp_path).left_out == RATIOS_OF_ROUNDING
    assert {"u/head/max", "u/head/min", "u/head/max:l1", "u/head/l1", "baseline/msp"} <= set(inputs.names)
    np.testing.assert_allclose(inputs.scaled(noisy(3)), inputs.scaled(noisy(1)), atol=1e-4)


def test_the_energy_of_log_probabilities_is_rounding_also_where_they_come_out_the_same():
    logits = np.random.default_rng(0).normal(0, 3, (200, 3)).astype(np.float32)
    log_p = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float64)
    frame = pd.DataFrame({f"logit_{place}": values for place, values in enumerate(log_p.T)})
    same = RecomputedRows(frame[:16], frame[:16], FLOAT32)
    assert make_inputs(frame, twice=same).left_out == ["baseline/energy"]
    assert make_inputs(frame + 5.0 * logits[:, :1], twice=same).left_out == []


def test_samples_that_are_not_finite_say_nothing_of_rounding():
    seen = twice(3)
    seen.again.loc[0, "u/head/max"] = np.inf
    assert make_inputs(noisy(1), twice=seen).left_out == RATIOS_OF_ROUNDING


def test_one_sample_of_many_says_nothing_against_an_input():
    """A value that happens to be nearly zero there, which is rounding in no other sample."""
    seen = twice(16)
    seen.again.loc[3, "u/head/max"] *= 2
    assert "u/head/max" in make_inputs(noisy(1), twice=seen).names


def saturated(seed):
    """One half but for rounding in nine samples of ten, and something else in the tenth."""
    noise, told = np.random.default_rng(seed), np.random.default_rng(0).uniform(0.3, 0.4, 200)
    values = np.where(np.arange(200) % 10 == 0, told, 0.5 + 1e-8 * noise.standard_normal(200))
    return noisy(seed).assign(**{"u/head/max": values})


def test_what_tells_of_a_few_samples_alone_is_kept_and_does_not_move():
    inputs = make_inputs(saturated(1), twice=RecomputedRows(saturated(1)[:16], saturated(2)[:16], FLOAT32))
    place = inputs.names.index("u/head/max")
    first, second = (inputs.scaled(saturated(seed))[:, place] for seed in (1, 3))
    assert np.quantile(np.abs(first - second), 0.9) < 3e-3
    assert np.abs(first[::10]).min() > 1


def in_bfloat16():
    """Everything moves by a hundredth; what is rounding moves by all that it has."""
    again = noisy(2)
    again["u/head/max"] *= 1 + BFLOAT16 * np.random.default_rng(3).uniform(-1, 1, 200)
    return again


def test_coarse_numbers_are_not_taken_for_rounding():
    inputs = make_inputs(noisy(1), twice=RecomputedRows(noisy(1), in_bfloat16(), BFLOAT16))
    assert inputs.left_out == RATIOS_OF_ROUNDING


def test_what_is_coarse_in_float32_is_rounding():
    inputs = make_inputs(noisy(1), twice=RecomputedRows(noisy(1), in_bfloat16(), FLOAT32))
    assert inputs.left_out == ["u/head/max", "u/head/max:l1", *RATIOS_OF_ROUNDING]


def test_only_rounding_is_refused():
    one, other = (noisy(seed)[["logit_0", "logit_1", "u/head/mean", "u/head/l1"]] for seed in (1, 2))
    same = {"logit_0": 0.0, "logit_1": 0.0, "u/head/l1": 1.0}
    with pytest.raises(EvaluationError, match="every feature is constant or rounding"):
        make_inputs(one.assign(**same), twice=RecomputedRows(one.assign(**same), other.assign(**same), FLOAT32))


def test_means_are_looked_at_over_l1():
    frame = pd.DataFrame({"u/conv/mean": [3e-5, -2e-5], "u/conv/l1": [1.0, 2.0], "u/head/mean": [1.0, 2.0]})
    found = gradient_inputs(frame)
    assert found["u/conv/mean:l1"].tolist() == [3e-5, -1e-5]
    assert list(found) == ["u/conv/l1", "u/head/mean", "u/conv/mean:l1"]


GROUPS = {
    "u/conv/l1": "gradients",
    "u/conv/l2:l1": "gradients",
    "baseline/msp": "logits",
    "baseline/react": "penultimate",
    "baseline/knn": "neighbours",
    "baseline/class_knn_1": "neighbours",
    "baseline/augmentations_features": "augmentations",
    "baseline/msp@augmentations": "augmentations",
    "baseline/knn@augmentations": "augmentations",
}


@pytest.mark.parametrize(("name", "group"), GROUPS.items(), ids=GROUPS)
def test_groups(name, group):
    assert group_of(name) == group


IN_DIST = make_table(seed=0, positive=np.zeros(100), augmentation=True)
NEW = make_table(seed=1, positive=np.arange(40) % 4 == 0, augmentation=True)
INPUTS = make_inputs(IN_DIST, augmentation=True)


def column(name, frame=NEW):
    return INPUTS.scaled(frame)[:, INPUTS.names.index(name)]


def test_a_magnitude_is_in_deviations_of_the_in_dist_samples_on_a_scale_of_decades():
    decades, in_dist = np.log10(NEW["u/head/l1"]), np.log10(IN_DIST["u/head/l1"])
    low, centre, high = np.quantile(in_dist, [0.25, 0.5, 0.75])
    scale = (high - low) / (2 * norm.ppf(0.75))
    np.testing.assert_allclose(column("u/head/l1"), np.clip((decades - centre) / scale, -10, 10), rtol=1e-12)


def test_a_baseline_is_in_deviations_as_it_is():
    energy = {
        name: -np.logaddexp(table["logit_0"], table["logit_1"]) for name, table in (("fit", IN_DIST), ("new", NEW))
    }
    low, centre, high = np.quantile(energy["fit"], [0.25, 0.5, 0.75])
    scale = (high - low) / (2 * norm.ppf(0.75))
    np.testing.assert_allclose(column("baseline/energy"), np.clip((energy["new"] - centre) / scale, -10, 10), rtol=1e-9)


def test_baselines_that_are_inputs_are_there_and_no_others():
    scores = [name.removeprefix("baseline/") for name in INPUTS.names if name.startswith("baseline/")]
    assert scores == INPUTS.baselines.inputs
    assert "vim" not in scores
    assert {"knn", "msp@augmentations", "augmentations_features", "mahalanobis"} <= set(scores)


def test_neighbours_of_a_sample_of_the_bank_are_others():
    """The rows that were fitted on are known by their content."""
    assert (INPUTS.baseline_scores(IN_DIST)["knn_1"] > 0).all()
    unknown = IN_DIST.drop(columns="content_hash")
    np.testing.assert_allclose(INPUTS.baseline_scores(unknown)["knn_1"], 0, atol=1e-3)


def test_blocks_change_nothing(monkeypatch):
    whole, scores = INPUTS.scaled(NEW), INPUTS.baseline_scores(NEW)
    monkeypatch.setattr(module, "ROWS_AT_A_TIME", 7)
    np.testing.assert_allclose(INPUTS.scaled(NEW), whole, rtol=1e-9, atol=1e-12)
    pd.testing.assert_frame_equal(pd.DataFrame(INPUTS.baseline_scores(NEW)), pd.DataFrame(scores), rtol=1e-9)


def test_blocks_are_no_larger(monkeypatch):
    """What is held at a time besides the inputs themselves is a block."""
    seen = []

    outputs = FeatureColumns.outputs

    def spied(features, frame):
        seen.append(len(frame))
        return outputs(features, frame)

    monkeypatch.setattr(module, "ROWS_AT_A_TIME", 16)
    monkeypatch.setattr(FeatureColumns, "outputs", spied)
    INPUTS.scaled(NEW)
    assert seen == [16, 16, 8]


def test_no_rows_have_no_inputs():
    assert INPUTS.scaled(NEW.iloc[:0]).shape == (0, len(INPUTS.names))
    assert list(INPUTS.baseline_scores(NEW.iloc[:0])) == INPUTS.baselines.names


def test_known_baselines_are_not_computed_again(monkeypatch):
    scores, whole = INPUTS.baseline_scores(NEW), INPUTS.scaled(NEW)
    monkeypatch.setattr(MetaInputs, "baseline_scores", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(INPUTS.scaled(NEW, scores), whole)


def test_rows_are_known_by_what_is_computed_of_them(monkeypatch):
    """By parts that stay in the cache as all at once."""
    known, whole = (INPUTS.gradient_inputs(NEW), INPUTS.baseline_scores(NEW)), INPUTS.scaled(NEW)
    monkeypatch.setattr(module, "_ROWS_IN_CACHE", 7)
    np.testing.assert_array_equal(INPUTS.of_known(*known), whole)


def test_columns_in_another_order_do_not_matter():
    """Neither that of the logits nor which group comes last."""
    np.testing.assert_array_equal(INPUTS.scaled(NEW[NEW.columns[::-1]]), INPUTS.scaled(NEW))


CHANGES = {
    "missing": (NEW.drop(columns="u/head/l2"), "missing u/head/l2, unexpected none"),
    "unexpected": (NEW.assign(**{"u/other/l1": 1.0}), "missing none, unexpected u/other/l1"),
    "an augmentation is missing": (
        NEW[[name for name in NEW.columns if not name.startswith("augmentation/")]],
        rf"missing augmentation/{AUGMENTATION}/logit_0, .* and 3 more, unexpected none",
    ),
    "not finite": (NEW.assign(**{"u/head/l1": np.nan}), "'u/head/l1': 40 of 40"),
    "logits that are not finite": (NEW.assign(logit_0=np.inf), "not finite"),
}


@pytest.mark.parametrize(("frame", "message"), CHANGES.values(), ids=CHANGES)
def test_tables_that_differ_are_refused(frame, message):
    with pytest.raises(EvaluationError, match=message):
        INPUTS.scaled(frame)


def test_nothing_but_constants_are_refused():
    constant = pd.concat([IN_DIST.iloc[[0]]] * 5, ignore_index=True).assign(content_hash=list("abcde"))
    with pytest.raises(
        EvaluationError, match=r"every feature is constant; .*: the network gives all 5 of them the same"
    ):
        make_inputs(constant, augmentation=True)


def test_a_round_trip_gives_the_same_bits(tmp_path):
    write_files(tmp_path, INPUTS.files())
    loaded = MetaInputs.load(tmp_path)
    assert (loaded.names, loaded.columns) == (INPUTS.names, INPUTS.columns)
    asked = pd.concat([NEW, IN_DIST], ignore_index=True)
    assert loaded.scaled(asked).tobytes() == INPUTS.scaled(asked).tobytes()
    assert loaded.fingerprint == INPUTS.fingerprint


def test_arrays_that_are_alike_are_stored_once(tmp_path):
    write_files(tmp_path, INPUTS.files())
    stored = load_file(tmp_path / ARRAYS)
    learned = INPUTS.scaling.arrays() | INPUTS.baselines.arrays()
    kinds = {(each.shape, str(each.dtype), each.tobytes()) for each in learned.values()}
    assert len(stored) == len(kinds) < len(learned)


def test_the_fingerprint_is_that_of_what_was_learned():
    again = make_inputs(IN_DIST, augmentation=True)
    assert again.fingerprint == INPUTS.fingerprint
    assert make_inputs(IN_DIST.iloc[1:], augmentation=True).fingerprint != INPUTS.fingerprint
    renamed = make_inputs(IN_DIST.assign(content_hash=[f"other {place}" for place in range(100)]), augmentation=True)
    assert renamed.fingerprint == INPUTS.fingerprint


EDITS = {
    "no names": ({"names": None}, "names: "),
    "an unknown baseline": ({"baselines": ["msp", "not there"]}, "'not there' unknown here"),
    "an array that is none": ({"same": {"scale": "not there"}}, "'not there'"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_a_changed_description_is_refused(edit, message, tmp_path):
    write_files(tmp_path, INPUTS.files())
    path = tmp_path / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(StoreError, match=message):
        MetaInputs.load(tmp_path)


def magnitudes(values):
    return pd.DataFrame(values, columns=["u/conv/l1"])


def scaled(scaler, table):
    return scaler.scaled(table.to_numpy(), list(table), logarithmic(list(table)))


def signed(values):
    return pd.DataFrame(values, columns=["baseline/msp"])


def test_magnitudes_are_scaled_in_decades_around_the_median():
    scaler = Scaling.fit(magnitudes([[1e-20], [-1e-10], [1.0], [1e10], [1e20]]))
    scale = 20 / 1.3489795003921634
    np.testing.assert_allclose(
        scaled(scaler, magnitudes([[1.0], [-1e10], [1e-20]]))[:, 0], [0, 10 / scale, -20 / scale]
    )


def test_zero_lies_one_decade_below_the_smallest_magnitude():
    scaler = Scaling.fit(magnitudes([[0.0], [1e-3], [1.0]]))
    assert scaler.floor == pytest.approx([1e-4])
    assert scaled(scaler, magnitudes([[0.0]])) == scaled(scaler, magnitudes([[1e-9]]))


def test_the_ratio_of_any_signed_statistic_keeps_its_sign(monkeypatch):
    with_sign = Statistic(summary="a middle", value=lambda moments: moments.mean, ratio=1.0, signed=True)
    monkeypatch.setitem(STATISTICS._entries, "midrange", with_sign)
    found = logarithmic(["u/conv/midrange:l1", "u/conv/midrange", "u/conv/l2:l1", "u/conv/l1:last"])
    assert found.tolist() == [False, True, True, True]


def test_signed_columns_keep_their_sign():
    scaler = Scaling.fit(signed([[-1.0], [0.0], [1.0]]))
    assert scaled(scaler, signed([[-1.0]])) == -scaled(scaler, signed([[1.0]]))


@pytest.mark.parametrize("column", [[0.0, 0.0, 0.0], [0.1, 0.1, 0.1], [1e300, 1e300, 1e300]], ids=str)
def test_constant_columns_become_zero(column):
    scaler = Scaling.fit(magnitudes(np.array(column)[:, None]))
    assert scaled(scaler, magnitudes([[5.0], [1e-5]])).tolist() == [[0.0], [0.0]]


def test_the_scale_falls_back_to_the_standard_deviation():
    scaler = Scaling.fit(signed([[0.0]] * 9 + [[10.0]]))
    assert scaler.scale == pytest.approx([3.0])


def test_values_far_out_are_clipped():
    scaler = Scaling.fit(signed([[-1.0], [0.0], [1.0]]))
    assert scaled(scaler, signed([[1e9], [-1e9]])).tolist() == [[10.0], [-10.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_and_counted(value):
    table = pd.DataFrame({"good": [1.0, 2.0, 3.0], "u/conv/l1": [1.0, value, value]})
    with pytest.raises(EvaluationError, match=r"'u/conv/l1': 2 of 3 samples"):
        Scaling.fit(table)
