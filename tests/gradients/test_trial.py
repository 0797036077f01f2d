"""A rule that is wrong is caught on the first batch, named, and replaced by the exact twin."""

import pytest
import torch
from both_ways import exactly, streamed
from torch import nn

from gradscore.gradients import Engine, GradientWarning
from gradscore.gradients.factored import Dense
from gradscore.gradients.rules import RULES, NotCoveredError

N = 6


def doubled(values):
    return 2 * values


def slightly_off(values):
    return values * (1 + 1e-6)


def of_another_sample(values):
    return values.roll(1, 0)


def summed_over_the_batch(values):
    return values.sum(0, keepdim=True).expand_as(values)


def silently_zero(values):
    return torch.zeros_like(values)


def one_element_off(values):
    return values.index_put((torch.tensor(0), *[torch.tensor(0)] * (values.dim() - 1)), torch.tensor(7.0).double())


def not_a_number(values):
    return values * float("nan")


def not_covered(values):
    raise NotCoveredError(f"a setting it does not know, for {len(values)} samples")


NODES = {
    "linear": ("AddmmBackward0", {"4.weight", "4.bias"}),
    "convolution": ("ConvolutionBackward0", {"0.weight", "0.bias"}),
    "group norm": ("NativeGroupNormBackward0", {"1.weight", "1.bias"}),
}
WAYS = [
    doubled, slightly_off, of_another_sample, summed_over_the_batch, silently_zero, one_element_off, not_a_number,
]  # fmt: skip


@pytest.fixture
def case():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
    return model, torch.randn(N, 2, 4, 4).double()


def break_rule(monkeypatch, node, way):
    rule = RULES[node]

    def broken(use, gradients):
        return Dense(way(rule(use, gradients).dense(slice(None))))

    monkeypatch.setitem(RULES._entries, node, broken)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("node", "names"), NODES.values(), ids=NODES)
def test_a_broken_rule_is_caught_named_and_replaced(monkeypatch, case, node, names, way):
    break_rule(monkeypatch, node, way)
    model, batch = case
    outputs = model(batch)
    engine, grad_outputs = Engine(dict(model.named_parameters())), torch.randn_like(outputs)
    with pytest.warns(GradientWarning, match=r"exact twin.*the self-check found a gradient of norm"):
        found = streamed(engine, outputs, grad_outputs)
    torch.testing.assert_close(found, exactly(engine.parameters, outputs, grad_outputs), rtol=1e-12, atol=1e-12)
    assert {name for name, covered in engine.coverage.items() if covered == "exact twin"} == names
    assert {notice.split(":")[0] for notice in engine.notices} == names


def test_what_was_caught_stays_replaced_and_is_said_once(monkeypatch, case):
    break_rule(monkeypatch, "AddmmBackward0", doubled)
    model, batch = case
    engine = Engine(dict(model.named_parameters()))
    with pytest.warns(GradientWarning):
        streamed(engine, model(batch), torch.ones(N, 3).double())
    outputs = model(batch[:4])
    found = streamed(engine, outputs, torch.ones(4, 3).double())
    torch.testing.assert_close(found, exactly(engine.parameters, outputs, torch.ones(4, 3).double()))
    assert len(engine.notices) == 2


def test_a_rule_that_gives_up_is_replaced_without_the_self_check(monkeypatch, case):
    break_rule(monkeypatch, "AddmmBackward0", not_covered)
    model, batch = case
    outputs = model(batch)
    engine = Engine(dict(model.named_parameters()), self_check=False)
    with pytest.warns(GradientWarning, match="exact twin.*a setting it does not know"):
        found = streamed(engine, outputs, torch.ones(N, 3).double())
    torch.testing.assert_close(found, exactly(engine.parameters, outputs, torch.ones(N, 3).double()))


def test_without_the_self_check_nothing_is_compared(monkeypatch, case):
    break_rule(monkeypatch, "AddmmBackward0", doubled)
    model, batch = case
    engine = Engine(dict(model.named_parameters()), self_check=False)
    streamed(engine, model(batch), torch.ones(N, 3).double())
    assert set(engine.coverage.values()) == {"rule"}
