"""Fits of meta models against scikit-learn and against formulas."""

import numpy as np
import pytest
from meta_tables import make_inputs, make_rows, make_table
from sklearn import metrics
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import LogisticRegression

from gradscore.errors import EvaluationError
from gradscore.evaluation.metrics import auroc
from gradscore.meta import (
    Penalty,
    TrainingSet,
    balanced_weights,
    drawn,
    fit_logistic,
    fit_one_class,
    fitting,
    one_class,
    penalties,
    training_set,
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


def test_what_a_fit_starts_from_is_not_held_back():
    """Where all others hardly move, it is a regression on the start alone, without a penalty."""
    start = place("msp")
    held_back = Penalty(C=1e-9, boost=5.0, start=INPUTS.names[start])
    wanted = LogisticRegression(C=np.inf).fit(ROWS.scaled[:, [start]], TRUTH, sample_weight=WEIGHTS)
    found = fit_logistic(INPUTS, ROWS, held_back).of_scaled(NEW)
    np.testing.assert_allclose(found, wanted.decision_function(NEW[:, [start]]), rtol=1e-2, atol=1e-2)


def test_a_start_that_nothing_corrects_never_turns_round():
    start = INPUTS.names[place("msp")]
    turned = TrainingSet(scaled=ROWS.scaled, target=ROWS.scaled[:, place("msp")] < -1, sets=ROWS.sets)
    model = fit_logistic(INPUTS, turned, Penalty(C=1.0, boost=0.0, gradients=False, start=start))
    assert model.arrays["coefficients"][place("msp")] > 0
    share = 1 / (1 + np.exp(-model.of_scaled(ROWS.scaled) - model.shift))
    assert share.mean() == pytest.approx(turned.target.mean())


def test_only_a_fit_that_starts_from_the_tempered_probability_looks_at_it():
    table = make_table(seed=0, positive=TRUTH, augmentation=True)
    inputs = make_inputs(table[~TRUTH], augmentation=True)
    name = "baseline/augmentations_temperature"
    rows = make_rows(inputs, table, TRUTH)
    fits = [fit_logistic(inputs, rows, Penalty(C=0.02, boost=5.0, start=start)) for start in (None, name)]
    none, some = (model.arrays["coefficients"][inputs.names.index(name)] for model in fits)
    assert none == 0.0
    assert some > 0.0


def test_a_fit_on_some_scores_sees_no_others():
    names = ["baseline/msp", "baseline/knn"]
    model = fit_logistic(INPUTS, ROWS, PENALTY, names=names)
    chosen = [INPUTS.names.index(name) for name in names]
    assert set(np.flatnonzero(model.arrays["coefficients"])) == set(chosen)
    wanted = peer(5 * ROWS.scaled[:, chosen], 5 * NEW[:, chosen], 0.02, WEIGHTS)
    np.testing.assert_allclose(model.of_scaled(NEW), wanted, rtol=1e-5, atol=1e-5)


def test_notes_say_what_was_fitted():
    model = fit_logistic(INPUTS, ROWS, PENALTY)
    assert (1 / (1 + np.exp(-model.of_scaled(ROWS.scaled) - model.shift))).mean() == pytest.approx(30 / 120)
    assert model.notes == {
        "slope": 1.0,
        "shift": model.shift,
        "penalties": [{"C": 0.02, "boost": 5.0, "gradients": True, "start": None}],
        "converged": True,
        "n": 120,
        "n_positive": 30,
    }


def test_several_penalties_give_the_mean_of_their_fits():
    start = INPUTS.names[place("msp")]
    penalties = [
        Penalty(C=0.02, boost=5.0, start=start),
        Penalty(C=1.0, boost=3.0, gradients=False, start=start),
        Penalty(C=1.0, boost=0.0, gradients=False, start=start),
    ]
    model = fit_logistic(INPUTS, ROWS, *penalties)
    wanted = np.mean([fit_logistic(INPUTS, ROWS, each).of_scaled(NEW) for each in penalties], axis=0)
    np.testing.assert_allclose(model.of_scaled(NEW), wanted, rtol=1e-9, atol=1e-12)
    assert (1 / (1 + np.exp(-model.of_scaled(ROWS.scaled) - model.shift))).mean() == pytest.approx(30 / 120)
    assert [Penalty(**each) for each in model.notes["penalties"]] == penalties


def test_rows_in_another_order_fit_the_same():
    turned = TrainingSet(scaled=ROWS.scaled[::-1], target=ROWS.target[::-1], sets=ROWS.sets[::-1])
    again = fit_logistic(INPUTS, turned, PENALTY)
    np.testing.assert_allclose(again.of_scaled(NEW), fit_logistic(INPUTS, ROWS, PENALTY).of_scaled(NEW), rtol=1e-6)


RAISING = ["unit_mahalanobis", "mahalanobis", "relative_mahalanobis", "fdbd", "energy", "ash"]


def near(in_dist, new):
    """Distances (N, M) along axes of variance v, each over its fourth root, of samples from in-distribution ones."""
    gradients = in_dist[:, OF_GRADIENT]
    variances, frame = np.linalg.eigh(LedoitWolf().fit(gradients).covariance_)
    seen, asked = ((each[:, OF_GRADIENT] @ frame) / variances**0.25 for each in (in_dist, new))
    return np.linalg.norm(asked[:, None] - seen, axis=2)


def levels(scaled):
    return scaled[:, [place(name) for name in RAISING]]


def usual_of(in_dist, distances):
    """Half the mean of the inputs over the ten nearest."""
    return np.stack([levels(in_dist)[row.argsort()[:10]].mean(axis=0) for row in distances]) / 2


def test_one_class_measures_the_nearest_in_dist_sample_and_what_is_usual_near_it():
    in_dist = ROWS.scaled[~TRUTH]
    own, usual = fit_one_class(INPUTS, in_dist).compared(NEW)
    distances = near(in_dist, NEW)
    np.testing.assert_allclose(own, np.log(distances.min(axis=1)), atol=1e-5)
    np.testing.assert_allclose(usual, usual_of(in_dist, distances), atol=1e-9)


def test_one_class_sums_weights_over_roots_of_tail_probabilities():
    """Shares of in-distribution samples that reach a value, none of which is compared with itself."""
    in_dist = ROWS.scaled[~TRUTH]
    apart = near(in_dist, in_dist)
    np.fill_diagonal(apart, np.inf)
    distances = near(in_dist, NEW)
    seen = np.column_stack([np.log(apart.min(axis=1)), levels(in_dist) - usual_of(in_dist, apart)])
    new = np.column_stack([np.log(distances.min(axis=1)), levels(NEW) - usual_of(in_dist, distances)])
    found = fit_one_class(INPUTS, in_dist).of_scaled(NEW)
    within = (new < np.quantile(seen, 0.95, axis=0)).all(axis=1) & ~TRUTH
    shares = (seen[None] >= new[within, None]).mean(axis=1)
    wanted = np.log(shares**-0.5 @ [2, 1, 1, 1, 1, 0.5, 0.5])
    assert within.sum() > 30
    np.testing.assert_allclose(found[within], wanted, atol=0.1)


def test_in_dist_samples_are_as_far_as_new_ones():
    """None is compared with itself or a copy, whoever asks: models are judged by samples that fitted them, too."""
    in_dist = ROWS.scaled[~TRUTH]
    apart = near(in_dist, in_dist)
    np.fill_diagonal(apart, np.inf)
    for samples in (in_dist, np.vstack([in_dist, in_dist[:5]])):
        own, usual = fit_one_class(INPUTS, in_dist).compared(samples)
        np.testing.assert_allclose(own[:90], np.log(apart.min(axis=1)), atol=1e-5)
        np.testing.assert_allclose(usual[:90], usual_of(in_dist, apart), atol=1e-9)


def test_one_class_finds_what_is_rare_among_its_like_and_common_among_all():
    """In-distribution samples of two kinds, with energies of 0 and 8: an energy of 8 is strange in the first."""
    random = np.random.default_rng(5)
    kind = np.arange(400) % 2 == 0
    in_dist = np.zeros((400, len(INPUTS.names)))
    in_dist[:, OF_GRADIENT] = random.normal(size=(400, OF_GRADIENT.sum())) + 6 * kind[:, None]
    in_dist[:, place("energy")] = random.normal(size=400) + 8 * kind
    model = fit_one_class(INPUTS, in_dist)
    strange = in_dist[~kind] + np.where(np.arange(len(INPUTS.names)) == place("energy"), 8.0, 0.0)
    assert auroc(np.r_[model.of_scaled(in_dist[~kind]), model.of_scaled(strange)], np.arange(400) >= 200) > 0.9


def test_of_many_in_dist_samples_some_are_kept(monkeypatch):
    monkeypatch.setattr(one_class, "MOST_KEPT", 45)
    in_dist = ROWS.scaled[~TRUTH]  # 90 of them
    own, _ = fit_one_class(INPUTS, in_dist).compared(NEW)
    kept = drawn(len(in_dist), 45)
    assert kept.sum() == 45
    np.testing.assert_allclose(own, np.log(near(in_dist, NEW)[:, kept].min(axis=1)), atol=1e-5)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_classes_stored_in_turns_are_all_judged(monkeypatch, period):
    """Every second row, or third, would be of one class alone."""
    monkeypatch.setattr(training_set, "MOST_ROWS", 3000 // period)
    target, sets = np.arange(3000) % period == 0, np.repeat(["a", "b"], [1000, 2000])
    found = training_set.subsampled(TrainingSet(scaled=np.arange(3000.0)[:, None], target=target, sets=sets))
    assert len(found.target) == pytest.approx(3000 / period, abs=2)
    for name, count in (("a", 1000), ("b", 2000)):
        of_set = found.sets == name
        assert of_set.sum() == pytest.approx(count / period, abs=2)
        deviation = np.sqrt((1 - 1 / period) / period / of_set.sum())
        assert found.target[of_set].mean() == pytest.approx(1 / period, abs=4 * deviation)
    assert (np.diff(found.scaled[:, 0]) > 0).all()


REFUSED = {
    "three samples": (ROWS.scaled[:3], "at least 4 in-distribution samples, got 3"),
    "gradients that are all alike": (np.ones((6, len(INPUTS.names))), "nothing to measure a distance by"),
    "copies of two samples": (
        np.repeat(ROWS.scaled[:2], 3, axis=0),
        "do not differ in their distance from each other",
    ),
    "no gradients that are not zero": (np.zeros((6, len(INPUTS.names))), "nothing to measure a distance by"),
}


@pytest.mark.parametrize(("in_dist", "message"), REFUSED.values(), ids=REFUSED)
def test_one_class_of_too_little_is_refused(in_dist, message):
    with pytest.raises(EvaluationError, match=message):
        fit_one_class(INPUTS, in_dist)


@pytest.mark.parametrize("target", [np.zeros(120, dtype=bool), np.ones(120, dtype=bool)], ids=["no", "nothing but"])
def test_samples_of_one_class_are_refused(target):
    rows = TrainingSet(scaled=ROWS.scaled, target=target, sets=ROWS.sets)
    with pytest.raises(EvaluationError, match="two classes"):
        fit_logistic(INPUTS, rows, PENALTY)


def test_balanced_weights():
    weights = balanced_weights([0, 0, 0, 0, 1, 1, 1, 1], ["in", "in", "in", "in", "a", "b", "b", "b"])
    np.testing.assert_allclose(weights, [1, 1, 1, 1, 2, 2 / 3, 2 / 3, 2 / 3])


@pytest.mark.parametrize("width", [0.1, 3.0, 200.0])
def test_the_log_loss_is_that_of_scikit_learn_to_the_bit(width: float) -> None:
    generator = np.random.default_rng(3)
    odds, target = width * generator.normal(size=301), generator.random(301) < 0.3
    weights = balanced_weights(target, generator.integers(0, 3, 301).astype(str))
    expected = metrics.log_loss(target, 1 / (1 + np.exp(-odds)), sample_weight=weights)
    assert penalties.log_loss(odds, target, weights) == expected
