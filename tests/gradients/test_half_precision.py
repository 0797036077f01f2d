"""Half precision, under autocast and throughout."""

import pytest
import torch
import torch.nn.functional as F
from both_ways import reference_of, streamed
from layers import Function, images
from torch import nn

from gradscore.gradients import Engine

HALF = {
    "linear": lambda: (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)), images(3, 6)),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.Flatten()),
        images(3, 8, 8),
    ),
    "attention": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), images(4, 8)),
    "relative position table": lambda: (
        Function((9, 4), lambda w, x: (F.linear(x, w[:3].repeat(2, 1)[:, :4]) @ w[torch.arange(6)]).softmax(-1)),
        images(2, 4),
    ),
}


@pytest.mark.parametrize("case", HALF.values(), ids=HALF)
def test_autocast_to_half_precision(case):
    """The gradients are those of float32 up to the rounding of bfloat16, and no parameter needs the reference."""
    model, batch = case()
    model, batch = model.eval(), batch.float()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(batch).flatten(1)
    engine = Engine(dict(model.named_parameters()))
    # Equal ones would end at a softmax.
    upstream = torch.linspace(0.1, 1, outputs.shape[1]).expand_as(outputs).to(outputs.dtype)
    dense = streamed(engine, outputs, upstream)
    truth = reference_of(engine.parameters, outputs, upstream)
    assert "reference" not in engine.coverage.values()
    whole = sum(gradient.norm() ** 2 for gradient in truth.values()) ** 0.5
    assert all((dense[name] - gradient).norm() < 0.02 * whole for name, gradient in truth.items())
    assert sum(gradient.norm() ** 2 for gradient in dense.values()) ** 0.5 == pytest.approx(float(whole), rel=0.02)


def test_the_caller_may_still_be_inside_autocast():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(images(3, 6, 6, dtype=torch.float32))
        engine = Engine(dict(model.named_parameters()))
        inside = streamed(engine, outputs, torch.ones_like(outputs))
    outside = streamed(engine, outputs, torch.ones_like(outputs))
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)
    assert set(engine.coverage.values()) == {"rule"}


SMALL = {
    "float16": (torch.float16, 1.0),
    "float16, small gradients": (torch.float16, 1e-3),
    "bfloat16, tiny gradients": (torch.bfloat16, 1e-30),
    "float32, tiny gradients": (torch.float32, 1e-36),
}


@pytest.mark.parametrize(("dtype", "size"), SMALL.values(), ids=SMALL)
def test_finds_the_samples_where_gradients_are_rounded_to_few_bits(dtype, size):
    model = nn.Sequential(
        *[nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()],
        *[nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)],
    ).to(dtype)
    outputs = model(images(3, 12, 12, dtype=dtype))
    engine = Engine(dict(model.named_parameters()))
    engine.stream(outputs, torch.full_like(outputs, size), lambda *_: None)
    assert set(engine.coverage.values()) == {"rule"}
