"""Layers of random settings and shapes, batches of random sizes, and gradients of any size: always the reference."""

import pytest
import torch
from both_ways import assert_reference, reference_of, streamed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from gradscore.gradients import Engine

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def small(low=1, high=3):
    return st.integers(low, high)


def tensor(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@st.composite
def convolutions(draw):
    """A convolution or its transpose and a batch large enough for its windows."""
    dims, groups, kernel = draw(small(1, 2)), draw(small(1, 2)), draw(small())
    stride, dilation = draw(small()), draw(small(1, 2))
    padding = draw(st.integers(0, kernel - 1))
    transposed = draw(st.booleans())
    kind = {(1, False): nn.Conv1d, (2, False): nn.Conv2d, (1, True): nn.ConvTranspose1d, (2, True): nn.ConvTranspose2d}
    options = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    layer = kind[dims, transposed](groups * draw(small(1, 2)), groups * draw(small(1, 2)), kernel, **options)
    smallest = dilation * (kernel - 1) + 1
    sides = [draw(st.integers(smallest, smallest + 4)) for _ in range(dims)]
    return layer, tensor(draw(small(2, 5)), layer.in_channels, *sides)


@st.composite
def linears(draw):
    """A linear layer over any number of further axes, sample-major or with the samples on the second axis."""
    samples, features = draw(small(2, 5)), draw(small(1, 4))
    between = draw(st.lists(small(), max_size=2))
    layer = nn.Linear(features, draw(small(1, 4)), bias=draw(st.booleans()))
    batch = tensor(samples, *between, features)
    swapped = bool(between) and draw(st.booleans())
    return (TimeFirst(layer) if swapped else layer), batch


@st.composite
def norms(draw):
    """A normalisation layer over channels or over the last axes."""
    groups, per_group, sides = draw(small()), draw(small(2, 3)), draw(st.lists(small(2, 3), min_size=1, max_size=2))
    channels = groups * per_group
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}[len(sides)]
    made = {
        "group": lambda: nn.GroupNorm(groups, channels),
        "batch": lambda: kind(channels),
        "layer": lambda: nn.LayerNorm(sides),
        "rms": lambda: nn.RMSNorm(sides),
    }
    layer = made[draw(st.sampled_from(sorted(made)))]()
    return layer, tensor(draw(small(2, 5)), channels, *sides)


@st.composite
def tables(draw):
    """Rows of a table, some of them several times."""
    rows, width = draw(small(2, 6)), draw(small(1, 4))
    samples, length = draw(small(2, 5)), draw(small(1, 5))
    index = torch.randint(0, rows, (samples, length), generator=torch.Generator().manual_seed(draw(small(0, 99))))
    mode = draw(st.sampled_from([None, "sum", "mean", "max"]))
    padding = draw(st.none() | st.integers(0, rows - 1))
    kind, options = (nn.EmbeddingBag, {"mode": mode}) if mode else (nn.Embedding, {})
    return kind(rows, width, padding_idx=padding, **options), index


class TimeFirst(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


def randomised(layer):
    for number, parameter in enumerate(layer.parameters()):
        parameter.data = tensor(*parameter.shape, seed=number + 1)
    return layer.eval()


KINDS = {"convolution": convolutions(), "linear": linears(), "normalisation": norms(), "table": tables()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@EXAMPLES
@given(data=st.data())
def test_layers(kind, data):
    layer, batch = data.draw(kind)
    outputs = randomised(layer.double())(batch)
    engine = Engine(dict(layer.named_parameters()))
    assert_reference(engine, outputs, tensor(*outputs.shape, seed=9), rtol=1e-10, atol=1e-11)
    assert "reference" not in engine.coverage.values()


def network():
    return randomised(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 3)).double()
    )


@EXAMPLES
@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_batches_of_any_size_one_after_the_other(sizes):
    """An engine learns from the first batch and meets others, empty ones and single samples among them."""
    model = network()
    engine = Engine(dict(model.named_parameters()))
    for size in sizes:
        batch = tensor(size, 2, 4, 4, seed=size)
        outputs = model(batch)
        gradient = tensor(*outputs.shape, seed=7)
        found = streamed(engine, outputs, gradient)
        for index in range(size):
            alone = torch.autograd.grad(model(batch[index : index + 1]), engine.parameters.values(), gradient[[index]])
            truth = dict(zip(found, alone, strict=True))
            each = {name: rows[index] for name, rows in found.items()}
            torch.testing.assert_close(each, truth, rtol=1e-10, atol=1e-12)


@EXAMPLES
@given(powers=st.lists(st.sampled_from([None, -900, -300, 0, 300, 900]), min_size=2, max_size=5))
def test_gradients_of_any_size(powers):
    """Scaling the gradient at the outputs by a power of two scales the result exactly, from zero to near infinity."""
    model = network()
    outputs = model(tensor(len(powers), 2, 4, 4))
    plain = tensor(*outputs.shape, seed=5)
    scales = torch.tensor([0.0 if power is None else 2.0**power for power in powers], dtype=torch.float64)
    engine = Engine(dict(model.named_parameters()))
    found = streamed(engine, outputs, plain * scales.unsqueeze(1))
    wanted = streamed(Engine(dict(model.named_parameters())), outputs, plain)
    for name, gradient in wanted.items():
        expected = gradient * scales.view(-1, *[1] * (gradient.dim() - 1))
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=0)
    assert set(engine.coverage.values()) == {"rule"}


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_sample_that_is_not_finite_stays_alone(value):
    """One sample's infinite gradient neither spoils the others' nor makes the engine distrust its rules."""
    model = network()
    outputs = model(tensor(4, 2, 4, 4))
    gradient = tensor(*outputs.shape, seed=5)
    wanted = reference_of(dict(model.named_parameters()), outputs, gradient)
    gradient[0, 0] = value
    engine = Engine(dict(model.named_parameters()))
    found = streamed(engine, outputs, gradient)
    assert not any(torch.isfinite(found[name][0]).all() for name in wanted)
    torch.testing.assert_close(
        {name: rows[1:] for name, rows in found.items()}, {name: rows[1:] for name, rows in wanted.items()}
    )
