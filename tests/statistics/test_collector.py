"""Gradient metrics per sample against the reference, with the interface of gradient_metrics."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscore import GradientMetricCollector, GradientWarning
from gradscore.errors import CoupledSamplesError
from gradscore.gradients import engine, reference_gradients
from gradscore.statistics.gradient_metrics import GradientMetric, Max, Mean, MeanStd, Min, PNorm

N = 6


class SumOfSquares(GradientMetric):
    """A metric as a user writes it."""

    def __init__(self, target_layers, grad_transform=None):
        super().__init__(target_layers, grad_transform)
        self.reset()

    def _collect(self, grad):
        self.total = self.total + (grad**2).sum()
        grad.zero_()

    def _get_metric(self):
        return torch.stack([self.total, self.total.sqrt()])

    def reset(self):
        self.total = torch.zeros(())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().double().eval()


def loss_of(net, samples=N):
    logits = net(torch.randn(samples, 2, 6, 6, dtype=torch.float64).to(net.fc.weight.device))
    return F.cross_entropy(logits, logits.argmax(1), reduction="none")


def one_by_one(metrics, loss):
    """What gradient_metrics does: one backward pass per sample, every metric fed with its parameters' gradients."""
    targets = {str(id(p)): p for metric in metrics for p in metric.target_parameters}
    rows = []
    for _, gradients in reference_gradients(loss, torch.ones_like(loss), targets):
        for metric in metrics:
            metric.reset()
            metric([gradients[str(id(p))].clone() for p in metric.target_parameters])
        rows.append(torch.cat([metric.data for metric in metrics]))
    return torch.stack(rows)


METRICS = {
    "oberdiek": lambda net: [kind([net.conv, net.bn, net.fc]) for kind in (Max, Min, MeanStd, PNorm)],
    "per layer": lambda net: [MeanStd(layer) for layer in (net.conv, net.bn, net.fc)],
    "options": lambda net: [
        MeanStd(net.fc, return_mean=False, eps=0.1),
        PNorm(net.fc, p="inf"),
        PNorm(net.conv, p=0.5),
    ],
    "one tensor": lambda net: [PNorm(net.fc.weight, p=2)],
    "overlap": lambda net: [PNorm([net.fc, net.fc.weight]), Mean([net.conv, net.fc])],
    "transform": lambda net: [Mean([net.conv, net.fc], grad_transform=torch.abs)],
    "transform in place beside another metric": lambda net: [Mean(net.fc, torch.Tensor.abs_), Mean(net.fc)],
    "user's own": lambda net: [SumOfSquares([net.conv, net.fc]), Max(net.fc), SumOfSquares(net.bn, torch.abs)],
}


@pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)
def test_equals_one_backward_pass_per_sample(net, make, device):
    state = torch.get_rng_state()
    expected = one_by_one(make(net), loss_of(net)).double()
    torch.set_rng_state(state)
    there = net.to(device)
    collect, loss = GradientMetricCollector(make(there)), loss_of(there)
    for retain_graph in (True, False):
        found = collect(loss, retain_graph=retain_graph)
        assert found.device.type == device
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-10, atol=1e-13)


def test_shape_type_and_dim(net):
    collect = GradientMetricCollector((Max(net.fc), MeanStd(net.fc), SumOfSquares(net.fc)))
    assert collect.dim == 5
    assert collect.data.tolist() == pytest.approx([-torch.inf, 0, 1e-16, 0, 0])
    found = collect(loss_of(net))
    assert (found.shape, found.dtype) == ((N, 5), torch.float64)
    assert collect.data.tolist() == pytest.approx([-torch.inf, 0, 1e-16, 0, 0])


def test_a_standard_deviation_is_never_nan():
    """Constant elements, whose squares less the square of their mean come out negative in float32."""
    weight = nn.Parameter(torch.full((300, 200), 0.1))
    loss = (weight * torch.linspace(0.1, 1.7, N)[:, None, None]).sum((1, 2))
    found = GradientMetricCollector(MeanStd(weight))(loss)
    assert found[:, 1].tolist() == pytest.approx([0.0] * N, abs=1e-8)


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_small_batches(net, samples, device):
    net.to(device)
    metrics = [Max(net.fc), PNorm(net.conv), SumOfSquares(net.fc)]
    found = GradientMetricCollector(metrics)(loss_of(net, samples))
    assert (found.shape, found.device.type) == ((samples, 4), device)


def test_unused_and_frozen_parameters_have_gradient_zero(net):
    net.conv.weight.requires_grad_(False)
    with pytest.warns(GradientWarning, match=r"frozen|do not depend"):
        found = GradientMetricCollector([PNorm(net.unused), PNorm(net.conv.weight), SumOfSquares(net.unused)])(
            loss_of(net)
        )
    assert not found.any()


