"""Contributions add up to the score, and drivers are the largest of them."""

import numpy as np
import pytest
from meta_tables import make_inputs, make_rows, make_table

from gradscore.baselines import Bank
from gradscore.meta import Penalty, add_alarms, alarm_weights, fit_logistic, fit_one_class
from gradscore.meta.models import Driver, Explanation, drivers, explained, largest_group

TRUTH = np.arange(120) % 4 == 0
FRAME = make_table(seed=0, positive=TRUTH, augmentation=True)
OTHER = make_table(seed=1, positive=TRUTH, augmentation=True).iloc[:30]
INPUTS = make_inputs(FRAME[~TRUTH], augmentation=True)
SCALED = INPUTS.scaled(OTHER)
ROWS = make_rows(INPUTS, FRAME, TRUTH)
LOGISTIC = fit_logistic(INPUTS, ROWS, Penalty(C=0.01, boost=3.0))
ONE_CLASS = fit_one_class(INPUTS, ROWS.scaled[~TRUTH])


def test_contributions_add_up_to_the_score_less_the_intercept():
    wanted = LOGISTIC.decision(OTHER) - LOGISTIC.arrays["intercept"][0]
    np.testing.assert_allclose(explained(LOGISTIC, SCALED).contributions.sum(axis=1), wanted, rtol=1e-9, atol=1e-9)


def test_contributions_of_one_class_add_up_to_the_loudest_alarm():
    own, usual = ONE_CLASS.compared(SCALED)
    raised = ONE_CLASS.alarms.raised(own, SCALED, usual)
    np.testing.assert_allclose(
        explained(ONE_CLASS, SCALED).contributions.sum(axis=1), raised.max(axis=1), rtol=1e-9, atol=1e-9
    )


def test_a_distance_is_shared_out_by_what_is_off():
    """Beside an in-distribution sample, off in one gradient alone."""
    in_dist = ROWS.scaled[~TRUTH][:1]
    beside = in_dist.copy()
    beside[0, INPUTS.names.index("u/head/l1")] += 0.01
    shares = ONE_CLASS.shares(ONE_CLASS.near(beside))[0]
    assert shares.sum() == pytest.approx(1.0)
    assert np.flatnonzero(np.abs(shares) > 0.01).tolist() == [INPUTS.names.index("u/head/l1")]


def test_neighbours_are_looked_for_once(monkeypatch):
    searches, nearest = [], Bank.nearest
    monkeypatch.setattr(Bank, "nearest", lambda *arguments: searches.append(1) or nearest(*arguments))
    explained(ONE_CLASS, SCALED)
    assert searches == [1]


def test_the_loudest_alarm_is_what_is_explained():
    """A distance that no in-distribution sample comes near is all there is to say; else the own score is explained."""
    model = add_alarms(LOGISTIC, ROWS, alarm_weights(INPUTS, None))
    far = np.zeros((2, len(INPUTS.names)))
    place = INPUTS.names.index("baseline/unit_mahalanobis@augmentations")
    far[0, place] = 9.0
    far[1] = 9.0 * np.sign(LOGISTIC.arrays["coefficients"])
    far[1, list(model.alarms.places)] = 0.0
    table = explained(model, far).contributions
    assert np.flatnonzero(table[0]).tolist() == [place]
    np.testing.assert_array_equal(table[1], explained(LOGISTIC, far).contributions[1])


def test_an_alarm_of_an_expected_kind_is_explained_by_its_inputs():
    """Far along a coefficient of its own, where nothing else is unusual."""
    place = INPUTS.names.index("u/head/l2")
    coefficients = np.zeros(len(INPUTS.names))
    coefficients[place] = 2.0
    expected = fit_logistic(INPUTS, ROWS, Penalty(C=0.01, boost=3.0))
    expected.arrays["coefficients"][:] = coefficients
    plain = fit_logistic(INPUTS, ROWS, Penalty(C=0.01, boost=3.0))
    plain.arrays["coefficients"][place] = 0.0
    model = add_alarms(plain, ROWS, alarm_weights(INPUTS, None), expected)
    far = np.zeros((1, len(INPUTS.names)))
    far[0, place] = 50.0
    np.testing.assert_array_equal(explained(model, far).contributions[0], coefficients * 50)
    usual = np.zeros((1, len(INPUTS.names)))
    assert explained(model, np.concatenate([far, usual])).like_expected.tolist() == [True, False]
    assert not explained(LOGISTIC, far).like_expected.any()
    (sentence,) = largest_group(INPUTS.names, explained(model, far))
    assert sentence == "gradients +100: they are like those of OOD samples that were given"


def test_drivers_are_the_largest_first():
    table = explained(LOGISTIC, SCALED).contributions
    found = drivers(INPUTS.names, table, k=3)
    wanted = -np.sort(-np.abs(table), axis=1)[:, :3]
    np.testing.assert_allclose(np.abs([[driver.contribution for driver in row] for row in found]), wanted)


def test_what_a_sample_is_off_in_drives_its_score():
    """Gradients of the head a thousand times larger, and nothing else."""
    strange = OTHER.assign(**{name: OTHER[name] * 1e3 for name in ("u/head/mean", "u/head/l1", "u/head/l2")})
    change = explained(LOGISTIC, INPUTS.scaled(strange)).contributions - explained(LOGISTIC, SCALED).contributions
    moved = {name for name, column in zip(INPUTS.names, change.T, strict=True) if np.abs(column).max() > 1e-9}
    assert moved == {"u/head/l1", "u/head/l2", "u/body/l1:last"}


TEXTS = {
    "a feature": (Driver("8.weight", "l2:l1", "uniform", 1.25), "8.weight l2:l1 of uniform +1.25"),
    "a score of the logits": (Driver("logits", "msp", None, -0.5), "logits msp -0.5"),
}


@pytest.mark.parametrize(("driver", "text"), TEXTS.values(), ids=TEXTS)
def test_text(driver, text):
    assert str(driver) == text


def test_every_input_has_a_place():
    """Parts of each group, by the names of drivers of all inputs."""
    rows = drivers(INPUTS.names, explained(LOGISTIC, SCALED).contributions, k=100)
    found = {(driver.layer, driver.statistic, driver.loss) for row in rows for driver in row}
    assert {
        ("head", "l2:l1", "u"),
        ("logits", "msp", None),
        ("penultimate", "react", None),
        ("neighbours", "knn", None),
        ("augmentations", "msp@augmentations", None),
    } <= found


def test_the_largest_group_has_the_largest_sum_of_its_inputs():
    names = ["u/conv/l1", "baseline/msp", "u/conv/l2", "baseline/energy", "baseline/knn", "baseline/react"]
    table = np.array([[1.0, -3.0, 0.5, -1.0, 1.25, 0.0], [1.0, 3.0, 0.5, -1.0, 1.25, 0.0]])
    assert largest_group(names, Explanation(table, np.zeros(2, dtype=bool))) == [
        "gradients +1.5: the gradients of these layers are unusual",
        "logits +2: the logits are unusual",
    ]


def test_where_nothing_speaks_for_it_that_is_said():
    names = ["baseline/energy", "u/head/l1"]
    assert largest_group(names, Explanation(np.array([[-1.0, -0.5]]), np.array([True]))) == ["nothing speaks for it"]
