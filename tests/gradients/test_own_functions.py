"""Operations of one's own, `torch.autograd.Function`: by the reference, or by a rule that is added for them."""

from types import SimpleNamespace

import pytest
import torch
from both_ways import exactly, streamed
from layers import N, images
from torch import nn

from gradscore.gradients import RULES, Dense, Engine, GradientWarning, NotCoveredError, Use, output_gradient
from gradscore.gradients.layout import Layout


class Gain(torch.autograd.Function):
    """A factor for each feature, doubled."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return 2 * inputs * weight

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        return 2 * gradient * weight, 2 * (gradient * inputs).sum((0, 1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.last = nn.Parameter(torch.linspace(0.5, 2, 6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(Gain.apply(x, self.gain)).mean(1)


def gain(use, gradients):
    inputs, _ = use.saved_tensors
    return Dense(2 * use.layout.samples_first(output_gradient(gradients) * inputs).sum((1, 2)))


@pytest.fixture
def passed():
    torch.manual_seed(0)
    model = Net().double()
    outputs = model(images(4, 6))
    return dict(model.named_parameters()), outputs, torch.randn_like(outputs)


def test_without_a_rule_the_exact_reference_takes_over(passed):
    engine = Engine(passed[0])
    with pytest.warns(GradientWarning, match="gain: reference, .*no rule for GainBackward"):
        found = streamed(engine, *passed[1:])
    torch.testing.assert_close(found, exactly(*passed), rtol=1e-13, atol=1e-14)


def test_a_rule_that_is_added_equals_the_exact_reference(passed, monkeypatch):
    monkeypatch.setattr(RULES, "_entries", dict(RULES._entries))
    RULES.add("GainBackward", gain)
    engine = Engine(passed[0])
    found = streamed(engine, *passed[1:])
    torch.testing.assert_close(found, exactly(*passed), rtol=1e-13, atol=1e-14)
    assert engine.coverage["gain"] == "rule"


def test_other_nodes_have_no_saved_tensors():
    edge = SimpleNamespace(node=SimpleNamespace(name=lambda: "MulBackward0"), slot=1, shape=torch.Size([6]))
    with pytest.raises(NotCoveredError, match=r"MulBackward0 is no torch\.autograd\.Function"):
        _ = Use(edge, Layout(0, True, N, 1)).saved_tensors
