"""Meta models: what they score, and what they are on disk."""

import json
from dataclasses import replace

import numpy as np
import pytest
from meta_tables import make_inputs, make_rows, make_table
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from gradscore.errors import EvaluationError, StoreError
from gradscore.evaluation.metrics import auroc
from gradscore.meta import (
    DESCRIPTION,
    MetaModel,
    Penalty,
    add_alarms,
    alarm_weights,
    fit_logistic,
    fit_one_class,
    write_files,
)
from gradscore.meta.inputs import ARRAYS
from gradscore.meta.models import prevalence_shift, probabilities

TRUTH = np.arange(120) % 4 == 0
FRAME, OTHER = make_table(seed=0, positive=TRUTH), make_table(seed=1, positive=TRUTH)
INPUTS = make_inputs(FRAME[~TRUTH])
ROWS = make_rows(INPUTS, FRAME, TRUTH)
LOGISTIC = fit_logistic(INPUTS, ROWS, Penalty(C=0.01, boost=3.0))
ALARMS = add_alarms(LOGISTIC, ROWS, alarm_weights(INPUTS, None))
ONE_CLASS = fit_one_class(INPUTS, ROWS.scaled[~TRUTH])
MODELS = {"logistic": LOGISTIC, "alarms": ALARMS, "one class": ONE_CLASS}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_positives_score_higher(model):
    assert auroc(model.decision(OTHER), TRUTH) > 0.9


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_loaded_model_scores_the_same_bits(model, tmp_path):
    write_files(tmp_path / "model", model.files())
    loaded = MetaModel.load(tmp_path / "model", INPUTS)
    assert loaded.decision(OTHER).tobytes() == model.decision(OTHER).tobytes()
    assert (loaded.kind, loaded.notes) == (model.kind, model.notes)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_table_and_its_scaled_inputs_score_the_same(model):
    np.testing.assert_array_equal(model.of_scaled(INPUTS.scaled(OTHER)), model.decision(OTHER))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_sample_scores_the_same_in_any_company(model, rows):
    parts = [model.decision(OTHER.iloc[start : start + rows]) for start in range(0, len(OTHER), rows)]
    np.testing.assert_array_equal(np.concatenate(parts), model.decision(OTHER))


def test_other_inputs_are_refused(tmp_path):
    write_files(tmp_path, LOGISTIC.files())
    other = make_inputs(FRAME[~TRUTH].iloc[1:])
    with pytest.raises(StoreError, match="fitted on other inputs than lie beside it"):
        MetaModel.load(tmp_path, other)


def saved(folder, model=LOGISTIC):
    write_files(folder, model.files())
    return folder / ARRAYS, folder / DESCRIPTION


DAMAGES = {
    "no model": (DESCRIPTION, lambda _: None, "fit-meta"),
    "no arrays": (ARRAYS, lambda _: None, "cannot be read"),
    "changed arrays": (ARRAYS, lambda content: content[:-1] + b"\x01", "damaged"),
    "an empty description": (DESCRIPTION, lambda _: b"", "run fit-meta again"),
    "half a description": (DESCRIPTION, lambda _: b"{", "run fit-meta again"),
    "a list for a description": (DESCRIPTION, lambda _: b"[1]", "run fit-meta again"),
}


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_model_is_refused(file, damage, message, tmp_path):
    saved(tmp_path)
    content = damage((tmp_path / file).read_bytes())
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(StoreError, match=message):
        MetaModel.load(tmp_path, INPUTS)


MISFITS = {
    "one coefficient": {"coefficients": np.ones(1)},
    "two intercepts": {"intercept": np.ones(2)},
    "an array more": {"axes": np.ones((1, 1))},
}


@pytest.mark.parametrize("change", MISFITS.values(), ids=MISFITS)
def test_arrays_that_do_not_fit_the_inputs_are_refused(change, tmp_path):
    saved(tmp_path, replace(LOGISTIC, arrays={**LOGISTIC.arrays, **change}))
    with pytest.raises(StoreError, match="do not fit its"):
        MetaModel.load(tmp_path, INPUTS)


EDITS = {
    "another format": ({"format": 99}, "format: Input should be 11, got 99.; run fit-meta again"),
    "unknown kind": ({"kind": "forest"}, "kind: "),
    "other inputs": ({"inputs": ""}, "other inputs"),
    "no slope": ({"notes": {"shift": 0.0}}, "no number is 'slope'"),
    "no shift": ({"notes": {"slope": 1.0}}, "no number is 'shift'"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_a_changed_description_is_refused(edit, message, tmp_path):
    description = saved(tmp_path)[1]
    description.write_text(json.dumps(json.loads(description.read_text()) | edit))
    with pytest.raises(StoreError, match=message):
        MetaModel.load(tmp_path, INPUTS)


def test_probabilities_by_hand():
    # Even odds among one positive of ten are 1 to 9.
    assert probabilities([0.0, logit(0.9)], shift=-np.log(9)) == pytest.approx([0.1, 0.5])


def test_the_shift_undoes_balanced_weights():
    generator = np.random.default_rng(2)
    truth = generator.random(20_000) < 0.1
    x = (generator.normal(size=20_000) + truth)[:, None]
    plain = LogisticRegression(C=1e6).fit(x, truth)
    odds = LogisticRegression(C=1e6, class_weight="balanced").fit(x, truth).decision_function(x)
    corrected = probabilities(odds, shift=prevalence_shift(odds, share=float(truth.mean())))
    assert corrected == pytest.approx(expit(plain.decision_function(x)), abs=0.02)


@pytest.mark.parametrize("c", [1e-6, 1e-3, 1e6])
def test_as_many_positives_are_expected_as_there_are_whatever_the_penalty(c):
    """A penalty draws log-odds together, so that their odds times those of the share expect too few or too many."""
    generator = np.random.default_rng(3)
    truth = generator.random(2000) < 0.1
    x = (generator.normal(size=2000) + 2 * truth)[:, None]
    odds = LogisticRegression(C=c, class_weight="balanced").fit(x, truth).decision_function(x)
    share = float(truth.mean())
    assert probabilities(odds, shift=prevalence_shift(odds, share=share)).mean() == pytest.approx(share)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_shift_needs_two_classes(share):
    with pytest.raises(EvaluationError, match=f"share of {share:g}"):
        prevalence_shift([0.0], share=share)
