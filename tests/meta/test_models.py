import json

import numpy as np
import pandas as pd
import pytest

from gradscore.config.schema import MetaConfig
from gradscore.errors import EvaluationError, StoreError
from gradscore.evaluation.metrics import auroc
from gradscore.meta.combined import fit_combined_model
from gradscore.meta.models import MetaModel, balanced_weights, fit_distance_model, fit_meta_model

CONFIG = MetaConfig(cv_folds=3, strengths=[0.01, 1.0])


def table(*, seed, positive):
    generator = np.random.default_rng(seed)
    size = len(positive)
    l1 = 10.0 ** (generator.normal(size=size) - 20 + 3 * positive)
    return pd.DataFrame(
        {
            "logit_0": generator.normal(size=size),
            "logit_1": generator.normal(size=size),
            "u/head/mean": l1 * generator.uniform(-1, 1, size),
            "u/head/l1": l1,
            "u/head/l2": l1 * generator.uniform(0.5, 1, size),
        }
    )


TRUTH = np.arange(120) % 4 == 0
FRAME = table(seed=0, positive=TRUTH)
OTHER = table(seed=1, positive=TRUTH)
LOGISTIC = fit_meta_model(FRAME, TRUTH, None, CONFIG)
DISTANCE = fit_distance_model(FRAME[~TRUTH])
COMBINED = fit_combined_model(FRAME, TRUTH, None, CONFIG)
MODELS = {"logistic": LOGISTIC, "distance": DISTANCE, "combined": COMBINED}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_positives_score_higher(model):
    assert auroc(model.decision(OTHER), TRUTH) > 0.9


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_loaded_model_scores_the_same_bits(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = MetaModel.load(tmp_path / "model")
    assert loaded.decision(OTHER).tobytes() == model.decision(OTHER).tobytes()
    assert (loaded.notes, loaded.strongest(3)) == (model.notes, model.strongest(3))


def test_the_combined_score_is_log_odds_and_excesses_of_distance_and_energy():
    scaled, energy = COMBINED.scaled(OTHER)
    offsets = scaled - COMBINED.arrays["location"]
    squared = np.einsum("nd,de,ne->n", offsets, COMBINED.arrays["precision"], offsets)
    means, scales = COMBINED.arrays["means"], COMBINED.arrays["scales"]
    wanted = scaled @ COMBINED.arrays["coefficients"] + COMBINED.arrays["intercept"]
    wanted += np.maximum((np.log(squared) - means[0]) / scales[0], 0)
    wanted += np.maximum((energy - means[1]) / scales[1], 0)
    np.testing.assert_allclose(COMBINED.decision(OTHER), wanted)
    np.testing.assert_allclose(energy, -np.logaddexp(OTHER["logit_0"], OTHER["logit_1"]))


def test_the_linear_part_is_standardised_on_ordinary_samples():
    ordinary = FRAME[~TRUTH]
    scaled, energy = COMBINED.scaled(ordinary)
    odds = COMBINED.decision(ordinary) - COMBINED.excess(scaled, energy).sum(axis=1)
    assert (odds.mean(), odds.std()) == pytest.approx((0, 1), abs=1e-9)
    assert np.corrcoef(odds, LOGISTIC.decision(ordinary))[0, 1] == pytest.approx(1)


def test_far_from_everything_seen_only_the_combined_model_is_sure():
    """Values that no sample had, in a direction that the linear model takes for ordinary."""
    strange = OTHER.assign(**{"u/head/l1": OTHER["u/head/l1"] * 1e-6, "u/head/mean": OTHER["u/head/l1"] * 9e-7})
    assert auroc(np.r_[LOGISTIC.decision(strange), LOGISTIC.decision(FRAME[~TRUTH])], np.arange(210) < 120) < 0.5
    assert auroc(np.r_[COMBINED.decision(strange), COMBINED.decision(FRAME[~TRUTH])], np.arange(210) < 120) > 0.9


UNFIT = {
    "no logits": (FRAME.drop(columns=["logit_0", "logit_1"]), "needs the logits"),
    "three ordinary samples": (FRAME[TRUTH | (np.arange(120) < 5)], "at least 4 ordinary samples, got 3"),
}


@pytest.mark.parametrize(("frame", "message"), UNFIT.values(), ids=UNFIT)
def test_a_combined_model_that_cannot_be_fitted(frame, message):
    with pytest.raises(EvaluationError, match=message):
        fit_combined_model(frame, TRUTH[frame.index], None, CONFIG)


def test_what_separates_the_classes_is_strongest():
    assert {name for name, _ in LOGISTIC.strongest(3)} == {"u/head/l1", "u/head/l2", "u/head/mean"}
    assert DISTANCE.strongest(1) == []


def test_strength_is_the_one_of_least_log_loss():
    losses = LOGISTIC.notes["log_loss"]
    assert str(LOGISTIC.notes["strength"]) == min(losses, key=losses.get)


def test_without_structure_the_strongest_regularisation_is_chosen():
    noise = table(seed=2, positive=np.zeros(120))
    assert fit_meta_model(noise, TRUTH, None, CONFIG).notes["strength"] == 0.01


def test_weights_count_like_copies():
    copies = pd.concat([FRAME, FRAME[TRUTH]], ignore_index=True)
    config = MetaConfig(strengths=[0.1])
    weights = np.where(TRUTH, 2.0, 1.0) * 150 / 120
    repeated = fit_meta_model(copies, np.r_[TRUTH, TRUTH[TRUTH]], None, config)
    weighted = fit_meta_model(FRAME, TRUTH, weights, config)
    assert repeated.strongest(1)[0][0] == weighted.strongest(1)[0][0]


def test_columns_in_another_order_do_not_matter():
    np.testing.assert_allclose(LOGISTIC.decision(OTHER[OTHER.columns[::-1]]), LOGISTIC.decision(OTHER), rtol=1e-12)


def test_a_sample_scores_the_same_in_any_company():
    assert LOGISTIC.decision(OTHER)[7] == LOGISTIC.decision(OTHER.iloc[[7]])[0]


def test_one_positive_sample_is_fitted_without_cross_validation():
    model = fit_meta_model(FRAME, np.arange(120) == 0, None, CONFIG)
    assert (model.notes["strength"], model.notes["log_loss"]) == (0.01, None)


@pytest.mark.parametrize("truth", [np.zeros(120), np.ones(120)], ids=["no positive", "no negative"])
def test_one_class_is_refused(truth):
    with pytest.raises(EvaluationError, match="two classes"):
        fit_meta_model(FRAME, truth, None, CONFIG)


@pytest.mark.parametrize(("target", "weights"), [(TRUTH[:5], None), (TRUTH, np.ones(3))], ids=["target", "weights"])
def test_shapes_that_differ_are_refused(target, weights):
    with pytest.raises(EvaluationError, match="120 rows"):
        fit_meta_model(FRAME, target, weights, CONFIG)


def test_nothing_but_constant_features_is_refused():
    constant = FRAME.assign(**{name: 1.0 for name in FRAME.columns if "/" in name or name.startswith("logit_")})
    with pytest.raises(EvaluationError, match="every feature is constant"):
        fit_meta_model(constant, TRUTH, None, CONFIG)


def test_a_distance_of_one_sample_is_refused():
    with pytest.raises(EvaluationError, match="at least 2"):
        fit_distance_model(FRAME[:1])


def test_a_distance_of_constant_features_is_refused():
    with pytest.raises(EvaluationError, match="constant"):
        fit_distance_model(FRAME.iloc[[0, 0, 0]])


CHANGES = {
    "missing": (FRAME.drop(columns="u/head/l2"), "missing u/head/l2, unexpected none"),
    "unexpected": (FRAME.assign(**{"u/body/l1": 1.0}), "missing none, unexpected u/body/l1"),
}


@pytest.mark.parametrize(("frame", "message"), CHANGES.values(), ids=CHANGES)
def test_columns_that_differ_are_listed(frame, message):
    with pytest.raises(EvaluationError, match=message):
        LOGISTIC.decision(frame)


def test_values_that_are_not_finite_are_named():
    with pytest.raises(EvaluationError, match="'u/head/l1': 120 of 120"):
        LOGISTIC.decision(FRAME.assign(**{"u/head/l1": np.nan}))


def saved(folder):
    LOGISTIC.save(folder)
    return folder / "arrays.safetensors", folder / "model.json"


def test_a_missing_model_is_refused(tmp_path):
    with pytest.raises(StoreError, match="fit-meta"):
        MetaModel.load(tmp_path)


def test_missing_arrays_are_refused(tmp_path):
    saved(tmp_path)[0].unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        MetaModel.load(tmp_path)


def test_changed_arrays_are_refused(tmp_path):
    arrays = saved(tmp_path)[0]
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match="damaged"):
        MetaModel.load(tmp_path)


