"""The Gaussian process from terms to accuracies, against scikit-learn, fits without a group, and by hand."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from gradscore.monitoring.accuracy import EDGE, KERNEL_VARIANCE, LEAST, GaussianProcess, KnownWindow, Observations


def windows(groups: int, *, seed: int = 0, noise: float = 1e-4) -> list[KnownWindow]:
    """The accuracy falls with the first term, and with the square of the second one."""
    random = np.random.default_rng(seed)
    found = [KnownWindow(np.zeros(3), 0.9, noise, ())]
    for place in range(groups):
        for _ in range(5):
            terms = random.normal(size=3)
            accuracy = float(expit(logit(0.9) - terms[0] - 0.5 * terms[1] ** 2 + random.normal(0, 0.1)))
            found.append(KnownWindow(terms, accuracy, noise, (f"kind {place}",)))
    return found


KNOWN = windows(25)
FITTED = GaussianProcess.fitted(KNOWN)


def test_without_shift_it_is_the_usual_accuracy() -> None:
    assert FITTED.at(KNOWN[0].terms)[0] == pytest.approx(0.9)


def test_it_learns_lines_and_bends() -> None:
    others = windows(20, seed=1)
    errors = [FITTED.at(each.terms)[0] - each.accuracy for each in others]
    assert np.sqrt(np.mean(np.square(errors))) < 0.05


def test_it_is_the_process_of_scikit_learn() -> None:
    """Without shift is known there as a window without noise, here by the covariances; the mean is the first term."""
    scale = np.sqrt(np.mean([each.terms**2 for each in KNOWN], axis=0)) + 1e-9
    process = GaussianProcess.of(Observations.of(KNOWN), 0.7, 0.1)
    accuracy = np.clip([each.accuracy for each in KNOWN], EDGE, 1 - EDGE)
    noise = np.array([each.noise for each in KNOWN]) / (accuracy * (1 - accuracy)) ** 2
    kernel = ConstantKernel(1 / 3, "fixed") * DotProduct(0.0, "fixed") + ConstantKernel(KERNEL_VARIANCE, "fixed") * RBF(
        0.7 * np.sqrt(3), "fixed"
    )
    peer = GaussianProcessRegressor(kernel, alpha=np.r_[1e-10, noise[1:] + 0.1], optimizer=None)
    known = np.array([each.terms for each in KNOWN])
    peer.fit(known / scale, logit(accuracy) - logit(0.9) - known[:, 0])
    terms = np.array([0.3, -1.2, 0.5])
    mean, deviation = peer.predict((terms / scale)[None], return_std=True)
    found = process.at(terms)
    assert found[0] == pytest.approx(float(expit(mean[0] + logit(0.9) + terms[0])), abs=1e-6)
    slope = found[0] * (1 - found[0])
    assert found[1] == pytest.approx(np.sqrt((deviation[0] ** 2 + 0.1) * slope**2 + LEAST**2), rel=1e-5)


def test_what_is_left_out_is_what_a_fit_without_it_says() -> None:
    left = next(each for each in FITTED.left_out if each.group == "kind 3")
    rest = [each for each in KNOWN if "kind 3" not in each.groups]
    without = GaussianProcess.of(Observations.of(rest, FITTED.known.scale), FITTED.length_scale, FITTED.noise_variance)
    wanted = [without.at(KNOWN[place].terms) for place in left.windows]
    np.testing.assert_allclose(left.accuracy, [accuracy for accuracy, _ in wanted], rtol=1e-7)
    np.testing.assert_allclose(left.deviation, [deviation for _, deviation in wanted], rtol=1e-6)


def test_intervals_hold_new_groups() -> None:
    """A kind that nothing was fitted on is wrong altogether, by an amount of its own."""

    def of(seed: int, groups: int) -> list[KnownWindow]:
        random = np.random.default_rng([1, seed])
        offsets = {f"kind {place}": random.normal(0, 0.7) for place in range(groups)}
        return [
            each._replace(accuracy=float(expit(logit(each.accuracy) + offsets.get("".join(each.groups), 0.0))))
            for each in windows(groups, seed=seed)
        ]

    held = []
    for seed in range(40):
        fitted = GaussianProcess.fitted(of(seed, 24))
        for each in of(seed + 1000, 6)[1:]:
            accuracy, deviation = fitted.at(each.terms)
            held.append(abs(accuracy - each.accuracy) <= fitted.stretch * deviation)
    assert 0.9 <= np.mean(held) < 0.96


def test_the_stretch_is_the_quantile_over_groups() -> None:
    groups = FITTED.left_out
    scores = []
    for each in groups:
        true = np.array([KNOWN[place].accuracy for place in each.windows])
        noise = np.array([KNOWN[place].noise for place in each.windows])
        beyond = np.maximum((each.accuracy - true) ** 2 - 1.644854**2 * noise, 0)
        scores += (np.sqrt(beyond) / each.deviation).tolist()
    # 125 scores of 25 groups count 1/26/5 each: the 117th is the first with 0.9 or more below or at it.
    assert FITTED.stretch == pytest.approx(sorted(scores)[116])


def test_optional_terms_are_looked_at_only_where_that_is_better() -> None:
    second, third = (GaussianProcess.fitted(KNOWN, slice(place, place + 1)) for place in (1, 2))
    assert np.isfinite(second.known.scale).all(), "the accuracy depends on it"
    assert not np.isfinite(third.known.scale[2]), "the third term is noise"
    without = GaussianProcess.fitted([each._replace(terms=each.terms[:2]) for each in KNOWN])
    assert third.at(np.array([0.3, -1.2, 5.0])) == pytest.approx(without.at(np.array([0.3, -1.2])))


def test_without_groups_nothing_is_known_of_its_error() -> None:
    assert GaussianProcess.fitted(windows(1)).stretch == np.inf
