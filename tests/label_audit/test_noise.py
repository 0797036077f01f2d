"""How many labels are wrong, and which: on labels that were changed, and against likelihoods written out."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.metrics import f1_score, roc_auc_score

from gradscore.label_audit.last_layers import cross_fitted
from gradscore.label_audit.noise import _mistakes, suspects, wrong_labels


def labelled(count: int, *, wrong: float, spread: float, noise: str, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Log probabilities of four classes, labels of which a share was changed, and how many were.

    The probabilities are calibrated but for their temperature. With `alike`, a class is mistaken for the next one.
    """
    random = np.random.default_rng(seed)
    logits = spread * random.normal(size=(count, 4))
    truth = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    changed = random.random(count) < wrong
    by = random.integers(1, 4, count) if noise == "uniform" else 1
    return log_softmax(1.5 * logits, axis=1), np.where(changed, (truth + by) % 4, truth), int(changed.sum())


def log_odds_of(log_p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    own = np.eye(log_p.shape[1], dtype=bool)[labels]
    return np.where(own, -np.inf, log_p).max(axis=1) - log_p[own]


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["uniform", "alike"])
@pytest.mark.parametrize("wrong", [0.0, 0.03, 0.15])
@pytest.mark.parametrize("spread", [4.0, 12.0], ids=["classes overlap", "classes are apart"])
def test_the_interval_holds_the_number_of_changed_labels(wrong: float, noise: str, spread: float) -> None:
    held, errors = 0, []
    for seed in range(3):
        log_p, labels, changed = labelled(2000, wrong=wrong, spread=spread, noise=noise, seed=seed)
        found = wrong_labels(log_p, log_odds_of(log_p, labels), labels)
        assert 0 <= found.low <= found.estimate <= found.high <= 2000
        held += found.low <= changed <= found.high
        errors.append(found.estimate - changed)
    assert held >= 2
    assert abs(np.mean(errors)) < 12 + 0.1 * 2000 * wrong


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.15])
def test_classes_may_be_rare(wrong: float) -> None:
    """Three normal distributions that overlap, of which one has nine tenths of the samples; densities written out."""
    random = np.random.default_rng(0)
    truth = random.choice(3, size=2000, p=[0.9, 0.04, 0.06])
    centres = 2.5 * np.eye(3)
    samples = centres[truth] + random.normal(size=(2000, 3))
    labels = np.where(random.random(2000) < wrong, (truth + random.integers(1, 3, 2000)) % 3, truth)
    densities = -((samples[:, None] - centres) ** 2).sum(axis=2) / 2
    log_p = log_softmax(densities + np.log(np.bincount(labels)) / 2, axis=1)
    changed = int((labels != truth).sum())
    found = wrong_labels(log_p, log_odds_of(log_p, labels), labels)
    assert found.low <= changed <= found.high
    assert abs(found.estimate - changed) < 12 + 0.1 * 2000 * wrong


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["uniform", "overlooked"])
@pytest.mark.parametrize("classes", [2, 4])
def test_wrong_labels_are_found_where_one_class_has_nearly_all(classes: int, noise: str) -> None:
    """Most labels of the rare classes are wrong, or a third of their samples have the label of the frequent one."""
    random = np.random.default_rng(0)
    shares = np.full(classes, 0.1 / (classes - 1))
    shares[0] = 0.9
    truth = random.choice(classes, size=1500, p=shares)
    features = random.normal(size=(classes, 20))[truth] + random.normal(size=(1500, 20))
    if noise == "uniform":
        labels = np.where(random.random(1500) < 0.1, (truth + random.integers(1, classes, 1500)) % classes, truth)
    else:
        labels = np.where(random.random(1500) < 0.3, 0, truth)
    log_p = cross_fitted(features, labels, classes, seed=0)
    log_odds, wrong = log_odds_of(log_p, labels), labels != truth
    assert roc_auc_score(wrong, log_odds) > 0.97
    assert f1_score(wrong, suspects(log_odds)) > 0.75
    found = wrong_labels(log_p, log_odds, labels)
    assert found.low <= wrong.sum() <= found.up_to
    if noise == "uniform":
        assert found.estimate == pytest.approx(wrong.sum(), abs=15, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("apart", [2.0, 3.0])
def test_a_class_may_be_mistaken_for_another_one_and_not_the_other_way_round(apart: float, share: float) -> None:
    """Two normal distributions; some of the first have the label of the second, so there are more of its labels."""
    errors = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        truth = random.integers(2, size=800)
        features = random.normal(size=(800, 8))
        features[:, 0] += apart * (2 * truth - 1) / np.sqrt(2)
        labels = np.where((truth == 0) & (random.random(800) < share), 1, truth)
        log_p = cross_fitted(features, labels, 2, seed=0)
        found = wrong_labels(log_p, log_odds_of(log_p, labels), labels)
        errors.append(found.estimate / (labels != truth).sum() - 1)
        assert found.low <= (labels != truth).sum() * 1.15
    assert abs(np.mean(errors)) < 0.35


def gaussians(classes: int, count: int, *, apart: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities (N, K) of normal distributions with centres at random, by their densities, and true classes."""
    random = np.random.default_rng(seed)
    centres = apart * random.normal(size=(classes, 20))
    truth = np.repeat(np.arange(classes), count)
    samples = centres[truth] + random.normal(size=(len(truth), 20))
    return log_softmax(-((samples[:, None] - centres) ** 2).sum(axis=2) / 2, axis=1), truth


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0.02, 0.05, 0.1, 0.2])
def test_labels_that_are_wrong_where_classes_look_alike_are_held_by_the_wider_end(wrong: float) -> None:
    """They are those whose label is most easily mistaken, for the class that it is most easily mistaken for."""
    for seed in range(3):
        log_p, truth = gaussians(5, 300, apart=0.5, seed=seed)
        others = np.exp(log_p)
        others[np.arange(1500), truth] = 0
        random = np.random.default_rng(seed)
        chosen = random.choice(1500, round(1500 * wrong), replace=False, p=others.sum(axis=1) / others.sum())
        labels = truth.copy()
        labels[chosen] = [random.choice(5, p=others[each] / others[each].sum()) for each in chosen]
        found = wrong_labels(log_p, log_odds_of(log_p, labels), labels)
        assert found.low <= len(chosen) <= found.up_to


@pytest.mark.slow
def test_no_interval_ends_above_what_fits_worse_than_another_class() -> None:
    """A class is mistaken for the next: classes that overlap may then be taken for one another altogether."""
    for seed in (0, 3):
        log_p, truth = gaussians(3, 300, apart=0.3, seed=seed)
        random = np.random.default_rng(seed)
        labels = np.where(random.random(900) < 0.2, (truth + 1) % 3, truth)
        found = wrong_labels(log_p, log_odds_of(log_p, labels), labels)
        worse = (log_p.argmax(axis=1) != labels).sum()
        assert found.low <= (labels != truth).sum() <= found.high <= found.up_to
        assert found.up_to == np.ceil(worse + 1.959964 * np.sqrt(worse + 1))


def test_the_count_is_that_of_the_greatest_likelihood() -> None:
    """Of two classes, with the share of each that is mistaken, and how frequent it is, found by another search."""
    log_p, labels, _ = labelled(800, wrong=0.1, spread=3.0, noise="uniform", seed=1)
    true = np.exp(log_p[:, :2]) / np.exp(log_p[:, :2]).sum(axis=1, keepdims=True)
    labels = labels % 2

    def given(found: np.ndarray) -> np.ndarray:
        """Probabilities of the given label if its class is the true one, and if it is not."""
        shares, weighed = found[:2], true * np.exp(found[2:])
        weighed /= weighed.sum(axis=1, keepdims=True)
        own, other = weighed[np.arange(800), labels], weighed[np.arange(800), 1 - labels]
        return np.stack([own * (1 - shares[labels]), other * shares[1 - labels]])

    def unlikely(found: np.ndarray) -> float:
        """With normal logarithms of how frequent classes are, whose standard deviation is a half."""
        return -float(np.log(given(found).sum(axis=0)).sum() - 2 * (found[2:] ** 2).sum())

    limits = [(1e-6, 0.9)] * 2 + [(-3.0, 3.0)] * 2
    options = {"xatol": 1e-8, "fatol": 1e-10, "maxiter": 5000}
    best = minimize(unlikely, [0.1, 0.1, 0, 0], method="Nelder-Mead", bounds=limits, options=options)
    right, mistaken = given(best.x)
    count, likelihood = _mistakes(true, labels, as_alike=True)
    assert likelihood == pytest.approx(-best.fun, rel=1e-3)
    assert count == pytest.approx(float((mistaken / (right + mistaken)).sum()), rel=0.03)


def test_classes_may_have_a_label_or_two() -> None:
    """Then parts of the samples that are left out in turn hold all of a class."""
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(300, 100))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    log_p = log_softmax(logits, axis=1)
    found = wrong_labels(log_p, log_odds_of(log_p, labels), labels)
    assert 0 <= found.low <= found.estimate <= found.high <= 300


def test_classes_without_a_label_change_nothing() -> None:
    log_p, labels, _ = labelled(400, wrong=0.1, spread=6.0, noise="uniform", seed=0)
    more = log_softmax(np.hstack([log_p, np.full((400, 300), -40.0)]), axis=1)
    few, many = (_mistakes(np.exp(each), labels, as_alike=True) for each in (log_p, more))
    np.testing.assert_allclose(many, few, rtol=1e-2)


def noisy(count: int, *, wrong: float, close: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of another class to the label of calibrated predictions, and which labels are wrong.

    Of all labels the first share is wrong whatever the prediction, and the second where classes are close.
    """
    random = np.random.default_rng(seed)
    size = random.gamma(2.0, 2.0, count)
    natural = random.random(count) < 1 / (1 + np.exp(3 * size))
    flipped = random.random(count) < wrong + close * np.exp(-2 * size)
    return np.where(natural ^ flipped, size, -size), flipped


def f1(flagged: np.ndarray, wrong: np.ndarray) -> float:
    return 2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum())


def test_what_is_suspected_is_nearly_what_finds_most() -> None:
    log_odds, wrong = noisy(5000, wrong=0.05, close=0.0, seed=0)
    every = max(f1(log_odds > limit, wrong) for limit in np.linspace(0, 5, 200))
    assert f1(suspects(log_odds), wrong) > every - 0.01
    assert f1(suspects(log_odds), wrong) > f1(log_odds > 0, wrong)


def test_where_noise_is_in_close_calls_all_that_fit_worse_are_suspected() -> None:
    log_odds, _ = noisy(5000, wrong=0.0, close=0.5, seed=1)
    np.testing.assert_array_equal(suspects(log_odds), log_odds > 0)


NOTHING = {"nothing fits worse": -np.arange(1.0, 9), "all the same": np.zeros(8), "one": np.array([1.0])}


@pytest.mark.parametrize("log_odds", NOTHING.values(), ids=NOTHING)
def test_labels_that_say_nothing_of_noise(log_odds: np.ndarray) -> None:
    np.testing.assert_array_equal(suspects(log_odds), log_odds > 0)
