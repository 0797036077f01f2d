"""Scores of penultimate features against their formulas in NumPy, float64, and against pytorch-ood, float32."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, logsumexp, softmax
from score_names import score_names

from gradscore.baselines import BASELINES, InDistribution, NetworkOutputs, formulas
from gradscore.errors import EvaluationError
from gradscore.models.layers import Head
from gradscore.system import import_torchvision

GENERATOR = np.random.default_rng(0)
N, D, K = 90, 6, 3
CLASSES = np.arange(N) % K
CENTRES = GENERATOR.normal(2.0, 1.0, (K, D))
FIT = np.abs(GENERATOR.normal(CENTRES[CLASSES], 1.0))
NEW = np.abs(GENERATOR.normal(1.0, 2.0, (11, D)))
HEAD = Head(weight=CENTRES, bias=-0.5 * (CENTRES**2).sum(1))  # the nearest centre is predicted


def samples_of(features):
    return NetworkOutputs(logits=features @ HEAD.weight[:, : features.shape[1]].T + HEAD.bias, penultimate=features)


def fitted(name, features=FIT, classes=CLASSES, head=HEAD):
    """A score as a function of features."""
    score = BASELINES[name]
    learned = score.fit(InDistribution(outputs=samples_of(features), classes=classes, head=head))
    return lambda new: score.of(samples_of(new), learned)


def energy(features):
    return -logsumexp(features @ HEAD.weight.T + HEAD.bias, axis=1)


def distances(x, centres, scatter):
    offsets = x[:, None] - centres[None]
    return np.einsum("nkd,de,nke->nk", offsets, np.linalg.inv(scatter), offsets)


MEANS = np.stack([FIT[k == CLASSES].mean(0) for k in range(K)])
WITHIN = (FIT - MEANS[CLASSES]).T @ (FIT - MEANS[CLASSES]) / N
AROUND = (FIT - FIT.mean(0)).T @ (FIT - FIT.mean(0)) / N


def relative(x):
    return (distances(x, MEANS, WITHIN) - distances(x, FIT.mean(0, keepdims=True), AROUND)).min(1)


def unit_mahalanobis(x):
    train, new = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (FIT, x))
    means = np.stack([train[k == CLASSES].mean(0) for k in range(K)])
    return np.log(distances(new, means, (train - means[CLASSES]).T @ (train - means[CLASSES]) / N).min(1))


def wdiscood(x):
    """As in the authors' code: `WDiscOOD` of scorer_dist.py, as its script calls it for a ResNet-50."""
    values, vectors = np.linalg.eigh(WITHIN)
    white = vectors @ np.diag(values**-0.5) @ vectors.T
    train, new = FIT @ white, x @ white
    means = np.stack([train[k == CLASSES].mean(0) for k in range(K)])
    within = (train - means[CLASSES]).T @ (train - means[CLASSES]) / N
    between = (means - train.mean(0)).T @ (means - train.mean(0)) / K
    ratios, directions = np.linalg.eig(np.linalg.inv(within + 1e-5 * np.eye(D)) @ between)
    kept = directions.real[:, np.argsort(-ratios.real)[: K - 1]]
    basis = np.linalg.svd(kept.T)[2][: K - 1]
    along = np.linalg.norm((new[:, None] - means[None]) @ kept, axis=2).min(1)
    return along + 5 * np.linalg.norm((new - train.mean(0)) @ (np.eye(D) - basis.T @ basis), axis=1)


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


def predicted(x):
    return (x @ HEAD.weight.T + HEAD.bias).argmax(1)


def along(x):
    offsets = x - FIT.mean(0)
    return np.einsum("nd,nd->n", offsets, HEAD.weight[predicted(x)]) / np.sqrt((offsets**2).sum(1))


ALPHA = 0.3 * along(FIT).mean() / np.abs(FIT).sum(1).mean()


def pnml(x):
    """As in the authors' code: `calc_regrets` of baseline_lit_utils.py."""
    train, new = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (FIT, x))
    p = softmax(new @ HEAD.weight.T + HEAD.bias, axis=1)
    projected = np.einsum("nd,de,ne->n", new, np.linalg.inv(train.T @ train), new)[:, None]
    genie = p / (p + (1 - p) * p ** (projected / (1 + projected)))
    return np.log(genie.sum(1)) / np.log(K)


def sirc(x):
    """Minus log of -C, C = -(S1max - S1)(1 + exp(-b (S2 - a))), a = mu - 3 sigma and b = 1 / sigma of S2."""
    norms = np.abs(FIT).sum(1)
    a, b = norms.mean() - 3 * norms.std(), 1 / norms.std()
    largest = softmax(x @ HEAD.weight.T + HEAD.bias, axis=1).max(1)
    return np.log((1 - largest) * (1 + np.exp(-b * (np.abs(x).sum(1) - a))))


