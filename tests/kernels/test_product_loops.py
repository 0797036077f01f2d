"""Products that are reduced before they are written: the same sums as of the products written out."""

import itertools
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gradscore import kernels
from gradscore.gradients.per_sample import Convolved, Factored, suits_windows, window_blocks
from gradscore.kernels import dispatch
from gradscore.statistics.measure import measure
from gradscore.statistics.statistic import evaluate, needs

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch carries MKL on x86 only")


@pytest.fixture(autouse=True)
def threads(request, monkeypatch):
    """Two threads also on a machine with one processor, and for little work; another number where a test asks."""
    monkeypatch.setattr(dispatch, "PARALLEL_ELEMENTS", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request, "param", 2))
    yield
    torch.set_num_threads(before)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def reference(products):
    """The sums of rows in float64."""
    rows = products.flatten(1).numpy()
    return np.stack([rows.max(1), rows.min(1), rows.sum(1), (rows**2).sum(1), np.abs(rows).sum(1)], 1)


def assert_sums(sums, products):
    found, wanted = sums, reference(products)
    scale = np.abs(wanted[:, 4:]) * [1, 1, 1, 0, 1] + wanted[:, 3:4] * [0, 0, 0, 1, 0]
    assert found.shape == wanted.shape
    np.testing.assert_array_less(np.abs(found - wanted), 2e-6 * scale + 1e-30)


LAYOUTS = {
    "by rows": lambda n, rows, columns: random(n, rows, columns),
    "by columns": lambda n, rows, columns: random(n, columns, rows).transpose(1, 2),
    "tokens first": lambda n, rows, columns: random(columns, n, rows).permute(1, 2, 0),
    "part of a tensor": lambda n, rows, columns: random(n, rows + 2, columns + 3)[:, 1:-1, 2:-1],
    "every other column": lambda n, rows, columns: random(n, rows, 2 * columns)[:, :, ::2],
    "expanded": lambda n, rows, columns: random(n, rows, 1).expand(n, rows, columns),
    "one for all": lambda n, rows, columns: random(1, rows, columns).expand(n, rows, columns),
}

SIZES = {"one of all": (1, 1, 1, 1), "one position": (3, 5, 7, 1), "a row": (4, 1, 9, 6), "a column": (4, 9, 1, 6),
         "several blocks": (3, 400, 700, 2), "a tall one": (2, 140_000, 2, 3)}  # fmt: skip


RIGHT = ("by rows", "by columns", "expanded")
CASES = [
    (left, RIGHT[(row + column) % len(RIGHT)], sizes)
    for row, left in enumerate(LAYOUTS)
    for column, sizes in enumerate(SIZES)
]
"""Every layout of the one factor with every size, and with every layout of the other."""


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize(("left", "right", "sizes"), CASES, ids=str)
def test_products(left, right, sizes):
    samples, out, inner, positions = SIZES[sizes]
    one, other = LAYOUTS[left](samples, out, positions), LAYOUTS[right](samples, inner, positions)
    assert_sums(kernels.product_sums(one, other), one.double() @ other.double().transpose(1, 2))


CONVOLUTIONS = {
    "3x3": ((4, 6, 6, 5), (8, 3, 3), {"padding": 1}, 1),
    "1x1": ((3, 6, 5, 4), (8, 1, 1), {}, 1),
    "1x1 with a stride": ((3, 6, 7, 8), (8, 1, 1), {"stride": 2}, 1),
    "1x1 with padding": ((3, 6, 5, 4), (8, 1, 1), {"padding": 1}, 1),
    "one sample": ((1, 40, 6, 6), (8, 3, 3), {"padding": 1}, 1),
    "many channels": ((3, 40, 6, 6), (8, 3, 3), {"padding": 1}, 1),
    "many channels, stride": ((3, 40, 9, 8), (8, 3, 5), {"stride": (2, 3), "padding": (1, 2)}, 1),
    "many channels, dilation": ((3, 40, 12, 11), (8, 3, 2), {"dilation": (2, 3), "padding": 2, "stride": (3, 1)}, 1),
    "few channels, stride and dilation": ((3, 3, 14, 13), (5, 3, 4), {"dilation": 2, "padding": 3, "stride": 2}, 1),
    "groups": ((3, 8, 7, 7), (12, 3, 3), {"padding": 1}, 4),
    "depthwise": ((3, 8, 7, 7), (8, 3, 3), {"padding": 1, "stride": 2}, 8),
    "padding beyond the kernel": ((2, 33, 3, 3), (4, 2, 2), {"padding": 4, "stride": 3}, 1),
    "kernel as large as the image": ((3, 34, 5, 5), (6, 5, 5), {}, 1),
    "patches": ((3, 3, 8, 8), (16, 4, 4), {"stride": 4}, 1),
    "stride beyond the kernel": ((3, 35, 9, 9), (4, 2, 2), {"stride": 4}, 1),
    "one axis": ((3, 40, 17), (6, 5), {"padding": 2, "stride": 3}, 1),
    "more than a block": ((2, 150, 4, 4), (320, 3, 3), {"padding": 1}, 1),
}


