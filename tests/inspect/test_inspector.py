"""What an inspector feeds quantities with, and that it leaves no trace."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscore
from gradscore.errors import ConfigError
from gradscore.inspect import (
    GradHist1d,
    GradientActivation,
    GradientGeometry,
    InspectionWarning,
    Inspector,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
    every,
    examine,
)


class Net(nn.Module):
    """Has an in-place activation, a tuple of outputs, a frozen and a shared parameter."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.pair = nn.LSTM(12, 5, batch_first=True)
        self.head = nn.Linear(5, 4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.tied = self.head

    def forward(self, x):
        sequence, _ = self.pair(self.relu(self.conv(x)).flatten(1).unsqueeze(1))
        return self.frozen(self.head(sequence[:, -1]))


QUANTITIES = {
    "output gradients": OutputGradientGeometry,
    "parameter gradients": GradientGeometry,
    "gradient activation": GradientActivation,
    "output activation": OutputActivation,
    "output norm": OutputNorm,
    "parameter norm": ParameterNorm,
    "parameter steps": ParameterDifferenceGeometry,
    "histogram": GradHist1d,
}


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def batch():
    return torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 4


def everything():
    return [make() for make in QUANTITIES.values()]


def plain(value):
    return repr(value) if not isinstance(value, dict) else {key: repr(each) for key, each in value.items()}


def traces(model):
    """Everything about a model that hooks could change: attributes of modules and of parameters, values, gradients."""
    modules = {name: {key: plain(each) for key, each in vars(module).items()} for name, module in model.named_modules()}
    tensors = {
        name: (vars(each), each._backward_hooks, each._post_accumulate_grad_hooks, each.grad, each.detach().tolist())
        for name, each in model.named_parameters()
    }
    return modules, repr(tensors)


def backward(model, batch):
    F.cross_entropy(model(batch[0]), batch[1]).backward()


def test_detaching_leaves_the_model_as_it_was(net, batch):
    before = traces(net)
    with Inspector(net, everything()) as inspector:
        losses = F.cross_entropy(net(batch[0]), batch[1], reduction="none")
        inspector.observe_losses(losses)
        torch.autograd.grad(losses.mean(), net.head.weight)
        assert traces(net) != before
    assert traces(net) == before
    assert {entry.quantity for entry in inspector.tick_epoch()} == {
        make().name for name, make in QUANTITIES.items() if name != "parameter steps"
    }


class Broken(OutputNorm):
    def observe(self, layer, module, output):
        raise ArithmeticError(layer, module, output)


def test_an_exception_in_a_quantity_reaches_the_loop_and_leaves_no_trace(net, batch):
    before = traces(net)
    with pytest.raises(ArithmeticError, match="conv"), Inspector(net, [Broken()]):
        net(batch[0])
    assert traces(net) == before


def test_hooks_that_were_there_stay(net, batch):
    calls = []
    net.head.weight.register_hook(lambda gradient: calls.append("parameter"))
    net.head.register_forward_hook(lambda *_: calls.append("module"))
    with Inspector(net, everything()):
        pass
    backward(net, batch)
    assert calls == ["module", "parameter"]


def test_gradients_of_training_are_the_same(net, batch):
    backward(net, batch)
    wanted = {name: each.grad.clone() for name, each in net.named_parameters() if each.grad is not None}
    net.zero_grad()
    with Inspector(net, everything()) as inspector:
        losses = F.cross_entropy(net(batch[0]), batch[1], reduction="none")
        inspector.observe_losses(losses)
        losses.mean().backward()
    assert wanted.keys() == {name for name, each in net.named_parameters() if each.grad is not None}
    assert all(torch.equal(net.get_parameter(name).grad, gradient) for name, gradient in wanted.items())


def test_a_graph_that_outlives_the_inspector_is_not_looked_at(net, batch):
    with Inspector(net, [OutputGradientGeometry()]) as inspector:
        loss = F.cross_entropy(net(batch[0]), batch[1])
    loss.backward()
    assert inspector.quantities[0].value == {}


def test_gradients_of_outputs_are_those_of_autograd(net, batch):
    outputs = {}
    quantity = OutputGradientGeometry(inplace=False)
    net.head.register_forward_hook(lambda module, inputs, output: outputs.update(head=output))
    with Inspector(net, [quantity]):
        loss = F.cross_entropy(net(batch[0]), batch[1])
        expected = torch.autograd.grad(loss, outputs["head"], retain_graph=True)[0].norm()
        loss.backward()
    assert quantity.value["norm"]["head"].values[-1] == pytest.approx(float(expected), rel=1e-6)
    assert "relu" not in quantity.value["norm"]


def test_output_before_an_activation_in_place_is_that_of_the_layer(net, batch):
    quantity = OutputNorm(inplace=False)
    with torch.no_grad():
        expected = net.conv(batch[0]).flatten(1).norm(dim=1).mean()
    with Inspector(net, [quantity]):
        net(batch[0])
    assert quantity.value["norm"]["conv"].values == pytest.approx([float(expected)])


def test_gradients_do_not_add_up_from_step_to_step(net, batch):
    quantity = GradientGeometry(inplace=False)
    with Inspector(net, [quantity]):
        backward(net, batch)
        backward(net, batch)
    assert quantity.value["norm"]["head.weight"].values[0] == pytest.approx(
        quantity.value["norm"]["head.weight"].values[1]
    )
    assert quantity.value["correlation"]["head.weight"].values == pytest.approx([1.0])
    assert "frozen.weight" not in quantity.value["norm"]


def test_schedule(net, batch):
    quantity = GradientGeometry(inplace=False, schedule=every(3))
    with Inspector(net, [quantity]) as inspector:
        for _ in range(7):
            backward(net, batch)
        with torch.no_grad():
            net(batch[0])
    assert inspector.step == 6
    assert quantity.value["norm"]["head.weight"].count == 3


def test_chosen_layers_and_parameters(net, batch):
    quantities = [OutputNorm(), GradientGeometry(), ParameterNorm()]
    with Inspector(net, quantities, layers=["head", "c*"], parameters=["*.weight"]) as inspector:
        backward(net, batch)
        inspector.observe_modules()
    assert list(quantities[0].value["norm"]) == ["conv", "head"]
    assert set(quantities[1].value["norm"]) == {"conv.weight", "head.weight"}
    assert list(quantities[2].value["bias norm"]) == ["conv", "head"]


def test_an_epoch_is_forgotten_at_its_end(net, batch):
    quantity = GradHist1d()
    with Inspector(net, [quantity]) as inspector:
        inspector.observe_losses(F.cross_entropy(net(batch[0]), batch[1], reduction="none"))
        assert quantity.model.total > 0
        inspector.tick_epoch()
    assert (inspector.epoch, quantity.histograms) == (1, {})


def test_an_inspector_is_copied_while_it_is_not_attached():
    model = nn.Linear(3, 2)
    with Inspector(model, [GradientGeometry()]) as inspector:
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(ConfigError, match=r"is attached, so it cannot be copied or pickled; call detach\(\) first"):
            copy.deepcopy(inspector)
        inspector.tick_epoch()
    assert copy.deepcopy(inspector).table().equals(inspector.table())


OTHERS = {
    "another inspector": lambda model, images, losses, other: other.observe_losses(losses),
    "features": lambda model, images, losses, other: gradscore.features(model, images, losses=["uniform"]),
    "features of losses": lambda model, images, losses, other: gradscore.features(
        model, [images], losses=lambda model, batch: model(batch).square().sum(1)
    ),
    "projections": lambda model, images, losses, other: gradscore.project(model, images, dim=64),
    "examine": lambda model, images, losses, other: examine(model, [images]),
    "check_model": lambda model, images, losses, other: gradscore.check_model(model, images),
}


@pytest.mark.parametrize("other", [None, *OTHERS.values()], ids=["the other trains", *OTHERS])
@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
def test_passes_of_others_are_not_seen(other):
    """Neither those of a second inspector, but for the pass that trains, nor those that make features."""

    def run(beside):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
        images, labels = torch.randn(6, 4), torch.arange(6) % 3
        watch = Inspector(model, [GradientGeometry(), OutputGradientGeometry(), OutputNorm(), ParameterNorm()])
        with watch, Inspector(model, [GradHist1d()]) as second:
            for _ in range(3):
                losses = F.cross_entropy(model(images), labels, reduction="none")
                if beside is None:
                    losses.mean().backward()
                elif beside == "trains":
                    second.backward(losses)
                else:
                    beside(model, images, losses, second)
                    losses.mean().backward()
            watch.tick_epoch()
        return watch.table()

    wanted = run(None)
    assert wanted.loc[wanted["statistic"] == "count", "value"].max() == 3  # one of each step
    assert run(other or "trains").equals(wanted)


def test_what_is_replaced_while_it_is_watched_is_said():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with Inspector(model, [ParameterNorm()]) as inspector:
        model(torch.ones(1, 3)).sum().backward()
        inspector.tick_epoch()
        model[2] = nn.Linear(4, 2)
        model(torch.ones(1, 3)).sum().backward()
        with pytest.warns(InspectionWarning, match=r"^2, 2\.weight, 2\.bias: replaced in the model"):
            inspector.tick_epoch()
    inspector.tick_epoch()  # it watches nothing any more