def she(x):
    right = predicted(FIT) == CLASSES
    means = np.stack([FIT[right & (k == CLASSES)].mean(0) for k in range(K)])
    return -np.einsum("nd,nd->n", x, means[predicted(x)])


def fdbd(x):
    logits, chosen = x @ HEAD.weight.T + HEAD.bias, predicted(x)
    found = []
    for row, k, sample in zip(logits, chosen, x, strict=True):
        others = [c for c in range(K) if c != k]
        to_boundaries = [(row[k] - row[c]) / np.linalg.norm(HEAD.weight[k] - HEAD.weight[c]) for c in others]
        found.append(-np.mean(to_boundaries) / np.linalg.norm(sample - FIT.mean(0)))
    return np.array(found)


def dice(x):
    contributions = FIT.mean(0) * HEAD.weight
    weight = np.where(contributions > np.quantile(contributions, 0.7), HEAD.weight, 0)
    return -logsumexp(x @ weight.T + HEAD.bias, axis=1)


TRUTH = {
    "mahalanobis": lambda x: np.log(distances(x, MEANS, WITHIN).min(1)),
    "relative_mahalanobis": relative,
    "unit_mahalanobis": unit_mahalanobis,
    "wdiscood": wdiscood,
    "vim": vim,
    "react": lambda x: energy(np.minimum(x, np.percentile(FIT, 90))),
    "ash": lambda x: energy(kept(x) * growth(x)),
    "scale": lambda x: energy(x * growth(x)),
    "gradnorm": gradnorm,
    "feature_norm": lambda x: -0.5 * np.log((x**2).sum(1)),
    "nci": lambda x: -(along(x) + ALPHA * np.abs(x).sum(1)),
    "pnml": pnml,
    "sirc": sirc,
    "she": she,
    "fdbd": fdbd,
    "dice": dice,
}


def test_all_are_compared():
    assert list(TRUTH) == score_names("penultimate")


@pytest.mark.parametrize("name", TRUTH)
def test_equals_the_formula(name):
    np.testing.assert_allclose(fitted(name)(NEW), TRUTH[name](NEW), rtol=1e-9)


def single(values):
    return torch.tensor(np.asarray(values), dtype=torch.float32)


