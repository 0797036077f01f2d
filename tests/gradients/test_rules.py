"""Every rule against the reference in float64: settings of layers, rarer nodes, memory layouts and whole models."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from both_ways import assert_reference, blocks_streamed, reference_of, streamed
from layers import MODELS, Function, Module, N, images, indices, outputs_of, tokens
from torch import nn
from torch.nn.utils import parametrizations

from gradscore.gradients import RULES, Engine, NotCoveredError, Use
from gradscore.gradients.layout import Layout


def function(shape, of, *size):
    """A function of a parameter and images of a size."""
    return lambda: (Function(shape, of), images(*size))


def first(layer, x):
    return layer(x)[0]


def with_itself(layer, x):
    return layer(x, x, x)[0]


def bags(offsets, **options):
    """A bag per sample of the first numbers of a batch."""
    return lambda: (
        Module(
            nn.EmbeddingBag(12, 4, **options), lambda bag, x: bag(x.flatten(), torch.tensor(offsets, device=x.device))
        ),
        indices(3),
    )


def weighted_bags(bag, x):
    weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64, device=x.device)
    return bag(x, per_sample_weights=weights.view(x.shape))


def standardised(weight, x):
    """A convolution whose kernel is normalised as a batch of one, as in NF-Nets and BiT."""
    flat = F.batch_norm(weight.reshape(1, len(weight), -1), None, None, training=True)
    return F.conv2d(x, flat.reshape_as(weight))


LAYERS = {
    "linear": lambda: (nn.Linear(6, 4), images(6)),
    "linear, one extra dimension": lambda: (nn.Linear(6, 4), images(3, 6)),
    "linear, as many tokens as samples": lambda: (nn.Linear(6, 4), images(N, 6)),
    "linear, time first, in-projection bias": function(
        (4,), lambda b, x: F.linear(x.transpose(0, 1), torch.ones(4, 6).to(x), b).transpose(0, 1), N, 6
    ),
    "matrix on the left": function((4, 6), lambda w, x: (w @ x.t()).t(), 6),
    "einsum": function((4, 6), lambda w, x: torch.einsum("nti,oi->nto", x, w), 3, 6),
    "addmm with factors": function((6, 4), lambda w, x: torch.addmm(w[0], x, w, beta=0.5, alpha=3), 6),
    "convolution 1-d": lambda: (nn.Conv1d(4, 6, 3), images(4, 9)),
    "convolution 2-d": lambda: (nn.Conv2d(4, 6, 3), images(4, 7, 8)),
    "convolution 3-d": lambda: (nn.Conv3d(2, 4, 3, stride=(1, 2, 1)), images(2, 6, 7, 5)),
    "padding same, even kernel": lambda: (nn.Conv2d(4, 6, (2, 4), padding="same", dilation=2), images(4, 5, 6)),
    "stride and dilation": lambda: (nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=3), images(4, 7, 8)),
    "groups": lambda: (nn.Conv2d(4, 6, 3, groups=2), images(4, 5, 6)),
    "depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4), images(4, 5, 6)),
    "padding circular": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), images(4, 5, 6)),
    "padding reflect": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), images(4, 5, 6)),
    "transposed convolution": lambda: (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        images(4, 5, 6),
    ),
    "frames of a video": lambda: (
        nn.Sequential(nn.Flatten(0, 1), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Unflatten(0, (N, 4))),
        images(4, 2, 5, 5),
    ),
    "channels last": lambda: (nn.Conv2d(4, 6, 3), images(4, 7, 8).contiguous(memory_format=torch.channels_last)),
    "batch norm 2-d": lambda: (nn.BatchNorm2d(3), images(3, 4, 4)),
    "layer norm": lambda: (nn.LayerNorm(6), images(3, 6)),
    "layer norm over two axes": lambda: (nn.LayerNorm((3, 6)), images(2, 3, 6)),
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
    "embedding, sparse": lambda: (nn.Embedding(20, 6, sparse=True), tokens()),
    "add": function((3, 1), lambda w, x: x + w, 3, 4),
    "add with factor": function((4,), lambda w, x: torch.add(x, w, alpha=3), 3, 4),
    "subtract": function((4,), lambda w, x: torch.sub(x, w, alpha=2) + (w - x), 3, 4),
    "multiply": function((3, 1), lambda w, x: x * w, 3, 4),
    "divide": function((4,), lambda w, x: w / x + x / w, 3, 4),
    "expand": function((1, 1, 4), lambda w, x: w.expand(len(x), 3, -1) * x, 3, 4),
    "repeat": function((2, 4), lambda w, x: w.repeat(len(x), 3, 1).view(N, 6, 4) * x, 6, 4),
    "repeat, time first": function(
        (4,), lambda w, x: (w.repeat(3 * len(x), 1).view(3, N, 4) * x.transpose(0, 1)).transpose(0, 1), 3, 4
    ),
    "scalar": function((), lambda w, x: x * w, 4),
    "used twice": function((4, 4), lambda w, x: torch.tanh(x @ w) @ w + w[0], 4),
    "weight norm": lambda: (parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), images(3, 5, 5)),
    "spectral norm": lambda: (parametrizations.spectral_norm(nn.Linear(6, 4)), images(3, 6)),
    "relative position table": function(
        (9, 2), lambda w, x: (x + w[torch.arange(9).view(3, 3)].permute(2, 0, 1)).softmax(-1), 2, 3, 3
    ),
    "cast": function((4, 6), lambda w, x: F.linear(x, w.float().double()), 6),
    "transposed convolution 2-d, dilated": lambda: (
        nn.ConvTranspose2d(4, 6, 3, dilation=2, padding=1),
        images(4, 5, 6),
    ),
    "transposed convolution 3-d, groups": lambda: (
        nn.ConvTranspose3d(4, 4, 2, stride=2, groups=2, bias=False),
        images(4, 3, 2, 3),
    ),
    "instance norm, running statistics": lambda: (
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        images(3, 4, 4),
    ),
    "local response norm": lambda: (nn.Sequential(nn.Conv2d(3, 6, 1), nn.LocalResponseNorm(2)), images(3, 4, 4)),
    "orthogonal": lambda: (parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"), images(4)),
    "weight standardisation": function((4, 3, 2, 2), standardised, 3, 5, 5),
    "rnn, last state, relu": lambda: (
        Module(nn.RNN(6, 4, nonlinearity="relu"), lambda rnn, x: rnn(x.transpose(0, 1))[1][0]),
        images(3, 6),
    ),
    "gru, bidirectional": lambda: (Module(nn.GRU(6, 4, bidirectional=True, batch_first=True), first), images(3, 6)),
    "lstm, projected": lambda: (Module(nn.LSTM(6, 4, proj_size=2, batch_first=True), first), images(3, 6)),
    "lstm cell": lambda: (Module(nn.LSTMCell(6, 4), lambda cell, x: cell(x, cell(x))[0]), images(6)),
    "embedding bag, max of repeated rows": lambda: (nn.EmbeddingBag(2, 4, mode="max"), indices(5, size=2)),
    "embedding bag, weighted": lambda: (Module(nn.EmbeddingBag(12, 4, mode="sum"), weighted_bags), indices(3)),
    "embedding bag, sparse": lambda: (nn.EmbeddingBag(12, 4, mode="sum", sparse=True), indices(3)),
    "embedding bag, mean of nothing but padding": lambda: (
        nn.EmbeddingBag(2, 4, mode="mean", padding_idx=0),
        torch.eye(N, 2, dtype=torch.int64).flip(0),
    ),
    "embedding bag, ragged": bags([0, 2, 2, 6, 14], mode="mean"),
    "embedding bag, ragged, max": bags([0, 2, 2, 6, 14], mode="max"),
    "embedding bag, closed": bags([0, 1, 6, 8, 9, 15], mode="sum", include_last_offset=True),
    "bilinear": lambda: (Module(nn.Bilinear(6, 5, 4), lambda layer, x: layer(x[:, :6], x[:, 6:])), images(11)),
    "bilinear, tokens": lambda: (
        Module(nn.Bilinear(6, 5, 4, bias=False), lambda layer, x: layer(x[..., :6], x[..., 6:])),
        images(3, 11),
    ),
    "prelu, one slope": lambda: (nn.PReLU(), images(3, 4)),
    "index, negative": lambda: (Function((12, 2, 3), lambda w, x: w[x - 12]), indices(3)),
    "index select": lambda: (Function((12, 4), lambda w, x: w.index_select(0, x)), indices()),
    "addcmul": function(
        (2, 1, 4), lambda w, x: torch.addcmul(w[0], w[1], x, value=2) + torch.addcmul(x, x, w[0]), 3, 4
    ),
    "baddbmm": lambda: (
        Function((3, 4, 4), lambda w, x: torch.baddbmm(w[:, :1], x, w, beta=0.5, alpha=2).transpose(0, 1)),
        torch.randn(3, N, 4).double(),
    ),
    "power": function((4,), lambda w, x: x.abs() ** w + w.abs() ** x, 3, 4),
    "power of zero": function((), lambda w, x: x.relu() ** w.abs(), 3, 4),
    "matrix and vector": function((6,), lambda w, x: (x @ w).unsqueeze(1), 6),
    "matrix and vector, tokens": function((6,), lambda w, x: (x.transpose(0, 1) @ w).t(), 3, 6),
    "interpolated": function(
        (3, 4), lambda w, x: torch.lerp(w[0], x, w[1]) + torch.lerp(x, w[2], 0.3) + torch.lerp(w[0], x, 0.2), 3, 4
    ),
    "larger and smaller": function(
        (2, 4), lambda w, x: torch.maximum(x, w[0]) + torch.minimum(w[1], x) + torch.maximum(w[0], 2 * x), 3, 4
    ),
    "as large": function((4,), lambda w, x: torch.maximum(x.sign() * w.abs(), w) * x, 3, 4),
    "filled": function((), lambda w, x: x.masked_fill(x > 0, w), 3, 4),
    "where": function((2, 4), lambda w, x: torch.where(x > 0, x * w[0], w[1]), 3, 4),
    "attention, fused projections": lambda: (
        Module(nn.MultiheadAttention(6, 2, batch_first=True), with_itself),
        images(N, 6),
    ),
    "attention, biases for keys and values": lambda: (
        Module(nn.MultiheadAttention(6, 2, add_bias_kv=True), lambda layer, x: layer(x, x, x)[0].transpose(0, 1)),
        torch.randn(3, N, 6).double(),
    ),
    "attention, keys of another size": lambda: (
        Module(
            nn.MultiheadAttention(6, 2, kdim=4, vdim=3, batch_first=True),
            lambda layer, x: layer(x, x[..., :4], x[..., :3])[0],
        ),
        images(3, 6),
    ),
    "attention with a learned mask": function(
        (3, 3), lambda w, x: F.scaled_dot_product_attention(x, x, x, attn_mask=w), 2, 3, 4
    ),
    "channels last, network": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, stride=2)).to(
            memory_format=torch.channels_last
        ),
        images(4, 7, 8).contiguous(memory_format=torch.channels_last),
    ),
    "not contiguous, convolution": lambda: (nn.Conv2d(4, 6, 3), images(4, 14, 16)[:, :, ::2, ::2]),
    "not contiguous, samples last": lambda: (nn.Conv2d(4, 6, 3), torch.randn(4, 7, 8, N).double().movedim(-1, 0)),
    "samples between other axes": lambda: (
        Module(nn.Linear(6, 4), lambda layer, x: layer(x.movedim(0, 2)).movedim(2, 0)),
        images(3, 2, 4, 6),
    ),
    "as many samples as positions around them": lambda: (
        Module(nn.Linear(6, 4, bias=False), lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1)),
        images(N, N, 6),
    ),
    "expanded batch": lambda: (nn.Linear(6, 4), torch.randn(1, 6).double().expand(N, -1)),
    "activations in place": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.ReLU(inplace=True),
            nn.BatchNorm2d(4),
            nn.SiLU(inplace=True),
            nn.Conv2d(4, 4, 3),
            nn.Hardswish(inplace=True),
            nn.Flatten(),
            nn.Linear(4 * 4 * 4, 3),
            nn.ELU(inplace=True),
        ),
        images(3, 8, 8),
    ),
    "added in place": function((4,), lambda w, x: x.clone().add_(w).mul_(w), 3, 4),
}


@pytest.mark.parametrize("case", [*LAYERS.values(), *MODELS.values()], ids=[*LAYERS, *MODELS])
def test_equals_the_reference(case, device):
    parameters, outputs, grad_outputs = outputs_of(case, device)
    # On that device: PyTorch's own kernels of CUDA have some numbers of hardswish and weight norm in float32.
    truth = {name: each.cpu() for name, each in reference_of(parameters, outputs, grad_outputs).items()}
    engine = Engine(parameters)
    dense = streamed(engine, outputs, grad_outputs)
    blocks = blocks_streamed(engine, outputs, grad_outputs, budget=50)
    assert not {"reference", "unused"} & set(engine.coverage.values())
    for name, gradient in truth.items():
        assert gradient.any()
        scale = gradient.abs().max()
        torch.testing.assert_close(dense[name], gradient, rtol=1e-10, atol=1e-10 * scale)
        for found, row in zip(blocks[name], gradient, strict=True):
            torch.testing.assert_close(found, row.flatten().sort()[0], rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_remembers_the_layout_for_batches_of_another_size(case):
    model, batch = case()
    model = model.double().eval()
    engine = Engine(dict(model.named_parameters()))
    for samples in (N, 3, 1, N):
        assert_reference(engine, model(batch[:samples]), rtol=1e-10, atol=1e-12)


LSTMS = {
    "outputs": (nn.LSTM(6, 4), lambda lstm, x: lstm(x.transpose(0, 1))[0].transpose(0, 1)),
    "last hidden state": (nn.LSTM(6, 4, batch_first=True), lambda lstm, x: lstm(x)[1][0][0]),
    "last cell state": (nn.LSTM(6, 4, batch_first=True), lambda lstm, x: lstm(x)[1][1][0]),
    "all of them": (
        nn.LSTM(6, 4, batch_first=True),
        lambda lstm, x: (found := lstm(x))[0][:, 1] + found[1][0][0] + found[1][1][0],
    ),
    "two layers, both directions": (
        nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True),
        lambda lstm, x: lstm(x)[0][:, -1],
    ),
    "without biases": (nn.LSTM(6, 4, batch_first=True, bias=False), first),
    "given states": (
        nn.LSTM(6, 4, batch_first=True),
        lambda lstm, x: lstm(x, (x[:, :1, :4].transpose(0, 1), x[:, 1:2, :4].transpose(0, 1)))[0],
    ),
    "as many steps as samples": (
        nn.LSTM(6, 4),
        lambda lstm, x: lstm(x[:, :1].expand(-1, N, -1).transpose(0, 1))[1][0][0],
    ),
}


@pytest.mark.parametrize(("lstm", "function"), LSTMS.values(), ids=LSTMS)
def test_lstm_in_float32(lstm, function):
    model, batch = Module(lstm, function), images(3, 6, dtype=torch.float32)
    engine = Engine(dict(model.named_parameters()))
    assert_reference(engine, model(batch).flatten(1), rtol=1e-4, atol=1e-5)
    assert set(engine.coverage.values()) == {"rule"}


def test_rms_norm_as_one_node():
    """As CUDA runs it; a CPU never makes the node, so its saved tensors are given here."""
    inputs, gradient = images(3, 6), images(3, 6)
    scale = (inputs.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    node = SimpleNamespace(_saved_input=inputs, _saved_result1=scale, name=lambda: "FusedRmsNormBackward0")
    edge = SimpleNamespace(node=node, slot=1, shape=torch.Size([6]))
    found = RULES["FusedRmsNormBackward0"](Use(edge, Layout(0, N, 1, 1)), (gradient, None))
    torch.testing.assert_close(found.dense(slice(None)), (gradient * inputs * scale).sum(1))


def test_a_node_that_did_not_save_what_a_rule_needs_is_not_covered():
    edge = SimpleNamespace(node=SimpleNamespace(name=lambda: "FusedRmsNormBackward0"), slot=1, shape=torch.Size([6]))
    use = Use(edge, Layout(0, N, 1, 1))
    with pytest.raises(NotCoveredError, match="FusedRmsNormBackward0 did not save input"):
        RULES["FusedRmsNormBackward0"](use, (images(3, 6), None))
    with pytest.raises(NotCoveredError, match=r"FusedRmsNormBackward0 is no torch\.autograd\.Function"):
        _ = use.saved_tensors
