"""Projections against their matrix times the gradients of the reference, in float64."""

import numpy as np
import pytest
import torch
from both_ways import reference_of
from layers import MODELS, Function, N, images, indices, outputs_of
from projection_matrices import matrix
from torch import nn

from gradscore.errors import ConfigError
from gradscore.gradients import Dense, Engine
from gradscore.kernels import dispatch
from gradscore.projections.projection import Projection

CASES = {
    **MODELS,
    "wide linear layers": lambda: (nn.Sequential(nn.Linear(90, 70), nn.Tanh(), nn.Linear(70, 40)), images(90)),
    "linear layer with positions": lambda: (nn.Linear(90, 40), images(3, 90)),
    "narrow convolution": lambda: (nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2), images(4, 12, 9)),
    "wide convolution": lambda: (nn.Conv2d(20, 30, 3, padding=1), images(20, 5, 4)),
    "wide convolution, groups": lambda: (nn.Conv2d(20, 30, 3, groups=2, stride=2), images(20, 5, 4)),
    "depthwise": lambda: (nn.Conv2d(40, 40, 3, groups=40), images(40, 5, 6)),
    "convolution 1-d": lambda: (nn.Conv1d(24, 20, 5), images(24, 9)),
    "convolution 3-d": lambda: (nn.Conv3d(12, 10, 2, stride=(1, 2, 1)), images(12, 3, 4, 3)),
    "transposed convolution": lambda: (
        nn.ConvTranspose2d(20, 24, 3, stride=2, padding=1, output_padding=1, groups=2),
        images(20, 3, 4),
    ),
    "transposed convolution, dilated": lambda: (
        nn.ConvTranspose2d(20, 24, 2, stride=2, dilation=4, output_padding=3),
        images(20, 3, 2),
    ),
    "frames of a video": lambda: (
        nn.Sequential(nn.Flatten(0, 1), nn.Conv2d(20, 30, 3), nn.Flatten(), nn.Unflatten(0, (N, 4))),
        images(4, 20, 4, 4),
    ),
    "large table, few uses": lambda: (nn.Embedding(30, 7), indices(3, size=30)),
    "small table, many uses": lambda: (nn.Embedding(5, 70), indices(9, size=5)),
    "batched matrices": lambda: (
        Function((3, 6, 8), lambda w, x: torch.bmm(x.transpose(0, 1), w).transpose(0, 1)),
        images(3, 6),
    ),
    "one number": lambda: (Function((), lambda w, x: w * x), images(6)),
    "one row": lambda: (nn.Linear(70, 1), images(70)),
    "normalisation": lambda: (nn.Sequential(nn.LayerNorm(70), nn.Linear(70, 3)), images(70)),
}


def projected(projection, parameters, outputs, grad_outputs):
    sums = projection.blank(len(outputs), dtype=outputs.dtype, device=outputs.device)
    Engine(parameters).stream(outputs, grad_outputs, projection.sink(sums), retain_graph=True)
    return projection.finished(sums).detach().numpy()


def by_matrix(dim, parameters, outputs, grad_outputs):
    gradients = reference_of(parameters, outputs, grad_outputs)
    return sum(
        each.reshape(len(each), -1).numpy() @ matrix(name, each.shape[1:], dim, 3).T for name, each in gradients.items()
    )


@pytest.fixture(params=[True, False], ids=["Numba", "without Numba"])
def loops(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(dispatch, "loops", lambda name: None)


@pytest.mark.parametrize("case", CASES)
def test_projection_is_that_of_the_references_gradient(case):
    torch.manual_seed(0)
    parameters, outputs, grad_outputs = outputs_of(CASES[case])
    truth = by_matrix(70, parameters, outputs, grad_outputs)
    found = projected(Projection(70, 3), parameters, outputs, grad_outputs)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-11 * np.abs(truth).max())


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(
    ("case", "dim"),
    [("LeNet", 64), ("LeNet", 100), ("LeNet", 1024), ("large table, few uses", 64), ("narrow convolution", 8192)],
)
def test_numbers_of_dimensions_and_kernels(case, dim):
    torch.manual_seed(0)
    given = outputs_of(CASES[case])
    truth = by_matrix(dim, *given)
    found = projected(Projection(dim, 3), *given)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-11 * np.abs(truth).max())


