"""The engine against the reference in float64: layer settings and whole models."""

import pytest
import torch
import torch.nn.functional as F
from both_ways import blocks_streamed, exactly, streamed
from layers import MODELS, Function, N, images, outputs_of, tokens
from torch import nn

from gradscore.gradients import Engine

LAYERS = {
    "linear": lambda: (nn.Linear(6, 4), images(6)),
    "linear without bias": lambda: (nn.Linear(6, 4, bias=False), images(6)),
    "linear, one extra dimension": lambda: (nn.Linear(6, 4), images(3, 6)),
    "linear, as many tokens as samples": lambda: (nn.Linear(6, 4), images(N, 6)),
    "linear, two extra dimensions": lambda: (nn.Linear(6, 4), images(3, 2, 6)),
    "linear, extra dimension, no bias": lambda: (nn.Linear(6, 4, bias=False), images(3, 6)),
    "linear, time first": lambda: (
        Function((4, 6), lambda w, x: F.linear(x.transpose(0, 1), w).transpose(0, 1)),
        images(N, 6),
    ),
    "linear, time first, in-projection bias": lambda: (
        Function((4,), lambda b, x: F.linear(x.transpose(0, 1), torch.ones(4, 6).to(x), b).transpose(0, 1)),
        images(N, 6),
    ),
    "matrix on the left": lambda: (Function((4, 6), lambda w, x: (w @ x.t()).t()), images(6)),
    "einsum": lambda: (Function((4, 6), lambda w, x: torch.einsum("nti,oi->nto", x, w)), images(3, 6)),
    "addmm with factors": lambda: (
        Function((6, 4), lambda w, x: torch.addmm(w[0], x, w, beta=0.5, alpha=3)),
        images(6),
    ),
    "convolution 1-d": lambda: (nn.Conv1d(4, 6, 3), images(4, 9)),
    "convolution 2-d": lambda: (nn.Conv2d(4, 6, 3), images(4, 7, 8)),
    "convolution 3-d": lambda: (nn.Conv3d(2, 4, 3, stride=(1, 2, 1)), images(2, 6, 7, 5)),
    "convolution 1x1": lambda: (nn.Conv2d(4, 6, 1), images(4, 5, 5)),
    "convolution, output 1x1": lambda: (nn.Conv2d(4, 6, 5), images(4, 5, 5)),
    "stride": lambda: (nn.Conv2d(4, 6, 3, stride=2), images(4, 8, 9)),
    "stride larger than kernel": lambda: (nn.Conv2d(4, 6, 2, stride=3), images(4, 8, 9)),
    "padding": lambda: (nn.Conv2d(4, 6, 3, padding=(2, 1)), images(4, 5, 6)),
    "padding same": lambda: (nn.Conv2d(4, 6, (1, 3), padding="same", dilation=2), images(4, 5, 6)),
    "padding same, even kernel": lambda: (nn.Conv2d(4, 6, (2, 4), padding="same", dilation=2), images(4, 5, 6)),
    "dilation": lambda: (nn.Conv2d(4, 6, 3, dilation=(2, 1), padding=1), images(4, 7, 8)),
    "stride and dilation": lambda: (nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=3), images(4, 7, 8)),
    "groups": lambda: (nn.Conv2d(4, 6, 3, groups=2), images(4, 5, 6)),
    "depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4), images(4, 5, 6)),
    "padding circular": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), images(4, 5, 6)),
    "padding reflect": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), images(4, 5, 6)),
    "padding replicate": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"), images(4, 5, 6)),
    "transposed convolution": lambda: (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        images(4, 5, 6),
    ),
    "frames of a video": lambda: (
        nn.Sequential(nn.Flatten(0, 1), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Unflatten(0, (N, 4))),
        images(4, 2, 5, 5),
    ),
    "channels last": lambda: (nn.Conv2d(4, 6, 3), images(4, 7, 8).contiguous(memory_format=torch.channels_last)),
    "batch norm 1-d": lambda: (nn.BatchNorm1d(6), images(6)),
    "batch norm 2-d": lambda: (nn.BatchNorm2d(3), images(3, 4, 4)),
    "layer norm": lambda: (nn.LayerNorm(6), images(3, 6)),
    "layer norm over two axes": lambda: (nn.LayerNorm((3, 6)), images(2, 3, 6)),
    "layer norm without bias": lambda: (nn.LayerNorm(6, bias=False), images(3, 6)),
    "layer norm, time first": lambda: (
        nn.Sequential(nn.Unflatten(0, (1, N)), nn.LayerNorm(6), nn.Flatten(0, 1)),
        images(3, 6),
    ),
    "group norm": lambda: (nn.GroupNorm(2, 6), images(6, 4, 3)),
    "instance norm": lambda: (nn.InstanceNorm2d(3, affine=True), images(3, 4, 4)),
    "rms norm": lambda: (nn.RMSNorm(6), images(3, 6)),
    "prelu": lambda: (nn.PReLU(3), images(3, 4)),
    "embedding": lambda: (nn.Embedding(20, 6, padding_idx=2), tokens()),
    "embedding, small table": lambda: (nn.Embedding(4, 6), tokens(size=4)),
    "embedding, one index a sample": lambda: (nn.Embedding(20, 6), torch.randint(0, 20, (N,))),
    "embedding, sparse": lambda: (nn.Embedding(20, 6, sparse=True), tokens()),
    "add": lambda: (Function((3, 1), lambda w, x: x + w), images(3, 4)),
    "add with factor": lambda: (Function((4,), lambda w, x: torch.add(x, w, alpha=3)), images(3, 4)),
    "subtract": lambda: (Function((4,), lambda w, x: torch.sub(x, w, alpha=2) + (w - x)), images(3, 4)),
    "multiply": lambda: (Function((3, 1), lambda w, x: x * w), images(3, 4)),
    "divide": lambda: (Function((4,), lambda w, x: w / x + x / w), images(3, 4)),
    "expand": lambda: (Function((1, 1, 4), lambda w, x: w.expand(len(x), 3, -1) * x), images(3, 4)),
    "repeat": lambda: (Function((2, 4), lambda w, x: w.repeat(len(x), 3, 1).view(N, 6, 4) * x), images(6, 4)),
    "scalar": lambda: (Function((), lambda w, x: x * w), images(4)),
    "used twice": lambda: (Function((4, 4), lambda w, x: torch.tanh(x @ w) @ w + w[0]), images(4)),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), images(3, 5, 5)),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), images(3, 6)),
    "relative position table": lambda: (
        Function((9, 2), lambda w, x: (x + w[torch.arange(9).view(3, 3)].permute(2, 0, 1)).softmax(-1)),
        images(2, 3, 3),
    ),
    "cast": lambda: (Function((4, 6), lambda w, x: F.linear(x, w.float().double())), images(6)),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("budget", [50, 1000])
