"""A rule that is wrong is caught on the first batch, named, and replaced by the reference."""

import pytest
import torch
from both_ways import assert_reference, streamed
from torch import nn

from gradscore.errors import EngineError
from gradscore.gradients import RULES, Dense, Engine, Factored, GradientWarning, NotCoveredError

N = 6


def rolled(values):
    return values.roll(1, 0)


def one_element_off(values):
    return values.index_put((torch.tensor(0), *[torch.tensor(0)] * (values.dim() - 1)), torch.tensor(7.0).double())


def not_covered(values):
    raise NotCoveredError(f"a setting it does not know, for {len(values)} samples")


LINEAR = ("AddmmBackward0", {"4.weight", "4.bias"})
CONVOLUTION = ("ConvolutionBackward0", {"0.weight", "0.bias"})
GROUP_NORM = ("NativeGroupNormBackward0", {"1.weight", "1.bias"})
WAYS = {
    "doubled": (lambda values: 2 * values, *LINEAR),
    "slightly off": (lambda values: values * (1 + 1e-6), *GROUP_NORM),
    "of another sample": (rolled, *CONVOLUTION),
    "summed over the batch": (lambda values: values.sum(0, keepdim=True).expand_as(values), *LINEAR),
    "silently zero": (torch.zeros_like, *CONVOLUTION),
    "one element off": (one_element_off, *GROUP_NORM),
    "not a number": (lambda values: values * float("nan"), *LINEAR),
}


@pytest.fixture
def case():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
    return model, torch.randn(N, 2, 4, 4).double()


def engine_of(model, **options):
    return Engine(dict(model.named_parameters()), **options)


def by_reference(engine):
    return {name for name, covered in engine.coverage.items() if covered == "reference"}


def break_rule(monkeypatch, node, way):
    rule = RULES[node]
    monkeypatch.setitem(
        RULES._entries, node, lambda use, gradients: Dense(way(rule(use, gradients).dense(slice(None))))
    )


@pytest.mark.parametrize(("way", "node", "names"), WAYS.values(), ids=WAYS)
def test_a_broken_rule_is_caught_named_and_replaced(monkeypatch, case, way, node, names):
    break_rule(monkeypatch, node, way)
    model, batch = case
    engine = engine_of(model)
    with pytest.warns(GradientWarning, match=r"reference.*the self-check found a gradient of norm"):
        assert_reference(engine, model(batch), rtol=1e-12, atol=1e-12)
    assert by_reference(engine) == {notice.split(":")[0] for notice in engine.notices} == names
    assert_reference(engine, model(batch[:4]))  # it stays replaced, with one notice
    assert len(engine.notices) == 2


@pytest.mark.parametrize("way", [rolled, lambda values: values.flip(0)], ids=["rolled", "reversed"])
@pytest.mark.parametrize("samples", [2, 3, 4, 5])
def test_samples_that_a_rule_exchanges_are_seen_in_small_batches(monkeypatch, case, samples, way):
    break_rule(monkeypatch, "AddmmBackward0", way)
    model, batch = case
    engine = engine_of(model)
    with pytest.warns(GradientWarning, match="the self-check found"):
        engine.learn(model(batch[:samples]), torch.randn(samples, 3).double())
    assert by_reference(engine) == {"4.weight", "4.bias"}


def test_samples_whose_gradients_cancel_are_compared_all_the_same():
    model = nn.Linear(3, 2)
    engine = engine_of(model)
    engine.learn(model(torch.randn(1, 3).expand(3, 3)), torch.tensor([[0.9, -0.9], [-0.9, 0.9], [0.9, -0.9]]))
    assert set(engine.coverage.values()) == {"rule"}


def test_without_the_self_check_a_rule_that_gives_up_is_replaced_and_nothing_is_compared(monkeypatch, case):
    break_rule(monkeypatch, "AddmmBackward0", not_covered)
    break_rule(monkeypatch, "NativeGroupNormBackward0", lambda values: 2 * values)
    model, batch = case
    engine = engine_of(model, self_check=False)
    with pytest.warns(GradientWarning, match="reference.*a setting it does not know"):
        engine.learn(model(batch), torch.ones(N, 3).double())
    assert by_reference(engine) == {"4.weight", "4.bias"}