EDITS = {
    "another schema": ({"schema": 99}, "schema 2, got 99"),
    "unknown kind": ({"kind": "forest"}, "unknown kind"),
    "arrays of another kind": ({"kind": "distance"}, "incomplete"),
    "no inputs": ({"inputs": None}, "incomplete"),
    "inputs that are no names": ({"inputs": [["a"], 1]}, "incomplete"),
    "columns named twice": ({"columns": ["a", "a"]}, "incomplete"),
    "notes that are no mapping": ({"notes": [1]}, "incomplete"),
    "fewer inputs": ({"inputs": ["u/head/l1"]}, "does not fit 1 inputs"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_a_changed_description_is_refused(edit, message, tmp_path):
    description = saved(tmp_path)[1]
    description.write_text(json.dumps(json.loads(description.read_text()) | edit))
    with pytest.raises(StoreError, match=message):
        MetaModel.load(tmp_path)


def test_inputs_that_the_columns_do_not_give_are_named(tmp_path):
    description = saved(tmp_path)[1]
    whole = json.loads(description.read_text())
    whole["inputs"][0] = "u/other/l1"
    description.write_text(json.dumps(whole))
    with pytest.raises(EvaluationError, match="looks at u/other/l1, which its columns do not give"):
        MetaModel.load(tmp_path).decision(FRAME)


@pytest.mark.parametrize("text", ["", "{", "[1]"], ids=["empty", "cut off", "a list"])
def test_a_damaged_description_is_refused(text, tmp_path):
    saved(tmp_path)[1].write_text(text)
    with pytest.raises(StoreError, match="run fit-meta again"):
        MetaModel.load(tmp_path)


def test_balanced_weights():
    weights = balanced_weights([0, 0, 0, 0, 1, 1, 1, 1], ["in", "in", "in", "in", "a", "b", "b", "b"])
    np.testing.assert_allclose(weights, [1, 1, 1, 1, 2, 2 / 3, 2 / 3, 2 / 3])
