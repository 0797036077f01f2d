"""Statistics of gradients on any device, of elements with which sums lose digits, against NumPy in float64."""

import numpy as np
import pytest
import torch

from gradscore.gradients import Convolved, Dense, Factored, TableRows
from gradscore.statistics.measure import measure
from gradscore.statistics.statistic import evaluate, needs

N = 5
NAMES = ("max", "min", "mean", "std", "l1", "l2", "linf")


def elements(shape: tuple[int, ...], *, mean: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    return mean + scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))


def with_a_far_pivot() -> torch.Tensor:
    values = elements((N, 3000))
    values[:, 0] = 1e6
    return values


HARD = {
    "ordinary": lambda: elements((N, 3000)),
    "mean far above the deviation": lambda: elements((N, 3000), mean=1.0, scale=1e-4),
    "all alike": lambda: torch.full((N, 3000), 0.1),
    "first element far from the others": with_a_far_pivot,
    "squares below the range": lambda: elements((N, 3000), scale=1e-25),
    "squares above the range": lambda: elements((N, 3000), scale=1e25),
    "zeros": lambda: torch.zeros(N, 3000),
    "one element": lambda: elements((N, 1)),
    "many": lambda: elements((N, 1 << 16)),
    "float64 below its own range": lambda: elements((N, 3000)).double() * 1e-200,
    "bfloat16": lambda: elements((N, 3000)).bfloat16(),
}


def truth_of(values: np.ndarray) -> dict[str, np.ndarray]:
    scale = np.abs(values).max(1, keepdims=True)
    scale[scale == 0] = 1
    small = values / scale
    several = values.shape[1] > 1
    found = {
        "max": values.max(1),
        "min": values.min(1),
        "mean": values.mean(1),
        "std": small.std(1, ddof=1) * scale[:, 0] if several else np.zeros(len(values)),
        "l1": np.abs(values).sum(1),
        "l2": np.sqrt((small**2).sum(1)) * scale[:, 0],
    }
    return found | {"linf": np.maximum(found["max"], -found["min"])}


def assert_numpy(gradient, values: torch.Tensor, *, rtol: float = 1e-6) -> None:
    truth = truth_of(values.double().numpy())
    for names in (NAMES, ("l2",), ("std",), ("max", "mean"), ("l1",)):
        moments = measure(gradient, needs(names))
        for name in names:
            found = torch.as_tensor(evaluate(name, moments)).cpu().numpy()
            atol = 1e-7 * truth["l1"].max() / values.shape[1] if name == "mean" else 0
            # PyTorch's float32 norm adds one element after the other on the processor, which `elsewhere` computes on.
            about = 1e-4 if name == "l1" and gradient.device.type == "elsewhere" else rtol
            np.testing.assert_allclose(found, truth[name], rtol=about, atol=atol, err_msg=name)


@pytest.mark.parametrize("values", HARD.values(), ids=HARD)
def test_no_digits_are_lost(values, device):
    found = values()
    assert_numpy(Dense(found.to(device)), found, rtol=2e-6)


def convolved(left, image, place, **sliding):
    return Convolved(place(elements(left)), place(elements(image)), **sliding)


FORMS = {
    "products in groups": lambda place: Factored(
        place(elements((N, 2, 40, 7))), place(elements((N, 2, 50, 7))), (80, 50)
    ),
    "convolution": lambda place: convolved(
        (N, 1, 1, 12, 9, 8), (N, 1, 6, 9, 8), place,
        kernel=(3, 3), stride=(1, 1), dilation=(1, 1), padding=(1, 1), shape=(12, 6, 3, 3),
    ),
    "convolution with strides and groups": lambda place: convolved(
        (N, 1, 3, 4, 4, 5), (N, 1, 6, 9, 11), place,
        kernel=(3, 2), stride=(2, 2), dilation=(1, 1), padding=(0, 0), shape=(12, 2, 3, 2),
    ),
    "rows of a table": lambda place: TableRows(
        place(torch.arange(N * 4).view(N, 4) % 7), place(elements((N, 4, 30))), 200, (200, 30)
    ),
}  # fmt: skip


@pytest.mark.parametrize("budget", [1 << 24, 3000], ids=["at once", "in blocks"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_in_blocks(form, budget, device, monkeypatch):
    monkeypatch.setattr("gradscore.statistics.measure.ACCELERATOR_ELEMENTS", budget)
    here = form(lambda tensor: tensor)
    assert_numpy(form(lambda tensor: tensor.to(device)), here.dense(slice(None)).flatten(1), rtol=5e-5)
