"""Scores of augmentations against numbers worked by hand, and against mpmath where float64 would cancel."""

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from score_names import score_names

from gradscore.baselines import BASELINES, FittedBaselines, InDistribution, NetworkOutputs
from gradscore.errors import EvaluationError


def seen(logits, *augmentations, features=None):
    """One sample by its logits and those of its augmentations, with features (V + 1, D) of all of them."""
    rows = [np.array([row], dtype=np.float64) for row in (logits, *augmentations)]
    penultimate = [None] * len(rows) if features is None else [np.array([row]) for row in features]
    looks = [NetworkOutputs(logits=row, penultimate=each) for row, each in zip(rows, penultimate, strict=True)]
    return NetworkOutputs(
        logits=looks[0].logits,
        penultimate=looks[0].penultimate,
        augmentations={f"augmentation {place}": look for place, look in enumerate(looks[1:])},
    )


def score(name, samples):
    learned = BASELINES[name].fit(InDistribution(outputs=samples, classes=samples.predictions))
    found = BASELINES[name].of(samples, learned)
    assert (found.shape, found.dtype) == ((len(samples),), np.float64)
    return found[0]


HALF = np.log([0.5, 0.5])
QUARTER = np.log([0.75, 0.25])
TENTH = np.log([0.1, 0.9])

BY_HAND = {
    "probability: p of 3/4, 1/2 and 1/10": ("augmentations_probability", np.log(1 - (0.75 + 0.5 + 0.1) / 3)),
    "temperature: as they are, with the predicted class likeliest at none": (
        "augmentations_temperature",
        np.log(1 - (0.75 + 0.5 + 0.1) / 3),
    ),
    "log probability: the mean of their logarithms": (
        "augmentations_log_probability",
        -(np.log(0.75) + np.log(0.5) + np.log(0.1)) / 3,
    ),
    "entropy: of the mean 0.45, 0.55": ("augmentations_entropy", -(0.45 * np.log(0.45) + 0.55 * np.log(0.55))),
    "logits: their variance, summed": (
        "augmentations_logits",
        np.log(np.var([QUARTER[0], HALF[0], TENTH[0]]) + np.var([QUARTER[1], HALF[1], TENTH[1]])),
    ),
    "features: cosines of 0.6 and 0": ("augmentations_features", 1 - (0.6 + 0.0) / 2),
}


def test_all_are_worked_by_hand():
    assert [name for name, _ in BY_HAND.values()] == [
        *score_names("augmentations"),
        *score_names("features of augmentations"),
    ]


@pytest.mark.parametrize(("name", "wanted"), BY_HAND.values(), ids=BY_HAND)
def test_equals_the_number_worked_by_hand(name, wanted):
    samples = seen(QUARTER, HALF, TENTH, features=[[2.0, 0.0], [0.3, 0.4], [0.0, 5.0]])
    assert score(name, samples) == pytest.approx(wanted, rel=1e-6 if name == "augmentations_features" else 1e-12)


def labelled(count, *, scale):
    """Samples of classes drawn from the softmax of their logits, which are then `scale` times as large."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0.0, 2.0, (count, 4))
    classes = (np.log(softmax(logits, axis=1)) + generator.gumbel(size=logits.shape)).argmax(axis=1)
    return InDistribution(outputs=NetworkOutputs(logits=scale * logits), classes=classes)


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_the_temperature_makes_labels_likeliest(scale):
    """Against a search among temperatures."""
    samples = labelled(2000, scale=scale)

    def surprise(power):
        log_p = log_softmax(samples.outputs.logits / np.exp(power), axis=1)
        return -log_p[np.arange(2000), samples.classes].mean()

    found = BASELINES["augmentations_temperature"].fit(samples)["temperature"]
    wanted = np.exp(minimize_scalar(surprise, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x)
    np.testing.assert_allclose(found, [wanted], rtol=1e-5)
    assert found[0] == pytest.approx(scale, rel=0.1)


def test_probabilities_are_averaged_at_the_temperature():
    """Of logits twice as large, at temperature 2."""
    samples = seen(2 * QUARTER, 2 * HALF, 2 * TENTH)
    found = BASELINES["augmentations_temperature"].of(samples, {"temperature": np.array([2.0])})
    np.testing.assert_allclose(found, [np.log(1 - (0.75 + 0.5 + 0.1) / 3)], rtol=1e-12)


def test_a_bank_that_trained_the_network_tells_no_temperature():
    in_dist, unseen = labelled(500, scale=30.0), labelled(500, scale=3.0)
    fitted = FittedBaselines.fit(in_dist, unseen=unseen, augmentations=["flip"])
    assert fitted.learned["augmentations_temperature"] == BASELINES["augmentations_temperature"].fit(unseen)


@pytest.mark.parametrize("gap", [46.0, 200.0, 800.0], ids=["1 - 1e-20", "1 - 1e-87", "beyond float64"])
def test_a_probability_of_nearly_one_does_not_cancel(gap):
    """Of two classes, p = 1 / (1 + exp(-gap)) in the sample, and with half the gap more in its augmentation."""
    with mpmath.workdps(1000):
        others = [1 / (1 + mpmath.exp(mpmath.mpf(each))) for each in (gap, 1.5 * gap)]
        wanted = float(mpmath.log(sum(others) / 2))
    assert score("augmentations_probability", seen([gap, 0.0], [1.5 * gap, 0.0])) == pytest.approx(wanted, rel=1e-14)


def test_the_class_is_the_one_predicted_of_the_sample():
    """Its augmentations may be of another: the probability of class 0 counts, by hand 3/4 and 1/10."""
    assert score("augmentations_probability", seen(QUARTER, TENTH)) == pytest.approx(np.log(1 - 0.425), rel=1e-12)


def test_augmentations_that_change_nothing():
    same = seen(QUARTER, QUARTER, QUARTER, features=[[1.0, 2.0]] * 3)
    assert score("augmentations_probability", same) == pytest.approx(np.log(0.25), rel=1e-12)
    assert score("augmentations_logits", same) == pytest.approx(np.log(1e-12), rel=1e-12)
    assert score("augmentations_features", same) == pytest.approx(0.0, abs=1e-7)


def test_samples_do_not_mix():
    """Rows of two samples are as those of each alone."""
    first, second = seen(QUARTER, HALF), seen(TENTH, QUARTER)
    both = NetworkOutputs(
        logits=np.vstack([first.logits, second.logits]),
        augmentations={
            "augmentation 0": NetworkOutputs(
                logits=np.vstack(
                    [first.augmentations["augmentation 0"].logits, second.augmentations["augmentation 0"].logits]
                )
            )
        },
    )
    found = BASELINES["augmentations_probability"].of(both, {})
    assert found.tolist() == [score("augmentations_probability", first), score("augmentations_probability", second)]


def test_augmentations_without_features_are_refused():
    with pytest.raises(EvaluationError, match="penultimate features"):
        score("augmentations_features", seen(QUARTER, HALF))
