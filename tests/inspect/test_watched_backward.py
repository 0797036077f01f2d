"""`Inspector.backward`: the backward pass of training, with gradients of single samples read on its way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from gradscore.errors import CoupledSamplesError, EngineError
from gradscore.inspect import (
    GradHist1d,
    GradientGeometry,
    Inspector,
    MeanGSNR,
    OutputGradientGeometry,
    SampleGradientQuantity,
    every,
)


class Kept(SampleGradientQuantity):
    """Keeps all gradients of single samples."""

    name = "kept"

    def __init__(self, **options):
        super().__init__(**options)
        self.found = {}

    def observe(self, name, parameter, gradient):
        del parameter
        self.found.setdefault(name, []).append(gradient.dense(slice(None)).clone())

    def gradients(self):
        return {name: torch.cat(parts) for name, parts in self.found.items()}


def conv():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4).eval(), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5)
    )


def shared():
    layer = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer, nn.Linear(16, 5))


def parameter_side():
    return nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(16, 8)), nn.Tanh(), nn.Linear(8, 5))


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, factor):
        ctx.save_for_backward(values, factor)
        return values.square() * factor

    @staticmethod
    def backward(ctx, gradient):
        values, factor = ctx.saved_tensors
        return 2 * values * factor * gradient, (values.square() * gradient).sum(0)


class Twin(nn.Module):
    """Has a parameter that no rule covers."""

    def __init__(self):
        super().__init__()
        self.linear, self.factor = nn.Linear(16, 5), nn.Parameter(torch.ones(5))

    def forward(self, images):
        return Squares.apply(self.linear(images.flatten(1)), self.factor)


MODELS = {"convolution": conv, "shared layer": shared, "weight norm": parameter_side, "reference": Twin}


@pytest.fixture
def batch():
    return torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 5


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request):
    torch.manual_seed(0)
    return request.param().double()


def losses(model, batch, samples=slice(None)):
    first = next(model.parameters())
    return F.cross_entropy(model(batch[0][samples].to(first.dtype)), batch[1][samples], reduction="none")


def gradients(model):
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


WEIGHTS = {"mean": (None, torch.mean), "sum": (1.0, torch.sum), "scaled": (700.0, lambda values: 700 * values.sum())}


@pytest.mark.filterwarnings("ignore::gradscore.gradients.engine.GradientWarning")
@pytest.mark.parametrize(("weight", "total"), WEIGHTS.values(), ids=WEIGHTS)
def test_trains_like_backward_and_sees_single_samples(model, batch, weight, total) -> None:
    single = []
    for index in range(6):
        model.zero_grad()
        losses(model, batch, slice(index, index + 1)).sum().backward()
        single.append(gradients(model))
    model.zero_grad()
    total(losses(model, batch)).backward()
    wanted = gradients(model)
    for _ in range(2):  # a new graph, then a known one
        model.zero_grad()
        quantity = Kept()
        with Inspector(model, [quantity]) as inspector:
            inspector.backward(losses(model, batch), weight=weight)
        found = gradients(model)
        assert found.keys() == wanted.keys() == quantity.found.keys()
        for name, gradient in quantity.gradients().items():
            truth = torch.stack([each[name] for each in single])
            torch.testing.assert_close(gradient, truth, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-12, atol=1e-14)


def test_adds_to_gradients_that_are_there(batch) -> None:
    model = conv()
    with Inspector(model, [MeanGSNR()]) as inspector:
        inspector.backward(losses(model, batch))
        once = gradients(model)
        inspector.backward(losses(model, batch))
    assert all(torch.equal(each, 2 * once[name]) for name, each in gradients(model).items())


def test_other_quantities_see_this_pass_once_and_as_it_is(batch) -> None:
    model = conv()
    wanted = [OutputGradientGeometry(inplace=False), GradientGeometry(inplace=False)]
    with Inspector(model, wanted):
        losses(model, batch).mean().backward()
    found = [OutputGradientGeometry(inplace=False), GradientGeometry(inplace=False)]
    with Inspector(model, [*found, GradHist1d()]) as inspector:
        inspector.backward(losses(model, batch))
    for mine, theirs in zip(found, wanted, strict=True):
        assert {layer: each.values for layer, each in mine.value["norm"].items()} == {
            layer: each.values for layer, each in theirs.value["norm"].items()
        }


def test_a_pause_around_it_holds(batch) -> None:
    model, quantity = conv(), OutputGradientGeometry()
    with Inspector(model, [quantity, MeanGSNR()]) as inspector:
        found = losses(model, batch)
        with inspector.paused():
            inspector.backward(found)
    assert quantity.value == {}
    assert gradients(model)


def test_a_step_that_is_not_due_only_trains(batch) -> None:
    model, quantity = conv(), Kept(schedule=every(2))
    with Inspector(model, [quantity]) as inspector:
        for _ in range(3):
            inspector.backward(losses(model, batch))
    assert {len(parts) for parts in quantity.found.values()} == {2}
    with_all = gradients(model)
    model.zero_grad()
    for _ in range(3):
        losses(model, batch).mean().backward()
    assert all(torch.equal(each, with_all[name]) for name, each in gradients(model).items())


def test_the_graph_is_freed(batch) -> None:
    model = conv()
    with Inspector(model, [Kept()]) as inspector:
        for _ in range(2):
            found = losses(model, batch)
            inspector.backward(found)
    with pytest.raises(RuntimeError, match="second time"):
        found.mean().backward()


@pytest.mark.parametrize("method", ["backward", "observe_losses"])
@pytest.mark.parametrize("quantities", [[], [MeanGSNR()]])
def test_losses_that_are_not_one_per_sample_are_refused(batch, method, quantities) -> None:
    model = conv()
    with Inspector(model, quantities) as inspector:
        for wrong in (losses(model, batch).mean(), losses(model, batch).unsqueeze(1)):
            with pytest.raises(EngineError, match=r"\(N,\).*reduction='none'"):
                getattr(inspector, method)(wrong)
    assert gradients(model) == {}


def test_a_weight_of_zero_is_refused(batch) -> None:
    model = conv()
    with Inspector(model, [Kept()]) as inspector, pytest.raises(EngineError, match="a weight of 0"):
        inspector.backward(losses(model, batch), weight=0.0)
    assert gradients(model) == {}


def test_coupled_samples_are_refused_before_anything_is_added(batch) -> None:
    model = conv().train()
    with Inspector(model, [Kept()]) as inspector:
        with pytest.raises(CoupledSamplesError, match="batch norm"):
            inspector.backward(losses(model, batch))
        assert gradients(model) == {}
        losses(model.eval(), batch)
    assert inspector.step == 1
