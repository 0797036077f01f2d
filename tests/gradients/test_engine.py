"""What the engine leaves behind, is not misled by, gives up on and refuses."""

import pytest
import torch
from both_ways import assert_reference, reference_of, streamed
from layers import MODELS, Function, N, images, lenet, outputs_of, tokens
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradscore.errors import CoupledSamplesError, EngineError
from gradscore.gradients import RULES, Dense, Engine, GradientWarning, output_gradient


def engine_of(model):
    return Engine(dict(model.named_parameters()))


def test_leaves_no_trace():
    model, batch = lenet().double(), images(1, 14, 14)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    outputs = model(batch)
    streamed(engine_of(model), outputs, torch.ones_like(outputs), retain_graph=False)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert all(parameter.grad is None and not vars(parameter) for parameter in model.parameters())


MISLEADING = {
    "zeros only": (lambda x: x.flatten(1), torch.zeros_like, 4),
    "one of four samples": (lambda x: x.flatten(1), lambda x: torch.eye(4)[:, :1].double() * x, 4),
    "two samples, the middle of three steps": (lambda x: x[:, 1], torch.ones_like, 2),
}


@pytest.mark.parametrize(("chosen", "first_gradient", "samples"), MISLEADING.values(), ids=MISLEADING)
def test_is_not_misled_by_a_first_batch_that_tells_little(chosen, first_gradient, samples):
    """The layout of a time-first layer is probed again when a batch tells more than the ones before."""
    layer = nn.Linear(6, 4).double()
    engine = engine_of(layer)
    for size, gradient_for in ((samples, first_gradient), (samples, torch.randn_like), (N, torch.randn_like)):
        outputs = chosen(layer(torch.randn(size, 3, 6).double().transpose(0, 1)).transpose(0, 1))
        assert_reference(engine, outputs, gradient_for(outputs))
    assert set(engine.coverage.values()) == {"rule"}


def test_is_not_misled_by_a_table_that_had_no_effect_on_the_first_batch():
    """Its nine rows could be nine samples while its gradient is zero."""
    table = nn.Parameter(torch.randn(9, 2).double())
    engine = Engine({"table": table})
    for gate in (0.0, 1.0):
        assert_reference(engine, (torch.randn(9, 2, 9).double() + gate * table.sin().t()).softmax(-1).flatten(1))
    assert engine.coverage == {"table": "parameter-side product"}


def test_without_a_rule_the_reference_takes_over_with_one_notice():
    model, batch = Function((4,), lambda w, x: torch.atan2(w, x)).double(), images(3, 4)
    engine, silent = engine_of(model), Engine(dict(model.named_parameters()), warns=False)
    outputs = model(batch).flatten(1)
    with pytest.warns(GradientWarning, match=r"weight: reference.*Atan2Backward0"):
        assert_reference(engine, outputs)
    assert engine.coverage == {"weight": "reference"}
    assert_reference(engine, outputs)
    assert_reference(silent, outputs)
    assert silent.notices == engine.notices
    assert len(engine.notices) == 1


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


def gain(use, gradients):
    inputs, _ = use.saved_tensors
    return Dense(2 * use.layout.samples_first(output_gradient(gradients) * inputs).sum((1, 2)))


def test_a_function_of_ones_own_by_the_reference_and_by_a_rule_that_is_added(monkeypatch):
    model = Function((6,), lambda w, x: Gain.apply(x, w).tanh().mean(1)).double()
    outputs, engine = model(images(4, 6)), engine_of(model)
    with pytest.warns(GradientWarning, match="weight: reference, .*no rule for GainBackward"):
        assert_reference(engine, outputs)
    monkeypatch.setattr(RULES, "_entries", dict(RULES._entries))
    RULES.add("GainBackward", gain)
    engine = engine_of(model)
    assert_reference(engine, outputs, rtol=1e-13, atol=1e-14)
    assert engine.coverage == {"weight": "rule"}


class Shared(nn.Module):
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
    model = Shared().double()
    engine = Engine(dict(model.named_parameters(remove_duplicate=False)))
    assert_reference(engine, model(images(4)))
    by_rule = ("first.weight", "first.bias", "second.weight", "second.bias")
    assert engine.coverage == {
        **dict.fromkeys(by_rule, "rule"),
        **dict.fromkeys(("curve.weight", "again.weight"), "reference"),
    }


