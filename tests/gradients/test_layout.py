"""Which axis holds the samples: only the bit test tells."""

import pytest
import torch
from torch import nn

from gradscore.gradients import read_graph
from gradscore.gradients.layout import Layout, exponents, probe


def found(outputs):
    """Layouts by node name, for all nodes of the graph but the leaves."""
    graph = read_graph(outputs, {})
    nodes = [node for node in graph.order if "Accumulate" not in node.name()]
    layouts = probe(outputs, torch.randn_like(outputs), graph, nodes)
    return {node.name(): layout for node, layout in layouts.items()}


LINEAR = nn.Linear(6, 6, bias=False)


def time_first(x):
    return LINEAR(x.transpose(0, 1)).transpose(0, 1)


CASES = {
    "rows of a sample together": (LINEAR, (5, 3, 6), Layout(0, 5, 3, 3)),
    "samples alternate": (time_first, (5, 3, 6), Layout(0, 5, 3, 1)),
    "as many tokens as samples, time first": (time_first, (6, 6, 6), Layout(0, 6, 6, 1)),
    "more samples than exponents": (time_first, (70, 2, 6), Layout(0, 70, 2, 1)),
    "samples between other axes": (time_first, (5, 4, 3, 6), Layout(0, 5, 12, 3)),
    "samples mixed": (lambda x: torch.tanh((y := LINEAR(x)) - y.mean(0)), (5, 6), None),
}


@pytest.mark.parametrize(("function", "shape", "layout"), CASES.values(), ids=CASES)
def test_finds_the_layout(function, shape, layout):
    assert found(function(torch.randn(shape)).flatten(1))["MmBackward0"] == layout


def test_ignores_shapes_that_mislead():
    """The bias of a time-first projection is added to (tokens, batch, features), with as many tokens as samples."""
    linear = nn.Linear(6, 6)
    outputs = linear(torch.randn(6, 6, 6).transpose(0, 1)).transpose(0, 1).flatten(1)
    assert found(outputs)["AddBackward0"] == Layout(1, 6, 1, 1)


SPLITS = {
    "major": (Layout(0, 2, 3, 3), [[0, 1, 2], [3, 4, 5]]),
    "minor": (Layout(0, 2, 3, 1), [[0, 2, 4], [1, 3, 5]]),
    "between": (Layout(0, 2, 4, 2), [[0, 1, 4, 5], [2, 3, 6, 7]]),
}


@pytest.mark.parametrize(("layout", "rows"), SPLITS.values(), ids=SPLITS)
def test_splits_rows_by_sample(layout, rows):
    assert layout.samples_first(torch.arange(layout.samples * layout.repeats)).tolist() == rows


def test_exponents_differ_within_the_span_and_between_neighbours():
    powers = exponents(100, torch.float32, torch.device("cpu"))
    assert len(set(powers[:32].tolist())) == 32
    assert (powers[1:] != powers[:-1]).all()
    assert (powers[32:] != powers[:-32]).all()
    assert (int(powers.min()), int(powers.max())) == (0, 31)


@pytest.mark.parametrize("samples", [1, 3])
def test_rows_of_another_number_of_samples_are_no_ones(samples):
    """A tensor that is the same for all samples, say: to give each its row would be wrong in silence."""
    with pytest.raises(RuntimeError):
        Layout(0, 2, 1, 1).split(torch.ones(samples, 4))


class Spectrum(nn.Module):
    """Filters in the frequencies of what lies between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        return self.last(self.norm(torch.fft.irfft(torch.fft.rfft(self.first(x)) * self.filter)))


@pytest.mark.parametrize("samples", [2, 3, 8, 33, 70])
def test_complex_numbers_spoil_nothing(samples):
    outputs = Spectrum()(torch.randn(samples, 6))
    graph = read_graph(outputs, {})
    nodes = [node for node in graph.order if node.name() not in ("TBackward0", "torch::autograd::AccumulateGrad")]
    layouts = probe(outputs, torch.randn_like(outputs), graph, nodes)
    assert sum(node._input_metadata[0].dtype.is_complex for node in nodes) == 2
    assert list(layouts.values()) == [Layout(0, samples, 1, 1)] * 6


class Clipped(torch.autograd.Function):
    """Hands on no gradient where it is large."""

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient if gradient.abs().max() < 2 else None


def test_a_gradient_that_is_lost_where_it_is_scaled_has_no_layout():
    layouts = found(torch.tanh(Clipped.apply(LINEAR(torch.randn(5, 6)))))
    assert layouts["MmBackward0"] is None
    assert layouts["TanhBackward0"] == Layout(0, 5, 1, 1)
