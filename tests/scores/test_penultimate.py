"""Detectors against their formulas in NumPy, float64."""

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

from gradscore.errors import EvaluationError, MissingExtraError
from gradscore.models.last_layer import Head
from gradscore.scores import SCORES, Ordinary, Samples, score_names
from gradscore.scores import penultimate as detectors

GENERATOR = np.random.default_rng(0)
N, D, K = 90, 6, 3
CLASSES = np.arange(N) % K
CENTRES = GENERATOR.normal(2.0, 1.0, (K, D))
FIT = np.abs(GENERATOR.normal(CENTRES[CLASSES], 1.0))
NEW = np.abs(GENERATOR.normal(1.0, 2.0, (11, D)))
HEAD = Head(weight=GENERATOR.normal(size=(K, D)), bias=GENERATOR.normal(size=K))


def samples_of(features):
    return Samples(logits=features @ HEAD.weight[:, : features.shape[1]].T + HEAD.bias, penultimate=features)


def fitted(name, features=FIT, classes=CLASSES):
    """A score as a function of features."""
    score = SCORES[name].fit(Ordinary(samples=samples_of(features), classes=classes, head=HEAD))
    return lambda new: score(samples_of(new))


def energy(features):
    return -logsumexp(features @ HEAD.weight.T + HEAD.bias, axis=1)


def knn(x):
    unit, fitted = (values / np.linalg.norm(values, axis=1, keepdims=True) for values in (x, FIT))
    return np.sort(np.linalg.norm(unit[:, None] - fitted[None], axis=2), axis=1)[:, 49]


def distances(x, centres, scatter):
    offsets = x[:, None] - centres[None]
    return np.einsum("nkd,de,nke->nk", offsets, np.linalg.inv(scatter), offsets)


MEANS = np.stack([FIT[k == CLASSES].mean(0) for k in range(K)])
WITHIN = (FIT - MEANS[CLASSES]).T @ (FIT - MEANS[CLASSES])
AROUND = (FIT - FIT.mean(0)).T @ (FIT - FIT.mean(0))


def relative(x):
    return (distances(x, MEANS, WITHIN) - distances(x, FIT.mean(0, keepdims=True), AROUND)).min(1)


def vim(x):
    origin = -np.linalg.pinv(HEAD.weight) @ HEAD.bias
    vectors = np.linalg.eigh((FIT - origin).T @ (FIT - origin))[1][:, : D - 3]
    residual = np.linalg.norm((x - origin) @ vectors, axis=1)
    of_fit = np.linalg.norm((FIT - origin) @ vectors, axis=1)
    alpha = (FIT @ HEAD.weight.T + HEAD.bias).max(1).mean() / of_fit.mean()
    return alpha * residual + energy(x)


def kept(x):
    """The largest 35 % of the features, that is two of six, the others zero."""
    return np.where(x >= np.sort(x, axis=1)[:, [-2]], x, 0.0)


def growth(x):
    return np.exp(x.sum(1) / kept(x).sum(1))[:, None]


def gradnorm(x):
    p = softmax(x @ HEAD.weight.T + HEAD.bias, axis=1)
    return -np.abs(p - 1 / K).sum(1) * np.abs(x).sum(1)


TRUTH = {
    "knn": knn,
    "mahalanobis": lambda x: distances(x, MEANS, WITHIN).min(1) / 2,
    "relative_mahalanobis": relative,
    "vim": vim,
    "react": lambda x: energy(np.minimum(x, np.percentile(FIT, 90))),
    "ash": lambda x: energy(kept(x) * growth(x)),
    "scale": lambda x: energy(x * growth(x)),
    "gradnorm": gradnorm,
}


def test_all_are_compared():
    assert list(TRUTH) == score_names("penultimate")


@pytest.mark.parametrize("name", TRUTH)
def test_equals_the_formula(name):
    np.testing.assert_allclose(fitted(name)(NEW), TRUTH[name](NEW), rtol=2e-4, atol=1e-5)


def test_gradnorm_is_the_norm_of_the_gradient():
    """By finite differences of the loss, minus the mean over classes of log softmax."""
    x, step = NEW[0], 1e-6

    def loss(weight):
        return -log_softmax(weight @ x + HEAD.bias).mean()

    steps = step * np.eye(K * D).reshape(-1, K, D)
    total = sum(abs(loss(HEAD.weight + each) - loss(HEAD.weight - each)) / (2 * step) for each in steps)
    assert gradnorm(NEW)[0] == pytest.approx(-total, rel=1e-6)


def test_classes_that_do_not_occur_are_no_hindrance():
    gaps = fitted("mahalanobis", FIT, CLASSES * 2 + 1)(NEW)
    np.testing.assert_array_equal(gaps, fitted("mahalanobis")(NEW))


def test_few_samples_have_fewer_neighbours():
    scores = fitted("knn", FIT[:5], CLASSES[:5])(NEW)
    assert (scores > 0).all()


WIDTHS = {"narrow": (1, 1), "resnet20": (64, 32), "vit": (768, 512), "resnet50": (2048, 1000)}


@pytest.mark.parametrize(("width", "dimensions"), WIDTHS.values(), ids=WIDTHS)
def test_principal_dimensions(width, dimensions):
    assert detectors.principal_dimensions(width) == dimensions


BAD = {
    "one sample": (FIT[:1], CLASSES[:1], "at least 2 in-distribution samples"),
    "another width": (FIT[:, :2], CLASSES, r"features \(N, 6\)"),
    "not finite": (np.where(FIT.max() > FIT, FIT, np.nan), CLASSES, "not finite"),
}


@pytest.mark.parametrize(("features", "classes", "message"), BAD.values(), ids=BAD)
def test_refused(features, classes, message):
    with pytest.raises(EvaluationError, match=message):
        fitted("vim", features, classes)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(detectors, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gradscore\[baselines\]'"):
        fitted("knn")
