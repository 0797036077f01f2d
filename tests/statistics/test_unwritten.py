"""Moments of products that are never written out: zeros, infinities and numbers near the end of float32's range."""

import numpy as np
import pytest
import torch

from gradscore.gradients import Dense, Factored
from gradscore.statistics import statistic
from gradscore.statistics.measure import Wanted, measure, of_all_unwritten, sums_to_wait
from gradscore.statistics.statistic import Pool

ALL = Wanted(extrema=True, mean=True, deviation=True, orders=(1.0,))
N, G, OUT, INNER, POSITIONS = 9, 2, 64, 80, 4

pytest.importorskip("numba", reason="the extra `fast` is missing")


def products(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    left = torch.rand(N, G, OUT, POSITIONS, generator=generator) - 0.3
    return Factored(left * scale, torch.rand(N, G, INNER, POSITIONS, generator=generator) - 0.4, (G * OUT, INNER))


def written(gradient):
    return (gradient.left.double() @ gradient.right.double().transpose(2, 3)).flatten(1).numpy()


def test_sums_of_all_elements():
    gradient = products()
    found, truth = of_all_unwritten([sums_to_wait(gradient, ALL)], [OUT * INNER * G], ALL).of(0), written(gradient)
    np.testing.assert_allclose(found.maximum, truth.max(1), rtol=1e-6)
    np.testing.assert_allclose(found.minimum, truth.min(1), rtol=1e-6)
    np.testing.assert_allclose(found.mean, truth.mean(1), rtol=1e-5)
    np.testing.assert_allclose(found._deviation, truth.std(1) * np.sqrt(truth.shape[1]), rtol=1e-6)
    np.testing.assert_allclose(found.norms[1.0], np.abs(truth).sum(1), rtol=1e-6)


def test_a_sample_of_zeros_keeps_the_others_sums():
    """The gradient of a blank image: there are no digits that its sums could have lost."""
    gradient = products()
    gradient.left[1] = 0
    found = sums_to_wait(gradient, ALL)
    assert not found.better
    np.testing.assert_array_equal(found.sums[1], np.zeros(5))


def test_samples_whose_sums_lost_digits_are_measured_again_and_no_others():
    """Elements that are nearly all the same, and elements whose squares float32 cannot hold."""
    gradient = products()
    gradient.left[1], gradient.right[1] = 1.0, 1.0
    gradient.left[2] *= 1e-24
    found, truth = sums_to_wait(gradient, ALL), written(gradient)
    assert sorted(found.better) == [1, 2]
    assert found.better[1]._deviation == 0
    np.testing.assert_allclose(found.better[2]._deviation, truth[2].std() * np.sqrt(truth.shape[1]), rtol=1e-6)
    parameters = {"weight": torch.empty(G * OUT, INNER)}
    pool = Pool(parameters, {"all": ["weight"]}, ALL, samples=N, device=torch.device("cpu"))
    pool.take("weight", slice(0, N), gradient)
    pooled = pool.finished().of(0)
    np.testing.assert_allclose(pooled.mean, truth.mean(1), rtol=1e-5)
    np.testing.assert_allclose(pooled._deviation, truth.std(1) * np.sqrt(truth.shape[1]), rtol=1e-6)
    np.testing.assert_allclose(pooled.norms[1.0], np.abs(truth).sum(1), rtol=1e-6)


def test_groups_at_both_infinities():
    """Their sum is no number, which NumPy would warn of."""
    gradient = products()
    gradient.left[0, 0], gradient.left[0, 1] = np.inf, -np.inf
    gradient.right[0] = 1.0
    found = measure(gradient, ALL)
    assert (found.maximum[0], found.minimum[0], found.norms[1.0][0]) == (np.inf, -np.inf, np.inf)
    assert np.isnan(found.mean[0])
    assert np.isfinite(found.mean[1:]).all()


WANTED = {
    "all": ALL,
    "the mean alone": Wanted(mean=True),
    "the magnitudes alone": Wanted(orders=(1.0,)),
    "both": Wanted(mean=True, orders=(1.0,)),
}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_sums_that_float32_cannot_hold(wanted):
    """Elements of 1e37, of which float32 adds up some tens."""
    gradient = products(scale=3e37)
    truth = written(gradient)
    found = measure(gradient, wanted)
    expected = {"mean": truth.mean(1)} if wanted.mean else {}
    expected |= {"magnitudes": np.abs(truth).sum(1)} if wanted.orders else {}
    got = {"mean": found.mean, "magnitudes": found.norms.get(1.0)}
    assert sorted(sums_to_wait(gradient, wanted).better) == list(range(N))
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5)


def test_a_vector_that_two_parameters_share_is_measured_once(monkeypatch):
    """The gradient of a linear layer's bias, which is also a factor of that of its weight."""
    seen = []
    measure_them = statistic.measure_together
    monkeypatch.setattr(
        statistic, "measure_together", lambda blocks, wanted: seen.extend(blocks) or measure_them(blocks, wanted)
    )
    outer, inner = torch.rand(N, 1, OUT, 1), torch.rand(N, 1, INNER, 1)
    parameters = {"weight": torch.empty(OUT, INNER), "bias": torch.empty(OUT), "scale": torch.empty(OUT)}
    pooled = Pool(parameters, {name: [name] for name in parameters}, ALL, samples=N, device=torch.device("cpu"))
    pooled.take("weight", slice(0, N), Factored(outer, inner, (OUT, INNER)))
    pooled.take("bias", slice(0, N), Dense(outer.flatten(1)))
    pooled.take("scale", slice(0, N), Dense(outer.flatten(1).clone()))
    finished = pooled.finished()
    found = {name: finished.of(place) for place, name in enumerate(parameters)}
    assert [tuple(each.shape) for each in seen] == [(N, OUT), (N, INNER), (N, OUT)]
    wide = (outer.double() * inner.double().transpose(2, 3)).flatten(1).numpy()
    np.testing.assert_allclose(found["weight"].mean, wide.mean(1), rtol=1e-12)
    np.testing.assert_allclose(found["weight"]._deviation, wide.std(1) * np.sqrt(wide.shape[1]), rtol=1e-12)
    for name in ("bias", "scale"):
        np.testing.assert_allclose(found[name].maximum, outer.flatten(1).amax(1), rtol=0)
        np.testing.assert_allclose(found[name].norms[1.0], outer.double().flatten(1).sum(1), rtol=1e-12)