def test_frozen_and_unused_parameters_have_gradient_zero_and_are_announced():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).double()
    model[0].weight.requires_grad_(False)
    engine = Engine({**dict(model.named_parameters()), "other": nn.Parameter(torch.ones(3).double())})
    with pytest.warns(GradientWarning) as caught:
        assert_reference(engine, model(images(4)))
    assert [str(item.message).split(",")[0] for item in caught] == [
        "0.weight: frozen (requires_grad is False)",
        "other: the losses do not depend on it",
    ]


COUPLED = {
    "batch norm in training mode": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train(),
    "batch norm in training mode, first": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).train(),
    "a kernel as a batch of one before it": lambda: nn.Sequential(
        *[nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4).train(), nn.Flatten(), nn.Linear(4, 2)]
    ),
    "centred over the batch": lambda: nn.Sequential(nn.Linear(4, 4), Function((4,), lambda w, x: x - x.mean(0) + w)),
}


@pytest.mark.parametrize("case", COUPLED.values(), ids=COUPLED)
def test_refuses_coupled_samples(case):
    model = case().double()
    outputs = model(images(4))
    with pytest.raises(CoupledSamplesError, match=r"depends? on"):
        streamed(engine_of(model), outputs, torch.randn_like(outputs))


BY_FREQUENCY = {
    "table": lambda: nn.Sequential(nn.Embedding(4, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(21, 2)),
    "bags": lambda: nn.Sequential(nn.EmbeddingBag(4, 3, mode="sum", scale_grad_by_freq=True), nn.Linear(3, 2)),
}


@pytest.mark.parametrize("case", BY_FREQUENCY.values(), ids=BY_FREQUENCY)
def test_rows_scaled_by_their_frequency_in_a_batch_are_refused_but_of_one_sample(case):
    model, batch = case().double(), tokens(size=4)
    outputs = model(batch)
    with pytest.raises(CoupledSamplesError, match=r"0\.weight.*scale_grad_by_freq.*False"):
        streamed(engine_of(model), outputs, torch.randn_like(outputs))
    dense = streamed(engine_of(model), model(batch[:1]), torch.ones(1, 2).double())
    model(batch[:1]).sum().backward()
    torch.testing.assert_close(dense["0.weight"][0], model[0].weight.grad)


def test_a_table_scaled_by_frequency_may_be_left_out():
    model = BY_FREQUENCY["table"]().double()
    assert_reference(Engine({"2.weight": model[2].weight}), model(tokens(size=4)))


def test_an_empty_batch_reports_nothing():
    model = nn.Linear(4, 2)
    outputs = model(torch.zeros(0, 4))
    dense = streamed(engine_of(model), outputs, torch.ones_like(outputs), retain_graph=False)
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


LINEAR = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
HIDING = {
    "checkpointing": (lambda x: checkpoint(LINEAR, x, use_reentrant=False), "checkpointing.*switch it off"),
    "reentrant checkpointing": (
        lambda x: LINEAR[2](checkpoint(LINEAR[:2], x.requires_grad_(), use_reentrant=True)),
        "use_reentrant=True hides the parameters",
    ),
    "compiled": (torch.compile(LINEAR, backend="aot_eager"), "torch.compile.*_orig_mod"),
}


@pytest.mark.parametrize(("function", "message"), HIDING.values(), ids=HIDING)
def test_refuses_graphs_that_hide_parameters(function, message):
    outputs = function(images(6))
    with pytest.raises(EngineError, match=message):
        streamed(engine_of(LINEAR), outputs, torch.ones_like(outputs))


def test_an_error_in_the_sink_comes_through_and_leaves_no_hook():
    parameters, outputs, grad_outputs = outputs_of(MODELS["MLP"])
    engine = Engine(parameters)

    def fail(*_):
        raise RuntimeError("sink failed")

    with pytest.raises(RuntimeError, match="sink failed"):
        engine.stream(outputs, grad_outputs, fail, retain_graph=True)
    torch.testing.assert_close(
        streamed(engine, outputs, grad_outputs), reference_of(parameters, outputs, grad_outputs), rtol=1e-10, atol=1e-12
    )