@pytest.mark.parametrize("case", [*LAYERS.values(), *MODELS.values()], ids=[*LAYERS, *MODELS])
def test_equals_the_exact_reference(case, budget, device):
    truth = exactly(*outputs_of(case))
    parameters, outputs, grad_outputs = outputs_of(case, device)
    engine = Engine(parameters)
    dense = streamed(engine, outputs, grad_outputs)
    blocks = blocks_streamed(engine, outputs, grad_outputs, budget=budget)
    assert "reference" not in engine.coverage.values()
    for name, gradient in truth.items():
        scale = gradient.abs().max()
        torch.testing.assert_close(dense[name], gradient, rtol=1e-10, atol=1e-10 * scale)
        for found, row in zip(blocks[name], gradient, strict=True):
            torch.testing.assert_close(found, row.flatten().sort()[0], rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_sums_to_the_ordinary_gradient(case):
    parameters, outputs, grad_outputs = outputs_of(case)
    summed = torch.autograd.grad(outputs, list(parameters.values()), grad_outputs, retain_graph=True)
    dense = streamed(Engine(parameters), outputs, grad_outputs, retain_graph=False)
    for gradient, name in zip(summed, parameters, strict=True):
        torch.testing.assert_close(dense[name].sum(0), gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_remembers_the_layout_for_batches_of_another_size(case):
    model, batch = case()
    model = model.double().eval()
    parameters = dict(model.named_parameters())
    engine = Engine(parameters)
    for samples in (N, 3, 1, N):
        outputs = model(batch[:samples])
        grad_outputs = torch.randn_like(outputs)
        truth = exactly(parameters, outputs, grad_outputs)
        dense = streamed(engine, outputs, grad_outputs)
        torch.testing.assert_close(dense, truth, rtol=1e-10, atol=1e-12)


MISLEADING = {
    "zeros only": (lambda x: x.flatten(1), torch.zeros_like, 4),
    "one of four samples": (lambda x: x.flatten(1), lambda x: torch.eye(4)[:, :1].double() * x, 4),
    "two samples, the middle of three steps": (lambda x: x[:, 1], torch.ones_like, 2),
}


@pytest.mark.parametrize(("chosen", "first_gradient", "samples"), MISLEADING.values(), ids=MISLEADING)
def test_is_not_misled_by_a_first_batch_that_tells_little(chosen, first_gradient, samples):
    """The layout of a time-first layer is probed again when a batch tells more than the ones before."""
    layer = nn.Linear(6, 4).double()
    engine = Engine(dict(layer.named_parameters()))
    for size, gradient_for in ((samples, first_gradient), (samples, torch.randn_like), (N, torch.randn_like)):
        outputs = chosen(layer(torch.randn(size, 3, 6).double().transpose(0, 1)).transpose(0, 1))
        grad_outputs = gradient_for(outputs)
        dense = streamed(engine, outputs, grad_outputs)
        torch.testing.assert_close(dense, exactly(engine.parameters, outputs, grad_outputs))
    assert set(engine.coverage.values()) == {"rule"}


def test_is_not_misled_by_a_table_that_had_no_effect_on_the_first_batch():
    """Its nine rows could be nine samples while its gradient is zero."""
    table = nn.Parameter(torch.randn(9, 2).double())
    engine = Engine({"table": table})
    for gate in (0.0, 1.0):
        outputs = (torch.randn(9, 2, 9).double() + gate * table.sin().t()).softmax(-1).flatten(1)
        grad_outputs = torch.randn_like(outputs)
        dense = streamed(engine, outputs, grad_outputs)
        torch.testing.assert_close(dense, exactly(engine.parameters, outputs, grad_outputs))
    assert engine.coverage == {"table": "parameter-side product"}


def test_graphs_that_differ_only_in_the_axes_they_exchange():
    layer, batch = nn.Linear(N, N).double(), images(N, N)
    engine = Engine(dict(layer.named_parameters()))
    for axes in ((1, 2), (0, 1), (1, 2)):
        outputs = layer(batch).transpose(*axes).flatten(1)
        grad_outputs = torch.randn_like(outputs)
        dense = streamed(engine, outputs, grad_outputs)
        torch.testing.assert_close(dense, exactly(engine.parameters, outputs, grad_outputs))