def test_does_not_touch_grad(net):
    net.fc.weight.grad = torch.full_like(net.fc.weight, 7.0)
    GradientMetricCollector(Max(net.fc))(loss_of(net))
    assert (net.fc.weight.grad == 7).all()
    assert net.fc.bias.grad is None


def test_channels_last_gradients(net):
    metrics = [Mean(net.conv), MeanStd(net.conv, torch.abs)]
    loss = loss_of(net.to(memory_format=torch.channels_last))
    torch.testing.assert_close(GradientMetricCollector(metrics)(loss, True), one_by_one(metrics, loss).double())


def test_a_tensor_inside_the_network_can_be_a_target(net):
    hidden = net.conv(torch.randn(N, 2, 6, 6, dtype=torch.float64))
    loss = net.fc(hidden.relu().mean((2, 3))).logsumexp(1)
    metrics = [PNorm(hidden), PNorm(net.fc)]
    with pytest.warns(GradientWarning, match="result of the forward pass"):
        found = GradientMetricCollector(metrics)(loss, retain_graph=True)
    torch.testing.assert_close(found, one_by_one(metrics, loss).double())


def test_refuses_train_mode_batch_norm(net):
    with pytest.raises(CoupledSamplesError, match=r"model\.eval\(\)"):
        GradientMetricCollector(Max(net.fc))(loss_of(net.train()))


def test_a_mean_of_a_second_forward_pass_counts_and_one_of_the_same_is_refused(net):
    samples, metrics = torch.randn(N, 2, 6, 6, dtype=torch.float64), [PNorm(net.conv), Mean(net.fc)]
    losses = net(samples).pow(2).sum(1)
    of_second = losses + net(samples).mean()
    found = GradientMetricCollector(metrics)(of_second, retain_graph=True)
    torch.testing.assert_close(found, one_by_one(metrics, of_second).double())
    with pytest.raises(CoupledSamplesError):
        GradientMetricCollector(metrics)(losses + losses.mean())


BAD_LOSSES = {
    "no gradient": (torch.ones(3), "must require a gradient"),
    "scalar": (torch.ones((), requires_grad=True) * 2, r"shape \(N,\) or \(N, T\), got \(\)"),
    "all logits": (torch.ones(3, 2, 4, requires_grad=True) * 2, r"shape \(N,\) or \(N, T\), got \(3, 2, 4\)"),
}


@pytest.mark.parametrize(("loss", "message"), BAD_LOSSES.values(), ids=BAD_LOSSES)
def test_refuses_other_losses(net, loss, message):
    with pytest.raises(ValueError, match=message):
        GradientMetricCollector(Max(net.fc))(loss)


def test_one_metric_or_any_sequence_of_them(net):
    metrics, losses = [PNorm(net.conv, p=2), Max(net.fc)], loss_of(net)
    found, again = (GradientMetricCollector(given)(losses, True) for given in (metrics, tuple(metrics)))
    alone = [GradientMetricCollector(metric)(losses, True) for metric in metrics]
    torch.testing.assert_close([found, found], [again, torch.cat(alone, 1)], rtol=0, atol=0)


def test_losses_of_tokens_are_summed(net):
    losses = torch.stack([loss_of(net), loss_of(net)], 1)
    metrics = [PNorm(net.conv, p=2), Max(net.fc)]
    found = GradientMetricCollector(metrics)(losses, retain_graph=True)
    torch.testing.assert_close(found, one_by_one(metrics, losses.sum(1)).double())


def test_what_two_samples_taught_serves_a_batch(net, monkeypatch):
    metrics = [PNorm(net.conv, p=2), Max(net.fc)]
    collector = GradientMetricCollector(metrics)
    collector.learn(loss_of(net, 2))
    monkeypatch.setattr(engine, "try_plan", None)
    loss = loss_of(net)
    torch.testing.assert_close(collector(loss, retain_graph=True), one_by_one(metrics, loss).double())


BAD_METRICS = {
    "empty": ([], "is empty"),
    "no metric": ([1], "got int"),
    "no sequence": (3, "got int"),
    "text": ("max", "got str"),
    "no parameter": ([Max(nn.ReLU())], "has a parameter"),
}


@pytest.mark.parametrize(("metrics", "message"), BAD_METRICS.values(), ids=BAD_METRICS)
def test_refuses_other_metrics(metrics, message):
    with pytest.raises(ValueError, match=message):
        GradientMetricCollector(metrics)


def test_a_dry_run_for_the_shapes():
    model = nn.Linear(3, 2, device="meta")
    collector = GradientMetricCollector([Max(model), MeanStd(model.weight)])
    loss = nn.functional.cross_entropy(
        model(torch.ones(5, 3, device="meta")), torch.zeros(5, dtype=torch.long, device="meta"), reduction="none"
    )
    found = collector(loss)
    assert (found.shape, found.device.type) == ((5, 3), "meta")
