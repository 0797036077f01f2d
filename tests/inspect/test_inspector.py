"""What an inspector feeds quantities with, and that it leaves no trace."""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from gradscore.errors import ConfigError, CoupledSamplesError, MissingExtraError
from gradscore.inspect import (
    GradHist1d,
    GradientActivation,
    GradientGeometry,
    Inspector,
    LossModule,
    MeanGSNR,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
    every,
    to_tensorboard,
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


def test_detaching_after_an_exception(net, batch):
    before = traces(net)
    inspector = Inspector(net, everything())
    with pytest.raises(RuntimeError), inspector:
        net(batch[0][:, :, :1])
    assert traces(net) == before


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


def test_layers_come_in_the_order_of_the_model_in_every_epoch(net, batch):
    with Inspector(net, [OutputNorm()]) as inspector:
        backward(net, batch)
        inspector.tick_epoch()
        backward(net, batch)
        inspector.tick_epoch()
    table = inspector.table()
    found = [list(dict.fromkeys(part["layer"])) for _, part in table.groupby("epoch")]
    assert found == [["conv", "relu", "pair", "head", "frozen"]] * 2


def test_steps_of_an_optimizer(net, batch):
    quantity = ParameterDifferenceGeometry(inplace=False, correlation=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inspector = Inspector(net, [quantity])
    with inspector:
        for _ in range(3):
            optimizer.zero_grad()
            backward(net, batch)
            optimizer.step()
        figures = inspector.tick_epoch()
    counts = {entry.row.layer: entry.row.value for entry in figures if entry.row.statistic == "count"}
    assert counts["head.weight"] == 3
    assert quantity.value == {}


def test_schedule(net, batch):
    quantity = GradientGeometry(inplace=False, schedule=every(3))
    with Inspector(net, [quantity]) as inspector:
        for _ in range(7):
            backward(net, batch)
        with torch.no_grad():
            net(batch[0])
    assert inspector.step == 6
    assert quantity.value["norm"]["head.weight"].count == 3


def test_losses_per_sample_follow_the_schedule(net, batch):
    quantity = MeanGSNR(schedule=every(2))
    with Inspector(net, [quantity]) as inspector:
        for _ in range(3):
            inspector.observe_losses(F.cross_entropy(net(batch[0]), batch[1], reduction="none"))
    assert quantity.moments["head.weight"].count == 12


def test_samples_are_not_looked_at_twice(net, batch):
    hooks, samples = OutputGradientGeometry(inplace=False), GradHist1d()
    with Inspector(net, [hooks, samples]) as inspector:
        losses = F.cross_entropy(net(batch[0]), batch[1], reduction="none")
        inspector.observe_losses(losses)
        losses.mean().backward()
    assert {layer: aggregate.count for layer, aggregate in hooks.value["norm"].items()} == dict.fromkeys(
        ["conv", "pair", "head", "frozen"], 1
    )
    assert samples.histograms["head.weight"].total == 6 * 20


def test_batch_norm_in_training_mode_is_refused(batch):
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    with Inspector(net, [MeanGSNR()]) as inspector, pytest.raises(CoupledSamplesError, match="batch norm"):
        inspector.observe_losses(F.cross_entropy(net(batch[0]), batch[1], reduction="none"))


def test_loss_module(batch):
    criterion = nn.CrossEntropyLoss()
    with Inspector(criterion, [LossModule()]) as inspector:
        criterion(torch.zeros(6, 4), batch[1])
        with torch.no_grad():
            criterion(torch.zeros(6, 4), batch[1])
    value = inspector.quantities[0].value
    assert [value[name]["(model)"].mean for name in ("training loss", "validation loss")] == pytest.approx(
        [np.log(4)] * 2
    )


def test_chosen_layers_and_parameters(net, batch):
    quantities = [OutputNorm(), GradientGeometry(), ParameterNorm()]
    with Inspector(net, quantities, layers=["head", "c*"], parameters=["*.weight"]) as inspector:
        backward(net, batch)
        inspector.observe_modules()
    assert list(quantities[0].value["norm"]) == ["conv", "head"]
    assert set(quantities[1].value["norm"]) == {"conv.weight", "head.weight"}
    assert list(quantities[2].value["bias norm"]) == ["conv", "head"]


def test_callback_sees_an_epoch_before_it_is_forgotten(net, batch):
    seen = []
    quantity = GradHist1d()
    with Inspector(net, [quantity], on_epoch=[lambda it: seen.append((it.epoch, quantity.model.total))]) as inspector:
        inspector.observe_losses(F.cross_entropy(net(batch[0]), batch[1], reduction="none"))
        inspector.tick_epoch()
    assert [epoch for epoch, _ in seen] == [0]
    assert seen[0][1] > 0
    assert quantity.histograms == {}


class Writer:
    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, scalar_value, global_step):
        self.scalars[tag, global_step] = scalar_value

    def flush(self):
        self.flushed = True


def test_writing_to_tensorboard(net, batch):
    writer = Writer()
    with Inspector(net, [GradientGeometry(), MeanGSNR()], on_epoch=[to_tensorboard(writer)]) as inspector:
        for _ in range(2):
            inspector.observe_losses(F.cross_entropy(net(batch[0][:1]), batch[1][:1], reduction="none"))
            backward(net, batch)
            inspector.tick_epoch()
    assert writer.scalars["parameter_gradient/norm/head.weight/count", 1] == 1
    assert writer.scalars["parameter_gradient/norm/head.weight/mean", 0] > 0
    assert ("gradient_signal-to-noise_ratio/data_set/(model)/mean", 0) not in writer.scalars
    assert writer.flushed


def test_tensorboard_reads_what_is_written(net, batch, tmp_path):
    with Inspector(net, [GradientGeometry()], on_epoch=[to_tensorboard(tmp_path)]) as inspector:
        for _ in range(2):
            backward(net, batch)
            inspector.tick_epoch()
    found = EventAccumulator(str(tmp_path)).Reload().Scalars("parameter_gradient/norm/head.weight/mean")
    table = inspector.table().set_index(["measure", "layer", "statistic"])["value"]
    assert [event.step for event in found] == [0, 1]
    assert [event.value for event in found] == pytest.approx(table["norm", "head.weight", "mean"].tolist())


def test_tensorboard_reads_histograms(net, batch, tmp_path):
    quantity = GradHist1d(bins=5, span=(-0.1, 0.1))
    counts = []
    with Inspector(
        net,
        [quantity],
        on_epoch=[to_tensorboard(tmp_path), lambda _: counts.append(quantity.histograms["head.bias"].counts)],
    ) as inspector:
        inspector.observe_losses(F.cross_entropy(net(batch[0]), batch[1], reduction="none"))
        inspector.tick_epoch()
    (event,) = EventAccumulator(str(tmp_path)).Reload().Histograms("gradient_histogram/head.bias")
    assert event.histogram_value.num == counts[0].sum() == 24
    assert list(event.histogram_value.bucket) == counts[0].tolist()
    assert event.histogram_value.bucket_limit == pytest.approx([-0.06, -0.02, 0.02, 0.06, 0.1])


def test_without_tensorboard(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gradscore\[tensorboard\]'"):
        to_tensorboard(tmp_path / "events")
    assert not (tmp_path / "events").exists()


MISUSE = {
    "attached twice": (lambda net: Inspector(net, []).attach().attach(), "attached already"),
    "two of a name": (lambda net: Inspector(net, [OutputNorm(), OutputNorm()]), "two quantities of the same name"),
    "no such layer": (lambda net: Inspector(net, [], layers=["con"]), "'con' matches no layer; there are conv"),
    "no such parameter": (lambda net: Inspector(net, [], parameters=["x"]), "'x' matches no parameter"),
    "schedule": (lambda net: every(0), "positive number of steps"),
}


@pytest.mark.parametrize(("misuse", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse(net, misuse, message):
    with pytest.raises(ConfigError, match=message):
        misuse(net)
