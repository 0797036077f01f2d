"""Built-in metrics fed by hand, as a user of gradient_metrics would."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gradscore.statistics.gradient_metrics import GradientMetric, Max, Mean, MeanStd, Min, PNorm

PARTS = [torch.tensor([[1.0, -4.0], [2.0, 0.5]]), torch.tensor([3.0, -1.0])]
ALL = torch.cat([part.flatten() for part in PARTS]).numpy().astype(np.float64)

VALUES = {
    "max": (Max, {}, [3.0]),
    "min": (Min, {}, [-4.0]),
    "mean": (Mean, {}, [0.25]),
    "mean and std": (MeanStd, {}, [0.25, np.std(ALL, ddof=1)]),
    "std": (MeanStd, {"return_mean": False}, [np.std(ALL, ddof=1)]),
    "std with eps": (MeanStd, {"eps": 2.0}, [0.25, math.hypot(np.std(ALL, ddof=1), 2.0)]),
    "1-norm by default": (PNorm, {}, [11.5]),
    "2-norm": (PNorm, {"p": 2}, [np.linalg.norm(ALL)]),
    "small order": (PNorm, {"p": 0.05}, [(np.abs(ALL) ** 0.05).sum() ** 20]),
    "largest magnitude": (PNorm, {"p": math.inf}, [4.0]),
    "largest magnitude, as text": (PNorm, {"p": "inf"}, [4.0]),
}


@pytest.mark.parametrize(("kind", "options", "value"), VALUES.values(), ids=VALUES)
def test_values(kind, options, value):
    metric = kind(nn.Linear(2, 2), **options)
    metric(PARTS[0])
    metric(PARTS[1:])
    assert metric.data.tolist() == pytest.approx(value)


RESET = {
    "max": (Max, [-math.inf]),
    "min": (Min, [math.inf]),
    "mean": (Mean, [0.0]),
    "mean and std": (MeanStd, [0.0, pytest.approx(1e-16)]),
    "norm": (PNorm, [0.0]),
}


@pytest.mark.parametrize(("kind", "value"), RESET.values(), ids=RESET)
def test_reset_values(kind, value):
    metric = kind(nn.Linear(2, 2))
    assert metric.data.tolist() == value
    metric(PARTS[0])
    metric.reset()
    assert metric.data.tolist() == value


def test_one_element_and_none():
    metric = MeanStd(nn.Linear(2, 2), eps=1e-3)
    metric(torch.tensor([5.0]))
    metric(torch.empty(0))
    assert metric.data.tolist() == pytest.approx([5.0, 1e-3])


def test_standard_deviation_survives_a_large_mean():
    elements = 1000 + 0.01 * torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    metric = MeanStd(nn.Linear(2, 2))
    metric(elements[:40_000])
    metric(elements[40_000:])
    assert metric.data[1].item() == pytest.approx(np.std(elements.double().numpy(), ddof=1), rel=1e-6)


NORMS = {"high order": (10, 1e-5, torch.float32), "half precision": (2, 1e-4, torch.float16)}


@pytest.mark.parametrize(("p", "size", "dtype"), NORMS.values(), ids=NORMS)
def test_norms_do_not_underflow(p, size, dtype):
    elements = torch.full((4,), size, dtype=dtype)
    metric = PNorm(nn.Linear(2, 2), p=p)
    metric(elements)
    assert metric.data.item() == pytest.approx(elements[0].item() * 4 ** (1 / p), rel=1e-3)


BAD_OPTIONS = [(PNorm, {"p": p}) for p in (math.nan, None, 0, -1.0, "two")]
BAD_OPTIONS += [(MeanStd, {"eps": eps}) for eps in (0.0, -1.0, math.nan)]


@pytest.mark.parametrize(("kind", "options"), BAD_OPTIONS, ids=str)
def test_refuses_numbers_that_are_not_positive(kind, options):
    with pytest.raises(ValueError, match=r"\(0, inf\]|above 0"):
        kind(nn.Linear(2, 2), **options)


NET = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

TARGETS = {
    "module": (NET, list(NET.parameters())),
    "tensor": (NET[0].weight, [NET[0].weight]),
    "list": ([NET[1], NET[0].bias], [NET[1].weight, NET[1].bias, NET[0].bias]),
    "tuple": ((NET[1], NET[0].bias), [NET[1].weight, NET[1].bias, NET[0].bias]),
    "overlap": ([NET, NET[1]], list(NET.parameters())),
    "module without parameters": (nn.ReLU(), []),
}


@pytest.mark.parametrize(("target", "parameters"), TARGETS.values(), ids=TARGETS)
def test_collects_every_parameter_once_and_in_order(target, parameters):
    assert [id(p) for p in Max(target).target_parameters] == [id(p) for p in parameters]


def test_refuses_other_targets():
    with pytest.raises(ValueError, match="modules or tensors, got str"):
        Max(["layer1"])


def test_transform_comes_first_and_gets_a_tensor_of_its_own():
    gradient = torch.tensor([1.0, -4.0])
    metric = Max(NET, grad_transform=torch.Tensor.abs_)
    metric(gradient)
    assert metric.data.item() == 4.0
    assert gradient.tolist() == [1.0, -4.0]


def test_takes_gradients_of_any_layout():
    gradient = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).transpose(0, 1)
    wide = gradient.double()
    for kind, reference in ((Mean, wide.mean()), (MeanStd, wide.mean()), (PNorm, wide.abs().sum())):
        metric = kind(NET)
        metric(gradient)
        assert metric.data[0].item() == pytest.approx(reference.item(), rel=1e-5)


@pytest.mark.parametrize("kind", [Max, Min, Mean, MeanStd, PNorm])
def test_stays_where_its_gradients_are(kind, device):
    metric = kind(NET)
    shape = metric.data.shape
    metric(torch.ones(3, 2, device=device))
    metric([torch.ones(5, device=device)])
    assert metric.data.device.type == device
    assert metric.data.shape == shape


def test_the_base_class_is_abstract():
    metric = GradientMetric(NET)
    for call in (lambda: metric(torch.ones(2)), lambda: metric.data, metric.reset):
        with pytest.raises(NotImplementedError):
            call()
