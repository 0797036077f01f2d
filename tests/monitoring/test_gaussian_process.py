"""The Gaussian process from terms to accuracies, against scikit-learn, fits without a group, and by hand."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from gradscore.monitoring.accuracy import (
    EDGE,
    KERNEL_VARIANCE,
    LEAST,
    GaussianProcess,
    KnownWindow,
    Observations,
    _inverse,
)


def process_of(known: Observations, length_scale: float, noise_variance: float) -> GaussianProcess:
    return GaussianProcess._with(known, known.covariances(length_scale), length_scale, noise_variance)


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
    assert np.sqrt(np.mean(np.square(errors))) < 0.055


def bent(moved: np.ndarray) -> np.ndarray:
    """A line near 0, and a logarithm beyond 2: twice the area of a hyperbola."""
    half = np.abs(moved) / 2
    return np.sign(moved) * 2 * np.log(half + np.sqrt(half**2 + 1))


def test_it_is_the_process_of_scikit_learn() -> None:
    """Without shift is known there as a window without noise, here by the covariances; the mean is the first term."""
    scale = np.sqrt(np.mean([each.terms**2 for each in KNOWN], axis=0)) + 1e-9
    process = process_of(Observations.of(KNOWN), 0.7, 0.1)
    accuracy = np.clip([each.accuracy for each in KNOWN], EDGE, 1 - EDGE)
    noise = np.array([each.noise for each in KNOWN]) / (accuracy * (1 - accuracy)) ** 2
    kernel = ConstantKernel(1 / 3, "fixed") * DotProduct(0.0, "fixed") + ConstantKernel(KERNEL_VARIANCE, "fixed") * RBF(
        0.7 * np.sqrt(3), "fixed"
    )
    peer = GaussianProcessRegressor(kernel, alpha=np.r_[1e-10, noise[1:] + 0.1], optimizer=None)
    known = np.array([each.terms for each in KNOWN])
    peer.fit(bent(known / scale), logit(accuracy) - logit(0.9) - known[:, 0])
    for terms in np.array([[0.3, -1.2, 0.5], [3.0, -9.0, 4.0]]):
        accuracy, size = process.at(terms)
        (expected,), (deviation,) = peer.predict(bent(terms / scale)[None], return_std=True)
        assert accuracy == pytest.approx(float(expit(expected + logit(0.9) + terms[0])), abs=1e-6)
        # The size of an error: a derivative by the log-odds, their deviation, and the root of z / (z + 1/4).
        slope = (expit(logit(accuracy) + 1e-5) - expit(logit(accuracy) - 1e-5)) / 2e-5
        moved = np.sqrt(np.mean(bent(terms / scale) ** 2))
        by_hand = slope * np.sqrt((deviation**2 + 0.1) * moved / (moved + 0.25))
        assert size == pytest.approx(np.hypot(by_hand, LEAST), rel=1e-4)


def test_errors_are_small_where_nothing_moved_and_large_far_from_what_is_known() -> None:
    terms = np.array([0.3, -1.2, 0.5])
    assert FITTED.at(20 * np.array([0.0, 0.0, 1.0]))[1] > 2 * FITTED.at(np.array([0.0, 0.0, 1.0]))[1]
    assert FITTED.at(KNOWN[0].terms)[1] == LEAST
    assert FITTED.at(0.01 * terms)[1] < FITTED.at(0.1 * terms)[1] < FITTED.at(terms)[1]


def test_what_is_left_out_is_what_a_fit_without_it_says() -> None:
    left = next(each for each in FITTED.left_out if each.group == "kind 3")
    rest = [each for each in KNOWN if "kind 3" not in each.groups]
    without = process_of(Observations.of(rest, FITTED.known.scale), FITTED.length_scale, FITTED.noise_variance)
    wanted = [without.at(KNOWN[place].terms) for place in left.windows]
    np.testing.assert_allclose(left.accuracy, [accuracy for accuracy, _ in wanted], rtol=1e-7)
    np.testing.assert_allclose(left.size, [size for _, size in wanted], rtol=1e-6)


@pytest.mark.slow
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
            accuracy, size = fitted.at(each.terms)
            held.append(-fitted.above * size <= accuracy - each.accuracy <= fitted.below * size)
    assert 0.9 <= np.mean(held) < 0.96


def scores(fitted: GaussianProcess, known: list[KnownWindow]) -> dict[str, list[float]]:
    """Errors beyond the noise of the samples by group, in sizes; above 0 where the estimate is too high."""
    found = {}
    for each in fitted.left_out:
        errors = each.accuracy - np.array([known[place].accuracy for place in each.windows])
        noise = np.array([known[place].noise for place in each.windows])
        beyond = np.sqrt(np.maximum(errors**2 - 1.644854**2 * noise, 0))
        found[each.group] = (np.sign(errors) * beyond / each.size).tolist()
    return found


def share_held(fitted: GaussianProcess, found: dict[str, list[float]]) -> float:
    return float(
        np.mean([np.mean([-fitted.above <= score <= fitted.below for score in some]) for some in found.values()])
    )


def test_the_interval_holds_nine_of_ten_windows_and_misses_as_many_at_either_end() -> None:
    found = scores(FITTED, KNOWN)
    # 125 windows of 25 groups count 1/26/5 each: with 117 of them 0.9 or more are held, with 116 not.
    ends = [np.sort([max(sign * each, 0.0) for some in found.values() for each in some]) for sign in (1, -1)]
    assert FITTED.below in ends[0]
    assert FITTED.above in ends[1]
    missed = [int((end > limit).sum()) for end, limit in zip(ends, (FITTED.below, FITTED.above), strict=True)]
    assert 6 <= sum(missed) <= 8
    assert abs(missed[0] - missed[1]) <= 1


def with_ood_sets(seed: int) -> list[KnownWindow]:
    """Twenty shifts that are understood, and five OOD sets of which the estimate is too high."""
    random = np.random.default_rng([2, seed])
    sets = [
        each._replace(
            accuracy=float(expit(logit(each.accuracy) - random.uniform(0, 2))), groups=(f"ood:{each.groups[0]}",)
        )
        for each in windows(5, seed=seed)[1:]
    ]
    return windows(20, seed=seed + 100) + sets


def test_windows_with_ood_samples_count_as_much_as_shifted_ones() -> None:
    known = with_ood_sets(0)
    fitted = GaussianProcess.fitted(known)
    found = scores(fitted, known)
    ood = {group: some for group, some in found.items() if group.startswith("ood:")}
    shifted = {group: some for group, some in found.items() if group not in ood}
    assert len(ood) == 5
    assert 25 / 26 * (share_held(fitted, ood) + share_held(fitted, shifted)) / 2 >= 0.9
    assert share_held(fitted, ood) >= 0.85
    assert fitted.below > 2 * fitted.above, "their estimates are too high, not too low"


def test_optional_terms_are_looked_at_only_where_that_is_better() -> None:
    second, third = (GaussianProcess.fitted(KNOWN, slice(place, place + 1)) for place in (1, 2))
    assert np.isfinite(second.known.scale).all(), "the accuracy depends on it"
    assert not np.isfinite(third.known.scale[2]), "the third term is noise"
    without = GaussianProcess.fitted([each._replace(terms=each.terms[:2]) for each in KNOWN])
    assert third.at(np.array([0.3, -1.2, 5.0])) == pytest.approx(without.at(np.array([0.3, -1.2])))


def test_with_few_groups_every_error_counts_at_both_ends() -> None:
    """Eight groups hold no more than 8/9 of what comes new."""
    known = windows(8)
    fitted = GaussianProcess.fitted(known)
    largest = max(abs(each) for some in scores(fitted, known).values() for each in some)
    assert fitted.below == fitted.above == pytest.approx(largest)


def test_without_groups_nothing_is_known_of_its_error() -> None:
    fitted = GaussianProcess.fitted(windows(1))
    assert (fitted.below, fitted.above) == (np.inf, np.inf)


def test_a_matrix_without_a_cholesky_factor_has_no_inverse() -> None:
    root = np.random.default_rng(0).normal(size=(6, 6))
    np.testing.assert_allclose(_inverse(root @ root.T), np.linalg.inv(root @ root.T), rtol=1e-9)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite at row 2"):
        _inverse(np.diag([1.0, -1.0]))