def gradient_of(images, kernel, settings, groups, dtype=torch.float32, last=False):
    """What a rule makes of a convolution, and its weight gradients by autograd in float64."""
    out, *sizes = kernel
    image = random(*images)
    weight = torch.zeros(out, images[1] // groups, *sizes, dtype=torch.float64)
    convolve = {1: F.conv1d, 2: F.conv2d}[len(sizes)]

    def output(weight, image):
        return convolve(image.unsqueeze(0), weight, groups=groups, **settings)[0]

    at_output = random(*torch.vmap(output, (None, 0))(weight, image.double()).shape)

    def weighted(weight, image, gradient):
        return (output(weight, image) * gradient).sum()

    wanted = torch.vmap(torch.func.grad(weighted), (None, 0, 0))(weight, image.double(), at_output.double())
    settings = {"stride": 1, "padding": 0, "dilation": 1, **settings}
    each = {
        name: tuple(value) if isinstance(value, tuple) else (value,) * len(sizes) for name, value in settings.items()
    }
    if last:
        image = image.contiguous(memory_format=torch.channels_last)
        at_output = at_output.contiguous(memory_format=torch.channels_last)
    left = at_output.to(dtype).unsqueeze(1).unflatten(2, (groups, -1))
    return Convolved(left, image.to(dtype).unsqueeze(1), tuple(sizes), shape=tuple(weight.shape), **each), wanted


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("convolution", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions(convolution):
    gradient, wanted = gradient_of(*convolution)
    groups = convolution[3]
    assert_sums(gradient.row_sums(), wanted.unflatten(1, (groups, -1)).flatten(0, 1))


def test_channels_last():
    gradient, wanted = gradient_of(*CONVOLUTIONS["many channels, stride"], last=True)
    assert_sums(gradient.row_sums(), wanted)


WRITTEN = {name: each for name, each in CONVOLUTIONS.items() if name != "depthwise"}


BUDGETS = {"a sample at a time": 1, "all at once": 1 << 20}


@pytest.mark.parametrize(("name", "budget"), [*zip(WRITTEN, itertools.cycle(BUDGETS), strict=False)])
def test_gradients_written_out(name, budget):
    gradient, wanted = gradient_of(*WRITTEN[name])
    assert suits_windows(gradient)
    kept = [(rows, block.clone()) for rows, block in window_blocks(gradient, BUDGETS[budget])]
    assert [rows.start for rows, _ in kept] == list(
        range(0, len(gradient), max(1, min(BUDGETS[budget], len(gradient))))
    )
    lines = wanted if wanted.dim() == 5 else wanted.unsqueeze(3)  # a kernel over one axis has height 1
    ordered = lines.unflatten(1, (WRITTEN[name][3], -1)).permute(0, 1, 4, 5, 3, 2).flatten(1)
    found = torch.cat([block for _, block in kept]).double()
    torch.testing.assert_close(found, ordered, rtol=1e-5, atol=1e-6 * float(ordered.abs().max()))


SIX = needs(("max", "min", "mean", "std", "l1", "l2"))


@pytest.mark.parametrize("convolution", ["3x3", "1x1", "groups", "depthwise"])
def test_statistics_with_and_without(convolution, monkeypatch):
    gradient, _ = gradient_of(*CONVOLUTIONS[convolution])
    monkeypatch.setattr("gradscore.statistics.measure.SMALL_ELEMENTS", 0)
    fast = measure(gradient, SIX)
    monkeypatch.setattr(dispatch, "loops", lambda name: None)
    plain = measure(gradient, SIX)
    for name in ("max", "min", "mean", "std", "l1", "l2"):
        np.testing.assert_allclose(
            evaluate(name, fast), evaluate(name, plain), rtol=1e-5, atol=2e-6 * evaluate("max", plain).max()
        )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_shows(value):
    left, right = random(3, 400, 2), random(3, 700, 2)
    left[1, 399, 0] = value
    found = kernels.product_sums(left, right)
    assert np.isfinite(found[[0, 2]]).all()
    assert not np.isfinite(found[1, [3, 4]]).any()
    assert np.isnan(found[1, 2])


NOT_COVERED = {
    "float64": lambda: gradient_of(*CONVOLUTIONS["3x3"], dtype=torch.float64)[0],
    "several images of a sample": lambda: Convolved(
        random(2, 3, 1, 4, 5, 5), random(2, 3, 2, 7, 7), (3, 3), (1, 1), (1, 1), (0, 0), (4, 2, 3, 3)
    ),
    "three axes": lambda: Convolved(
        random(2, 1, 1, 4, 5, 5, 5), random(2, 1, 2, 7, 7, 7), (3,) * 3, (1,) * 3, (1,) * 3, (0,) * 3, (4, 2, 3, 3, 3)
    ),
    "no position": lambda: Factored(torch.zeros(2, 1, 3, 0), torch.zeros(2, 1, 4, 0), (3, 4)),
}


@pytest.mark.parametrize("make", NOT_COVERED.values(), ids=NOT_COVERED)
def test_the_rest_goes_the_ordinary_way(make):
    gradient = make()
    assert gradient.row_sums() is None
    assert not (isinstance(gradient, Convolved) and suits_windows(gradient))


def test_channels_by_themselves_are_no_product():
    assert not suits_windows(gradient_of(*CONVOLUTIONS["depthwise"])[0])


LEAVES_THREADS = """
import torch
from gradscore import kernels
from gradscore.kernels import dispatch, product_loops

dispatch.PARALLEL_ELEMENTS = 0
torch.set_num_threads(2)
kernels.product_sums(torch.ones(4, 30, 20), torch.ones(4, 30, 20))
print(torch.get_num_threads(), "mkl_get_max_threads() : 2" in torch.__config__.parallel_info())
nothing = torch.empty(1, 1, 1 << 58, device="meta")
try:
    product_loops.sum_products(nothing, nothing)
except MemoryError:
    print("mkl_get_max_threads() : 2" in torch.__config__.parallel_info())
"""


@pytest.mark.slow
def test_the_number_of_threads_stays():
    """Also where there is too little memory."""
    done = subprocess.run([sys.executable, "-c", LEAVES_THREADS], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2 True\nTrue\n", "")
