"""What the engine leaves behind, gives up on and refuses."""

import pytest
import torch
from both_ways import exactly, streamed
from layers import MODELS, Function, images, lenet, outputs_of, tokens
from torch import nn

from gradscore.errors import CoupledSamplesError, EngineError
from gradscore.gradients import Engine, GradientWarning, collect
from gradscore.gradients.per_sample import Dense


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_leaves_no_trace():
    model, batch = lenet().double(), images(1, 14, 14)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    outputs = model(batch)
    streamed(Engine(dict(model.named_parameters())), outputs, torch.ones_like(outputs))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert all(parameter.grad is None and not vars(parameter) for parameter in model.parameters())


def test_without_a_rule_the_exact_reference_takes_over_and_says_so():
    model, batch = Function((4,), lambda w, x: torch.atan2(w, x)), images(3, 4)
    parameters = dict(model.double().named_parameters())
    outputs = model(batch).flatten(1)
    engine = Engine(parameters)
    with pytest.warns(GradientWarning, match=r"weight: reference.*Atan2Backward0"):
        dense = streamed(engine, outputs, torch.ones_like(outputs))
    torch.testing.assert_close(dense, exactly(parameters, outputs, torch.ones_like(outputs)))
    assert engine.coverage == {"weight": "reference"}
    streamed(engine, outputs, torch.ones_like(outputs))
    assert len(engine.notices) == 1
    silent = Engine(parameters, warns=False)
    streamed(silent, model(batch).flatten(1), torch.ones_like(outputs))
    assert silent.notices == engine.notices


def test_a_broken_rule_is_caught_named_and_replaced(monkeypatch):
    def broken(use, gradients):
        return Dense(2 * collect_addmm(use, gradients).dense(slice(None)))

    collect_addmm = collect.RULES["AddmmBackward0"]
    monkeypatch.setitem(collect.RULES._entries, "AddmmBackward0", broken)
    parameters, outputs, grad_outputs = outputs_of(MODELS["MLP"])
    engine = Engine(parameters)
    with pytest.warns(GradientWarning, match="self-check"):
        dense = streamed(engine, outputs, grad_outputs)
    torch.testing.assert_close(dense, exactly(parameters, outputs, grad_outputs))
    assert set(engine.coverage.values()) == {"reference"}


