"""The logistic regression against scikit-learn's, and against what makes a least."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from gradscore.meta import regression
from gradscore.meta.regression import Regression

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(400, 12)) * np.geomspace(0.1, 10, 12)
TARGET = RANDOM.random(400) < expit(X[:, 3] - 0.3 * X[:, 9] - 1)
WEIGHTS = RANDOM.random(400) + 0.5
PENALTIES = np.geomspace(0.01, 100, 12)


def wanted(x, penalties):
    """Coefficients and intercept by another solver; a penalty on a coefficient is one on a column of another scale."""
    scales = np.sqrt(penalties)
    solver = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-11, max_iter=1000)
    solver.fit(x / scales, TARGET, sample_weight=WEIGHTS)
    return np.append(solver.coef_[0] / scales, solver.intercept_)


def slopes(x, target, weights, penalties, found):
    """The gradient of weighted log losses and penalties, over the sum of weights."""
    missed = weights * (expit(found.odds(x)) - target)
    return np.append(missed @ x + penalties * found.coefficients, missed.sum()) / weights.sum()


def as_array(found):
    return np.append(found.coefficients, found.intercept)


def test_coefficients_are_those_of_scikit_learn():
    found = Regression(X, TARGET, WEIGHTS).fit(PENALTIES)
    assert found.converged
    np.testing.assert_allclose(as_array(found), wanted(X, PENALTIES), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.odds(X), X @ found.coefficients + found.intercept)


@pytest.mark.parametrize("factor", [1e-4, 0.1, 10.0, 1e4])
def test_a_fit_that_goes_on_from_another_ends_where_one_from_nothing_does(factor):
    regression = Regression(X, TARGET, WEIGHTS)
    regression.fit(PENALTIES[::-1])
    found = regression.fit(PENALTIES * factor)
    np.testing.assert_allclose(as_array(found), wanted(X, PENALTIES * factor), rtol=1e-4, atol=1e-5)


def test_inputs_that_are_all_but_the_same():
    copies = np.hstack([X, X + 1e-7 * RANDOM.normal(size=X.shape)])
    found = Regression(copies, TARGET, WEIGHTS).fit(np.full(24, 1e-3))
    assert found.converged
    np.testing.assert_allclose(slopes(copies, TARGET, WEIGHTS, 1e-3, found), 0, atol=1e-5)
    np.testing.assert_allclose(
        found.odds(copies), Regression(X, TARGET, WEIGHTS).fit(np.full(12, 5e-4)).odds(X), atol=1e-3
    )


def test_samples_that_an_input_separates():
    x = np.column_stack([np.where(TARGET, 10.0, -10.0), X[:, 0]])
    found = Regression(x, TARGET, WEIGHTS).fit(np.full(2, 1e-6))
    assert found.converged
    np.testing.assert_allclose(slopes(x, TARGET, WEIGHTS, 1e-6, found), 0, atol=1e-5)


def test_a_stronger_penalty_after_one_that_let_all_samples_be_told_apart():
    x = np.column_stack([np.where(TARGET, 1.0, -1.0), X[:, 0]])
    regression = Regression(x, TARGET, WEIGHTS)
    regression.fit(np.full(2, 1e-12))
    found = regression.fit(np.full(2, 10.0))
    assert found.converged
    np.testing.assert_allclose(slopes(x, TARGET, WEIGHTS, 10.0, found), 0, atol=1e-7)


def test_rare_positives_of_little_weight_and_an_input_that_is_zero():
    target, weights = np.arange(400) < 2, np.where(np.arange(400) < 2, 1e-3, 1.0)
    x = X.copy()
    x[:, 5] = 0.0
    found = Regression(x, target, weights).fit(PENALTIES)
    assert found.converged
    assert found.coefficients[5] == 0
    np.testing.assert_allclose(slopes(x, target, weights, PENALTIES, found), 0, atol=1e-5)


def test_without_inputs_the_intercept_is_the_log_odds_of_the_share():
    found = Regression(X[:, :0], TARGET, WEIGHTS).fit(np.empty(0))
    share = WEIGHTS[TARGET].sum() / WEIGHTS.sum()
    np.testing.assert_allclose(found.intercept, np.log(share / (1 - share)), rtol=1e-5)


def test_a_fit_that_is_cut_short_says_so(monkeypatch):
    monkeypatch.setattr(regression, "MOST_ROUNDS", 1)
    monkeypatch.setattr(regression, "_STEPS", 2)
    assert not Regression(X, TARGET, WEIGHTS).fit(PENALTIES).converged
