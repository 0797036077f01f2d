"""Fits of meta models against scikit-learn and against formulas."""

import numpy as np
import pytest
from meta_tables import make_inputs, make_rows, make_table
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import LogisticRegression

from gradscore.errors import EvaluationError
from gradscore.meta import (
    Penalty,
    TrainingSet,
    balanced_weights,
    fit_logistic,
    fit_on_scores,
    fit_one_class,
    fitting,
)

TRUTH = np.arange(120) % 4 == 0
FRAME, OTHER = make_table(seed=0, positive=TRUTH), make_table(seed=1, positive=TRUTH)
INPUTS = make_inputs(FRAME[~TRUTH])
ROWS = make_rows(INPUTS, FRAME, TRUTH)
NEW = INPUTS.scaled(OTHER)
PENALTY = Penalty(C=0.02, boost=5.0)
OF_GRADIENT = np.array([group == "gradients" for group in INPUTS.groups])


def place(name):
    return INPUTS.names.index(f"baseline/{name}")


def peer(x, new, strength, weights):
    """Log-odds of scikit-learn with another solver, to more digits."""
    solver = LogisticRegression(C=strength, solver="lbfgs", tol=1e-10, max_iter=10_000)
    return solver.fit(x, TRUTH, sample_weight=weights).decision_function(new)


WEIGHTS = np.where(TRUTH, 120 / (2 * 30), 120 / (2 * 90))


def test_log_odds_are_those_of_scikit_learn_with_scores_boosted():
    boost = np.where(OF_GRADIENT, 1.0, PENALTY.boost)
    wanted = peer(ROWS.scaled * boost, NEW * boost, PENALTY.C, WEIGHTS)
    np.testing.assert_allclose(fit_logistic(INPUTS, ROWS, PENALTY).of_scaled(NEW), wanted, rtol=1e-5, atol=1e-5)


def test_coefficients_along_axes_are_mapped_back_to_the_inputs():
    """Two axes that are no unit vectors: a fit on the inputs along them, and boosted scores."""
    axes = np.linalg.qr(np.random.default_rng(3).normal(size=(OF_GRADIENT.sum(), 2)))[0].T
    seen, new = (
        np.hstack([scaled[:, OF_GRADIENT] @ axes.T, PENALTY.boost * scaled[:, ~OF_GRADIENT]])
        for scaled in (ROWS.scaled, NEW)
    )
    model = fit_logistic(INPUTS, ROWS, PENALTY, axes=axes)
    np.testing.assert_allclose(model.of_scaled(NEW), peer(seen, new, 0.02, WEIGHTS), rtol=1e-5, atol=1e-5)
    of_gradients = model.arrays["coefficients"][OF_GRADIENT]
    np.testing.assert_allclose(of_gradients @ axes.T @ axes, of_gradients, rtol=1e-9)


@pytest.mark.parametrize("most", [0, fitting.WIDE], ids=["randomised", "whole"])
def test_axes_are_those_of_most_variance(monkeypatch, most):
    monkeypatch.setattr(fitting, "WIDE", most)
    monkeypatch.setattr(fitting, "AXES", 4)
    random = np.random.default_rng(2)
    scaled = random.normal(size=(300, 30)) * np.r_[np.geomspace(30, 5, 4), np.full(26, 1e-3)] + 7
    turned = scaled @ np.linalg.qr(random.normal(size=(30, 30)))[0]
    wanted = np.linalg.svd(turned - turned.mean(axis=0))[2][:4]
    np.testing.assert_allclose(np.abs(fitting.leading_axes(turned) @ wanted.T), np.eye(4), atol=1e-4)


def test_no_axes_are_found_where_gradients_take_no_part(monkeypatch):
    monkeypatch.setattr(fitting, "leading_axes", lambda _: pytest.fail("found"))
    model = fit_logistic(INPUTS, ROWS, Penalty(C=0.02, boost=5.0, gradients=False))
    assert not model.arrays["coefficients"][OF_GRADIENT].any()


def test_a_boost_weakens_the_penalty_of_scores_by_its_square():
    """Scores alone with C and a boost are as scores with C times its square."""
    boosted = fit_logistic(INPUTS, ROWS, Penalty(C=0.01, boost=3.0, gradients=False))
    plain = fit_logistic(INPUTS, ROWS, Penalty(C=0.09, boost=1.0, gradients=False))
    np.testing.assert_allclose(boosted.of_scaled(NEW), plain.of_scaled(NEW), rtol=1e-5, atol=1e-5)


def test_what_a_fit_starts_from_is_not_held_back():
    """Where all others hardly move, it is a regression on the start alone, without a penalty."""
    start = place("msp")
    held_back = Penalty(C=1e-9, boost=5.0, start=INPUTS.names[start])
    wanted = LogisticRegression(C=np.inf).fit(ROWS.scaled[:, [start]], TRUTH, sample_weight=WEIGHTS)
    found = fit_logistic(INPUTS, ROWS, held_back).of_scaled(NEW)
    np.testing.assert_allclose(found, wanted.decision_function(NEW[:, [start]]), rtol=1e-2, atol=1e-2)