class Peers:
    """The detectors of pytorch-ood on the same features; those of feature maps see features as maps of one pixel."""

    def __init__(self):
        import_torchvision()
        from pytorch_ood import detector

        self._detector = detector
        self._weight, self._bias = single(HEAD.weight), single(HEAD.bias)

    def _layer(self):
        layer = torch.nn.Linear(D, K)
        layer.load_state_dict({"weight": self._weight, "bias": self._bias})
        return layer

    def _of_maps(self, name):
        layer = self._layer()
        found = getattr(self._detector, name)(backbone=None, head=lambda maps: layer(maps.flatten(1)))
        found.to("cpu")
        return found

    def _of_features(self, found):
        found.to("cpu")
        found.fit_features(single(FIT), torch.tensor(CLASSES))
        return found.predict_features(single(NEW))

    def mahalanobis(self):
        """Half the distance, with a covariance that is not divided by the number of samples."""
        return torch.log(self._of_features(self._detector.Mahalanobis(None)) * 2 * N)

    def relative_mahalanobis(self):
        """With covariances that are not divided by the number of samples."""
        return self._of_features(self._detector.RMD(None)) * N

    def vim(self):
        return self._of_features(self._detector.ViM(None, d=D // 2, w=self._weight, b=self._bias))

    def react(self):
        found = self._of_maps("ReAct")
        found.fit_feature_maps(single(FIT)[..., None, None], torch.tensor(CLASSES))
        return found.predict_feature_maps(single(NEW)[..., None, None])

    def ash(self):
        return self._of_maps("ASH").predict_feature_maps(single(NEW)[..., None, None])

    def scale(self):
        return self._of_maps("SCALE").predict_feature_maps(single(NEW)[..., None, None])

    def gradnorm(self):
        found = self._detector.GradNorm(self._layer(), param_filter=lambda name: name == "weight")
        return found.to("cpu").predict(single(NEW))

    def nci(self):
        return self._of_features(self._detector.NCI(None, self._layer(), alpha=ALPHA))

    def pnml(self):
        return self._of_features(self._detector.PNML(None, self._layer()))

    def she(self):
        return self._of_features(self._detector.SHE(None, self._layer()))

    def fdbd(self):
        return self._of_features(self._detector.fDBD(None, self._layer()))

    def dice(self):
        return self._of_features(self._detector.DICE(None, self._weight, self._bias, p=0.7))


@pytest.mark.parametrize("name", sorted(set(TRUTH) - {"feature_norm", "sirc", "unit_mahalanobis", "wdiscood"}))
def test_equals_pytorch_ood(name):
    peer = getattr(Peers(), name)().detach().numpy()
    np.testing.assert_allclose(fitted(name)(NEW), peer, rtol=1e-3, atol=1e-5)


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


def test_of_one_class_wdiscood_is_the_distance_to_its_mean():
    score = fitted("wdiscood", classes=np.zeros(N, dtype=int))
    wanted = 5 * np.sqrt(distances(NEW, FIT.mean(0, keepdims=True), AROUND)[:, 0])
    np.testing.assert_allclose(score(NEW), wanted, rtol=1e-9)


@pytest.mark.parametrize("far", [1.0, 100.0])
def test_the_nearest_of_many_means_is_that_of_all_distances(far, monkeypatch):
    monkeypatch.setattr(formulas, "_ENTRIES_TOGETHER", 400 * 40)
    classes = np.arange(1200) % 400
    features = GENERATOR.normal(size=(400, 40))[classes] + 0.1 * GENERATOR.normal(size=(1200, 40)) + far
    means = features.reshape(3, 400, 40).mean(0)
    scatter = (features - means[classes]).T @ (features - means[classes]) / 1200
    new = features[:90] + 0.05 * GENERATOR.normal(size=(90, 40))
    head = Head(weight=np.zeros((400, 40)), bias=np.zeros(400))
    learned = BASELINES["mahalanobis"].fit(
        InDistribution(
            outputs=NetworkOutputs(logits=np.eye(400)[classes], penultimate=features), classes=classes, head=head
        )
    )
    found = BASELINES["mahalanobis"].of(NetworkOutputs(logits=np.eye(400)[classes[:90]], penultimate=new), learned)
    frame = np.linalg.cholesky(np.linalg.inv(scatter))
    wanted = cdist((new - far) @ frame, (means - far) @ frame, "sqeuclidean").min(axis=1)
    np.testing.assert_allclose(np.exp(found), wanted, rtol=1e-7)


def test_a_feature_without_variance_is_no_hindrance():
    """The distance is that in the space that the others span."""
    constant = np.column_stack([FIT[:, :-1], np.full(N, 3.0)])
    new = np.column_stack([NEW[:, :-1], np.full(len(NEW), 3.0)])
    means = np.stack([FIT[k == CLASSES, :-1].mean(0) for k in range(K)])
    offsets = FIT[:, :-1] - means[CLASSES]
    wanted = np.log(distances(NEW[:, :-1], means, offsets.T @ offsets / N).min(1))
    np.testing.assert_allclose(fitted("mahalanobis", constant)(new), wanted, rtol=1e-9)


@pytest.mark.parametrize("name", ["ash", "scale"])
def test_features_that_are_all_zero_have_the_energy_of_the_bias(name):
    np.testing.assert_allclose(fitted(name)(np.zeros((1, D))), [-logsumexp(HEAD.bias)], rtol=1e-12)


def test_she_of_classes_that_are_never_right_compares_with_all_samples():
    score = fitted("she", classes=(predicted(FIT) + 1) % K)
    np.testing.assert_allclose(score(NEW), -NEW @ FIT.mean(0), rtol=1e-12)


def test_of_equal_features_ash_keeps_as_many_as_of_others():
    """Two of six, whichever: with equal columns of the last layer it does not matter which."""
    head = Head(weight=np.ones((K, D)) * np.arange(K)[:, None], bias=np.zeros(K))
    wanted = -logsumexp(np.arange(K) * 2 * np.exp(3.0))
    np.testing.assert_allclose(fitted("ash", head=head)(np.ones((1, D))), [wanted], rtol=1e-12)


WIDTHS = {"narrow": (1, 1), "resnet20": (64, 32), "vit": (768, 512), "resnet50": (2048, 1000)}


@pytest.mark.parametrize(("width", "dimensions"), WIDTHS.values(), ids=WIDTHS)
def test_principal_dimensions(width, dimensions):
    assert formulas.principal_dimensions(width) == dimensions


BAD = {
    "one sample": (FIT[:1], CLASSES[:1], "at least 2 in-distribution samples"),
    "another width": (FIT[:, :2], CLASSES, r"features \(N, 6\)"),
    "not finite": (np.where(FIT.max() > FIT, FIT, np.nan), CLASSES, "not finite"),
}


@pytest.mark.parametrize(("features", "classes", "message"), BAD.values(), ids=BAD)
def test_refused(features, classes, message):
    with pytest.raises(EvaluationError, match=message):
        fitted("vim", features, classes)


def test_features_without_the_last_layer_are_refused():
    with pytest.raises(EvaluationError, match="without the last layer"):
        fitted("vim", head=None)
