import math

import numpy as np
import pytest
from score_names import score_names

from gradscore.baselines import BASELINES, InDistribution, NetworkOutputs, of_logits
from gradscore.baselines.formulas import doctor, energy, entropy, gen, margin, max_logit, max_logit_pnorm, msp
from gradscore.errors import EvaluationError

CENTRED = np.log([0.7, 0.2, 0.1]) - np.log([0.7, 0.2, 0.1]).mean()

# Softmax probabilities 0.7, 0.2, 0.1 up to a shift of the logits.
THREE = np.log([[0.7, 0.2, 0.1]]) + 5.0

BY_HAND = {
    "msp": (msp, math.log(0.3)),
    "entropy": (entropy, math.log(-(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1)))),
    "margin": (margin, math.log(0.5)),
    "max_logit": (max_logit, -(math.log(0.7) + 5.0)),
    "energy": (energy, -5.0),
    "gen": (gen, math.log(0.21**0.1 + 0.16**0.1 + 0.09**0.1)),
    "doctor": (doctor, math.log((1 - 0.54) / 0.54)),
    "max_logit_pnorm": (max_logit_pnorm, -CENTRED[0] / (abs(CENTRED) ** 5).sum() ** 0.2),
}

FUNCTIONS = {name: function for name, (function, _) in BY_HAND.items()}

BAD = {
    "one dimension": (np.zeros(3), r"\(N, K\)"),
    "one class": (np.zeros((3, 1)), "K >= 2"),
    "nan": (np.array([[0.0, np.nan], [0.0, 1.0]]), "1 of 2 samples"),
    "infinite": (np.array([[0.0, np.inf], [np.inf, 1.0]]), "2 of 2 samples"),
}

LOG_SCORES = ["msp", "entropy", "margin", "gen", "doctor"]


@pytest.mark.parametrize(("score", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_equals_the_value_worked_by_hand(score, expected):
    np.testing.assert_allclose(score(THREE), [expected], rtol=1e-13)


def test_table_holds_exactly_the_scores_worked_by_hand():
    assert score_names("logits") == list(BY_HAND)


@pytest.mark.parametrize("name", LOG_SCORES)
def test_confident_samples_keep_their_order_far_below_the_smallest_float(name):
    leads = np.linspace(0.0, 5000.0, 2001)
    logits = np.zeros((len(leads), 10))
    logits[:, 3] = leads
    scores = FUNCTIONS[name](logits)
    assert np.isfinite(scores).all()
    assert (np.diff(scores) < 0).all()


def test_msp_of_a_huge_lead_is_minus_the_lead_plus_log_of_the_other_classes():
    np.testing.assert_allclose(msp([[800.0] + [0.0] * 9]), [math.log(9) - 800.0], rtol=1e-14)


def test_entropy_of_a_huge_lead_is_the_others_share_times_their_surprise():
    np.testing.assert_allclose(entropy([[800.0, 0.0]]), [math.log(801.0) - 800.0], rtol=1e-14)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_higher_means_more_uncertain(name):
    flat, peaked = FUNCTIONS[name]([[0.2, 0.1, 0.0], [9.0, 0.0, 0.0]])
    assert flat > peaked


@pytest.mark.parametrize("name", LOG_SCORES)
def test_uniform_logits_are_the_most_uncertain(name):
    draws = np.random.default_rng(0).normal(size=(200, 4))
    assert (FUNCTIONS[name](draws) < FUNCTIONS[name](np.zeros((1, 4)))).all()


@pytest.mark.parametrize("name", LOG_SCORES)
def test_a_shift_of_all_logits_changes_nothing(name):
    logits = np.random.default_rng(1).normal(size=(20, 5))
    np.testing.assert_allclose(FUNCTIONS[name](logits + 1000.0), FUNCTIONS[name](logits), rtol=1e-9)


def test_gen_looks_at_the_most_probable_classes_only():
    np.testing.assert_allclose(gen(THREE, top=2), [math.log(0.21**0.1 + 0.16**0.1)], rtol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_samples_give_no_scores(name):
    assert FUNCTIONS[name](np.zeros((0, 3))).shape == (0,)


@pytest.mark.parametrize(("logits", "message"), BAD.values(), ids=BAD.keys())
def test_unusable_logits_are_refused(logits, message):
    with pytest.raises(EvaluationError, match=message):
        msp(logits)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_by_name(name: str) -> None:
    logits = np.array([[2.0, 0.5, -1.0], [0.1, 0.0, 0.2]])
    samples = NetworkOutputs(logits=logits)
    learned = BASELINES[name].fit(InDistribution(outputs=samples, classes=np.array([0, 2])))
    np.testing.assert_array_equal(BASELINES[name].of(samples, learned), FUNCTIONS[name](logits))


def test_a_baseline_is_described_by_the_docstring_of_its_formula() -> None:
    def second(logits: np.ndarray) -> np.ndarray:
        """The second largest logit.

        Source: Doe et al. 2001 (second best), equation 3; 1999 in a preprint.
        """
        return np.sort(logits, axis=1)[:, -2]

    found, named = of_logits(second), of_logits(second, summary="runner-up", source="Roe 2002")
    assert (found.summary, found.source) == ("The second largest logit.", "Doe et al. 2001")
    assert (named.summary, named.source) == ("runner-up", "Roe 2002")