def raising(error):
    def way(_):
        raise error

    return way


REPLACED = {
    "an error": (raising(RuntimeError("The size of tensor a (3)")), r": reference.*Norm\w+: RuntimeError"),
    "a doubt": (raising(AssertionError()), r": reference.*Norm\w+: AssertionError"),
    "a row short": (lambda values: values[:-1], ": reference"),
    "flattened": (lambda values: values.flatten(0, 1), ": reference"),
    "without an axis of samples": (lambda values: values[0], ": reference"),
}


@pytest.mark.parametrize("self_check", [True, False])
@pytest.mark.parametrize(("way", "message"), REPLACED.values(), ids=REPLACED)
def test_an_exception_or_another_shape_means_the_reference(monkeypatch, case, way, message, self_check):
    break_rule(monkeypatch, "NativeGroupNormBackward0", way)
    model, batch = case
    engine = engine_of(model, self_check=self_check)
    with pytest.warns(GradientWarning, match=rf"1\.(weight|bias){message}"):
        assert_reference(engine, model(batch), rtol=1e-12, atol=1e-12)
    assert by_reference(engine) == {"1.weight", "1.bias"}


class Short(Dense):
    def dense(self, rows):
        return super().dense(rows)[: None if rows == slice(None) else 0]


CROOKED = {
    "no product": lambda found: (
        Factored(found.left, found.right[:, :, :-1], found.shape) if isinstance(found, Factored) else found
    ),
    "rows that are missing": lambda found: Short(found.dense(slice(None))),
}


@pytest.mark.parametrize("form", CROOKED.values(), ids=CROOKED)
def test_gradients_that_cannot_be_written_out_mean_the_reference(monkeypatch, case, form):
    rule = RULES["AddmmBackward0"]
    crooked = lambda use, gradients: form(rule(use, gradients))  # noqa: E731
    monkeypatch.setitem(RULES._entries, "AddmmBackward0", crooked)
    model, batch = case
    with pytest.warns(GradientWarning, match=r"4\.(weight|bias): reference"):
        assert_reference(engine_of(model), model(batch))


class NoBatching(torch.autograd.Function):
    """Cannot be carried through for several samples at a time."""

    @staticmethod
    def forward(_, values):
        return values * 2

    @staticmethod
    def backward(_, gradient):
        return gradient * 2 if float(gradient.sum()) else gradient


def test_a_parameter_side_that_cannot_be_batched_means_the_reference():
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    outputs = torch.randn(N, 5).double() @ NoBatching.apply(weight).T
    with pytest.warns(GradientWarning, match="weight: reference"):
        assert_reference(Engine({"weight": weight}), outputs)


class Stopped(torch.autograd.Function):
    """Hands on no gradient at all."""

    @staticmethod
    def forward(_, values):
        return values * 2

    @staticmethod
    def backward(_, _gradient):
        return (None,)


def test_a_parameter_side_that_hands_on_no_gradient_gives_zeros():
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    engine = Engine({"weight": weight})
    assert_reference(engine, torch.randn(N, 5).double() @ Stopped.apply(weight).T)
    assert engine.coverage == {"weight": "parameter-side product"}


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()])
def test_what_is_no_fault_of_the_rule_is_not_taken_for_one(monkeypatch, case, error):
    break_rule(monkeypatch, "AddmmBackward0", raising(error))
    model, batch = case
    with pytest.raises(type(error)):
        streamed(engine_of(model), model(batch), torch.ones(N, 3).double())


def test_an_exception_after_the_trial_names_the_rule_and_the_parameter(monkeypatch, case):
    model, batch = case
    engine = engine_of(model)
    streamed(engine, model(batch), torch.ones(N, 3).double())
    break_rule(monkeypatch, "AddmmBackward0", raising(RuntimeError("another size")))
    with pytest.raises(EngineError, match=r"4\.(weight|bias).*AddmmBackward0: RuntimeError: another size"):
        streamed(engine, model(batch), torch.ones(N, 3).double())