def test_only_a_fit_that_starts_from_the_tempered_probability_looks_at_it():
    table = make_table(seed=0, positive=TRUTH, augmentation=True)
    inputs = make_inputs(table[~TRUTH], augmentation=True)
    name = "baseline/augmentations_temperature"
    rows = make_rows(inputs, table, TRUTH)
    fits = [fit_logistic(inputs, rows, Penalty(C=0.02, boost=5.0, start=start)) for start in (None, name)]
    none, some = (model.arrays["coefficients"][inputs.names.index(name)] for model in fits)
    assert none == 0.0
    assert some > 0.0


def test_without_gradients_theirs_are_zero():
    model = fit_logistic(INPUTS, ROWS, Penalty(C=0.02, boost=5.0, gradients=False))
    assert (model.arrays["coefficients"][OF_GRADIENT] == 0).all()
    assert model.notes["gradients"] is False


def test_a_fit_on_some_scores_sees_no_others():
    names = ["baseline/msp", "baseline/knn"]
    model = fit_on_scores(INPUTS, ROWS, PENALTY, names=names)
    assert {name for name, _ in model.strongest(100)} == set(names)
    chosen = [INPUTS.names.index(name) for name in names]
    wanted = peer(5 * ROWS.scaled[:, chosen], 5 * NEW[:, chosen], 0.02, WEIGHTS)
    np.testing.assert_allclose(model.of_scaled(NEW), wanted, rtol=1e-5, atol=1e-5)


def test_notes_say_what_was_fitted():
    model = fit_logistic(INPUTS, ROWS, PENALTY)
    assert (1 / (1 + np.exp(-model.of_scaled(ROWS.scaled) - model.shift))).mean() == pytest.approx(30 / 120)
    assert model.notes == {
        "shift": model.shift,
        "C": 0.02,
        "boost": 5.0,
        "gradients": True,
        "converged": True,
        "start": None,
        "n": 120,
        "n_positive": 30,
    }


def test_rows_in_another_order_fit_the_same():
    turned = TrainingSet(scaled=ROWS.scaled[::-1], target=ROWS.target[::-1], sets=ROWS.sets[::-1])
    again = fit_logistic(INPUTS, turned, PENALTY)
    np.testing.assert_allclose(again.of_scaled(NEW), fit_logistic(INPUTS, ROWS, PENALTY).of_scaled(NEW), rtol=1e-6)


def standardised(values, ordinary):
    return (values - ordinary.mean()) / ordinary.std()


def test_one_class_is_the_sum_of_standardised_scores_and_a_distance():
    """Energy, ASH and neighbours; and log (x - m) P (x - m), standardised by distances from the other half."""
    ordinary = ROWS.scaled[~TRUTH]
    gradients = ordinary[:, OF_GRADIENT]

    def logarithms(fitted, of):
        estimate = LedoitWolf().fit(fitted)
        offsets = of - estimate.location_
        return np.log(np.einsum("nd,de,ne->n", offsets, np.linalg.inv(estimate.covariance_), offsets))

    held_out = np.r_[logarithms(gradients[1::2], gradients[::2]), logarithms(gradients[::2], gradients[1::2])]
    wanted = standardised(logarithms(gradients, NEW[:, OF_GRADIENT]), held_out) + sum(
        standardised(NEW[:, place(name)], ordinary[:, place(name)]) for name in ("energy", "ash", "knn")
    )
    np.testing.assert_allclose(fit_one_class(INPUTS, ordinary).of_scaled(NEW), wanted, rtol=1e-6, atol=1e-6)


REFUSED = {
    "three samples": (ROWS.scaled[:3], "at least 4 ordinary samples, got 3"),
    "gradients that are all alike": (np.zeros((6, len(INPUTS.names))), "nothing to measure a distance by"),
}


@pytest.mark.parametrize(("ordinary", "message"), REFUSED.values(), ids=REFUSED)
def test_one_class_of_too_little_is_refused(ordinary, message):
    with pytest.raises(EvaluationError, match=message):
        fit_one_class(INPUTS, ordinary)


@pytest.mark.parametrize("target", [np.zeros(120, dtype=bool), np.ones(120, dtype=bool)], ids=["no", "nothing but"])
def test_samples_of_one_class_are_refused(target):
    rows = TrainingSet(scaled=ROWS.scaled, target=target, sets=ROWS.sets)
    with pytest.raises(EvaluationError, match="two classes"):
        fit_logistic(INPUTS, rows, PENALTY)


def test_rows_that_do_not_fit_together_are_refused():
    with pytest.raises(EvaluationError, match="120 rows with a target of 5 and sets of 120"):
        TrainingSet(scaled=ROWS.scaled, target=TRUTH[:5], sets=ROWS.sets)


def test_balanced_weights():
    weights = balanced_weights([0, 0, 0, 0, 1, 1, 1, 1], ["in", "in", "in", "in", "a", "b", "b", "b"])
    np.testing.assert_allclose(weights, [1, 1, 1, 1, 2, 2 / 3, 2 / 3, 2 / 3])