class Tied(nn.Module):
    """One weight in two layers, and one with two names in a layer that no rule covers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.curve = Function((4,), lambda w, x: torch.atan2(w, x))
        self.again = self.curve

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.again(self.second(self.first(batch).tanh()))


@pytest.mark.filterwarnings("ignore::gradscore.gradients.GradientWarning")
def test_a_tensor_with_two_names_has_its_gradient_under_both():
    model, batch = Tied().double(), images(4).double()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    outputs = model(batch)
    engine = Engine(parameters)
    dense = streamed(engine, outputs, torch.ones_like(outputs))
    truth = exactly(parameters, outputs, torch.ones_like(outputs))
    assert truth["first.weight"].abs().sum() > 0
    torch.testing.assert_close(dense, truth)
    assert engine.coverage == {
        "first.weight": "rule",
        "first.bias": "rule",
        "second.weight": "rule",
        "second.bias": "rule",
        "curve.weight": "reference",
        "again.weight": "reference",
    }


COUPLED = {
    "batch norm in training mode": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train(),
    "batch norm in training mode, first": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).train(),
    "centred over the batch": lambda: nn.Sequential(nn.Linear(4, 4), Function((4,), lambda w, x: x - x.mean(0) + w)),
}


@pytest.mark.parametrize("case", COUPLED.values(), ids=COUPLED)
def test_refuses_coupled_samples(case):
    model = case().double()
    outputs = model(images(4))
    with pytest.raises(CoupledSamplesError, match=r"depends? on"):
        streamed(Engine(dict(model.named_parameters())), outputs, torch.randn_like(outputs))


BY_FREQUENCY = {
    "table": lambda: nn.Sequential(nn.Embedding(4, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(21, 2)),
    "bags": lambda: nn.Sequential(nn.EmbeddingBag(4, 3, mode="sum", scale_grad_by_freq=True), nn.Linear(3, 2)),
}


@pytest.mark.parametrize("case", BY_FREQUENCY.values(), ids=BY_FREQUENCY)
def test_refuses_rows_scaled_by_their_frequency_in_a_batch(case):
    model, batch = case().double(), tokens(size=4)
    outputs = model(batch)
    with pytest.raises(CoupledSamplesError, match=r"0\.weight.*scale_grad_by_freq.*False"):
        streamed(Engine(dict(model.named_parameters())), outputs, torch.randn_like(outputs))


@pytest.mark.parametrize("case", BY_FREQUENCY.values(), ids=BY_FREQUENCY)
def test_rows_of_one_sample_are_scaled_by_their_frequency_in_it(case):
    model, batch = case().double(), tokens(size=4)[:1]
    dense = streamed(Engine(dict(model.named_parameters())), model(batch), torch.ones(1, 2).double())
    model(batch).sum().backward()
    torch.testing.assert_close(dense["0.weight"][0], model[0].weight.grad)


def test_a_table_scaled_by_frequency_may_be_left_out():
    model = BY_FREQUENCY["table"]().double()
    parameters = {"2.weight": model[2].weight}
    outputs = model(tokens(size=4))
    dense = streamed(Engine(parameters), outputs, torch.ones_like(outputs))
    torch.testing.assert_close(dense, exactly(parameters, outputs, torch.ones_like(outputs)))


def test_frozen_and_unused_parameters_have_gradient_zero_and_are_announced():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).double()
    model[0].weight.requires_grad_(False)
    parameters = {**dict(model.named_parameters()), "other": nn.Parameter(torch.ones(3).double())}
    outputs = model(images(4))
    engine = Engine(parameters)
    with pytest.warns(GradientWarning) as caught:
        dense = streamed(engine, outputs, torch.ones_like(outputs))
    assert [str(item.message).split(",")[0] for item in caught] == [
        "0.weight: frozen (requires_grad is False)",
        "other: the losses do not depend on it",
    ]
    assert not dense["0.weight"].any()
    assert not dense["other"].any()
    assert dense["0.bias"].any()


def test_an_empty_batch_reports_nothing():
    model = nn.Linear(4, 2)
    outputs = model(torch.zeros(0, 4))
    dense = streamed(Engine(dict(model.named_parameters())), outputs, torch.ones_like(outputs), retain_graph=False)
    assert dense["weight"].shape == (0, 2, 4)


BAD = {
    "no graph": (lambda: (torch.ones(3, 2), torch.ones(3, 2)), "have no graph"),
    "other shape": (lambda: (nn.Linear(2, 2)(torch.ones(3, 2)), torch.ones(3, 1)), r"\(3, 2\).*\(3, 1\)"),
    "scalar": (lambda: (nn.Linear(2, 2)(torch.ones(3, 2)).sum(), torch.ones(())), r"must be \(N, \.\.\.\)"),
}


@pytest.mark.parametrize(("tensors", "message"), BAD.values(), ids=BAD)
def test_refuses_unusable_outputs(tensors, message):
    with pytest.raises(EngineError, match=message):
        Engine({}).stream(*tensors(), lambda *_: None)


def test_an_error_in_the_sink_comes_through_and_leaves_no_hook():
    parameters, outputs, grad_outputs = outputs_of(MODELS["MLP"])
    engine = Engine(parameters)

    def fail(*_):
        raise RuntimeError("sink failed")

    with pytest.raises(RuntimeError, match="sink failed"):
        engine.stream(outputs, grad_outputs, fail, retain_graph=True)
    dense = streamed(engine, outputs, grad_outputs)
    torch.testing.assert_close(dense, exactly(parameters, outputs, grad_outputs))