PRECISIONS = {
    "single": (torch.float32, lambda: (nn.Conv2d(20, 30, 3, padding=1), torch.randn(N, 20, 5, 4)), 2e-6),
    "half, projected in single": (torch.bfloat16, lambda: (nn.Linear(90, 70), torch.randn(N, 90)), 0.02),
}


@pytest.mark.parametrize(("dtype", "make", "tolerance"), PRECISIONS.values(), ids=PRECISIONS)
def test_precisions(dtype, make, tolerance):
    torch.manual_seed(0)
    model, batch = (each.to(dtype) for each in make())
    outputs = model(batch).flatten(1)
    upstream = torch.randn(outputs.shape).to(dtype)
    projection = Projection(128, 3)
    sums = projection.blank(N, dtype=torch.float32, device=outputs.device)
    Engine(dict(model.named_parameters())).stream(outputs, upstream, projection.sink(sums))
    exact = model.double()
    truth = by_matrix(128, dict(exact.named_parameters()), exact(batch.double()).flatten(1), upstream.double())
    found = projection.finished(sums).numpy()
    np.testing.assert_allclose(found, truth, rtol=0, atol=tolerance * np.linalg.norm(truth, axis=1).max())


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_what_is_left_to_the_reference_is_projected_too():
    torch.manual_seed(0)
    case = outputs_of(lambda: (Function((9, 20), lambda w, x: torch.cdist(x, w)), images(20)))
    truth = by_matrix(100, *case)
    np.testing.assert_allclose(projected(Projection(100, 3), *case), truth, rtol=0, atol=1e-12)


def simulated(g, h, shapes, dim, seeds):
    """Products of projections of two gradients, one for each seed."""
    found = []
    for seed in range(seeds):
        projection = Projection(dim, seed)
        sums = projection.blank(2, dtype=torch.float64, device=torch.device("cpu"))
        start = 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            both = torch.from_numpy(np.stack([g, h])[:, start : start + size]).view(2, *shape)
            projection.add(name, Dense(both), sums)
            start += size
        one, other = projection.finished(sums)
        found.append(float(one @ other))
    return np.array(found)


SHAPES = {"wide": (40, 50), "bias": (40,), "small": (5, 30)}
SEEDS = 800


def test_products_are_unbiased():
    generator = np.random.default_rng(0)
    g, h = generator.normal(size=(2, 2190))
    h += 0.3 * g
    found = simulated(g, h, SHAPES, 64, SEEDS)
    assert abs(found.mean() - g @ h) < 4 * found.std() / np.sqrt(SEEDS)


def test_variance_of_products_is_that_of_johnson_and_lindenstrauss():
    generator = np.random.default_rng(1)
    g, h = generator.normal(size=(2, 2190))
    h += 0.5 * g
    found = simulated(g, h, SHAPES, 64, SEEDS)
    # Achlioptas 2003: for dense signs the variance is (|g|^2 |h|^2 + (g h)^2 - 2 sum g_i^2 h_i^2) / dim.
    expected = ((g @ g) * (h @ h) + (g @ h) ** 2 - 2 * (g**2 * h**2).sum()) / 64
    # The sample variance of 800 draws is within 4 of its own standard deviations, 20 % here.
    assert expected / 1.2 < found.var() < expected * 1.2


def test_seeds_and_names_differ():
    g = np.random.default_rng(4).normal(size=600)
    gradient, found = Dense(torch.from_numpy(g).view(1, 20, 30)), []
    for seed, name in ((0, "a"), (1, "a"), (0, "b"), (0, "a")):
        projection = Projection(64, seed)
        sums = projection.blank(1, dtype=torch.float64, device=torch.device("cpu"))
        projection.add(name, gradient, sums)
        found.append(projection.finished(sums)[0].numpy())
    assert np.array_equal(found[0], found[3])
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.5
    assert abs(np.corrcoef(found[0], found[2])[0, 1]) < 0.5


REFUSED = {
    "too few": ((63, 0), "dim: wanted a whole number from 64 to 8192, got 63"),
    "too many": ((8193, 0), "dim: wanted a whole number from 64 to 8192, got 8193"),
    "seed": ((64, "a"), "seed: wanted a whole number, got 'a'"),
    "a negative seed": ((64, -1), "seed: wanted 0 or more, got -1"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Projection(*arguments)
