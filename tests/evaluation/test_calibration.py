import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from gradscore.errors import EvaluationError
from gradscore.evaluation.calibration import brier, expected_calibration_error, reliability
from gradscore.meta.probability import prevalence_shift, probabilities


def sample(*, seed=0, n=2000):
    generator = np.random.default_rng(seed)
    p = generator.random(n)
    return p, generator.random(n) < p**2


def test_brier_equals_scikit_learn():
    p, truth = sample()
    assert brier(p, truth) == pytest.approx(brier_score_loss(truth, p), rel=1e-12)


def test_reliability_equals_scikit_learn():
    p, truth = sample()
    observed, predicted = calibration_curve(truth, p, n_bins=15, strategy="uniform")
    curve = reliability(p, truth)
    assert curve.observed == pytest.approx(observed, rel=1e-12)
    assert curve.predicted == pytest.approx(predicted, rel=1e-12)
    assert curve.count.sum() == len(p)


def test_calibration_error_by_hand():
    # Two bins: (0.1, 0.3 -> one of two positive) and (0.9, 1.0 -> both): gaps 0.3 and 0.05, half of the samples each.
    assert expected_calibration_error([0.1, 0.3, 0.9, 1.0], [True, False, True, True], bins=2) == pytest.approx(0.175)


def test_a_calibrated_probability_has_a_small_error():
    generator = np.random.default_rng(1)
    p = generator.random(50_000)
    assert expected_calibration_error(p, generator.random(50_000) < p) < 0.01


@pytest.mark.parametrize("figure", [brier, expected_calibration_error])
def test_no_sample_gives_none(figure):
    assert figure([], np.array([], dtype=bool)) is None


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_values_that_are_no_probabilities_are_refused(value):
    with pytest.raises(EvaluationError, match=r"wanted values in \[0, 1\]"):
        brier([0.5, value], [True, False])


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


@pytest.mark.parametrize("strength", [1e-6, 1e-3, 1e6])
def test_as_many_positives_are_expected_as_there_are_however_strong_the_penalty(strength):
    """A penalty draws log-odds together, so that their odds times those of the share expect too few or too many."""
    generator = np.random.default_rng(3)
    truth = generator.random(2000) < 0.1
    x = (generator.normal(size=2000) + 2 * truth)[:, None]
    odds = LogisticRegression(C=strength, class_weight="balanced").fit(x, truth).decision_function(x)
    share = float(truth.mean())
    assert probabilities(odds, shift=prevalence_shift(odds, share=share)).mean() == pytest.approx(share)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_shift_needs_two_classes(share):
    with pytest.raises(EvaluationError, match=f"share of {share:g}"):
        prevalence_shift([0.0], share=share)
