"""The compiled loops against NumPy in float64, and the same results without them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gradscore import kernels
from gradscore.gradients import Engine
from gradscore.gradients.per_sample import Convolved, grouped_blocks, shifted_blocks, suits_groups
from gradscore.kernels import dispatch
from gradscore.statistics.statistic import reduce_gradients

SHAPES = {"one element": (3, 1), "a row": (1, 7), "less than a chunk": (5, 100), "several chunks": (4, 3 * 2048 + 5)}


def rows(shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype) + 0.1


def reference(values, about_mean):
    centre = values.mean(1, keepdims=True) if about_mean else 0
    deviation = np.sqrt(((values - centre) ** 2).sum(1))
    return np.stack([values.max(1), values.min(1), values.mean(1), deviation, np.abs(values).sum(1)], 1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_row_sums(shape):
    values = rows(shape)
    wide = values.numpy().astype(np.float64)
    found = kernels.row_sums(values)
    np.testing.assert_array_equal(found[:, 0], wide.max(1))
    np.testing.assert_array_equal(found[:, 1], wide.min(1))
    np.testing.assert_allclose(found[:, 2], wide.sum(1), atol=1e-5 * np.abs(wide).sum(1).max())
    np.testing.assert_allclose(found[:, 3], (wide**2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(found[:, 4], np.abs(wide).sum(1), rtol=1e-5)


def moments_of(values, *, about_mean):
    """The moments of the rows of one matrix."""
    return kernels.RowMoments(*(each[0] for each in kernels.moments_of_all([values], about_mean=about_mean)))


@pytest.mark.parametrize("about_mean", [True, False], ids=["about the mean", "about zero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_row_moments(shape, dtype, about_mean):
    values = rows(shape, dtype)
    found = np.stack(moments_of(values, about_mean=about_mean), 1)
    truth = reference(values.numpy().astype(np.float64), about_mean)
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-13)


MATRICES = {
    "of several widths": lambda dtype: [rows(shape, dtype) for shape in ((5, 1), (5, 3000), (5, 17), (5, 3000))],
    "one": lambda dtype: [rows((3, 40), dtype)],
    "not contiguous": lambda dtype: [
        rows((9, 4), dtype).t(),
        rows((4, 60), dtype)[:, ::3],
        rows((1, 2), dtype).expand(4, 2),
    ],
}


@pytest.mark.parametrize("about_mean", [True, False], ids=["about the mean", "about zero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES)
def test_moments_of_all(make, dtype, about_mean):
    matrices = make(dtype)
    found = np.stack(kernels.moments_of_all(matrices, about_mean=about_mean), 2)
    truth = [reference(each.numpy().astype(np.float64), about_mean) for each in matrices]
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-13)
    one_by_one = [moments_of(each, about_mean=about_mean) for each in matrices]
    np.testing.assert_array_equal(found.transpose(0, 2, 1), one_by_one)


def test_matrices_of_different_types_have_no_kernel():
    assert kernels.moments_of_all([rows((2, 3)), rows((2, 3), torch.float64)], about_mean=True) is None


ENDS = {
    "half the largest number": np.finfo(np.float64).max / 2,
    "a power of two": 2.0**40,
    "the smallest number with all digits": np.finfo(np.float64).tiny,
    "the smallest number": 5e-324,
}


@pytest.mark.parametrize("number", ENDS.values(), ids=ENDS)
def test_the_deviation_at_the_ends_of_the_range(number):
    """The norm of a number alone, which is the number, and of four of it, which is twice the number."""
    values = torch.tensor([[number, 0, 0, 0], [number] * 4], dtype=torch.float64)
    found = moments_of(values, about_mean=False)
    np.testing.assert_array_equal(found.deviation, [number, 2 * number])


SPECIAL = {
    "not a number": (np.nan, (np.nan, np.nan, np.nan)),
    "infinity": (np.inf, (np.inf, 0.0, np.inf)),
    "minus infinity": (-np.inf, (0.0, -np.inf, -np.inf)),
}


@pytest.mark.parametrize(("value", "expected"), SPECIAL.values(), ids=SPECIAL)
def test_values_that_are_not_finite(value, expected):
    """The deviation about the mean is no number, as NumPy has it, and about zero it is not finite."""
    values = torch.zeros(2, 3000)
    values[0, 2500] = value
    about_zero, about_mean = (moments_of(values, about_mean=each) for each in (False, True))
    for found in (kernels.row_sums(values), np.stack(about_zero, 1)):
        np.testing.assert_array_equal(found[0, :3], expected)
        np.testing.assert_array_equal(found[1], np.zeros(5))
    assert not np.isfinite(about_zero.deviation[0])
    assert np.isnan(about_mean.deviation[0])


def test_centred_products():
    values, factors, centres = rows((4, 3, 50, 50)), rows((4, 3, 50, 50)).flip(2), torch.tensor([0.5, -3.0, 100.0])
    wide = (values.double().numpy() - centres.numpy()[:, None, None]) * factors.double().numpy()
    products, sums = kernels.centred_products(values, centres, factors).numpy()
    np.testing.assert_allclose(products, wide.sum((2, 3)), atol=1e-6 * np.abs(wide).sum((2, 3)).max())
    sizes = factors.abs().sum((2, 3)).max()
    np.testing.assert_allclose(sums, factors.double().numpy().sum((2, 3)), atol=1e-6 * sizes)


NORMED = {
    "as they come": lambda each: each,
    "by columns": lambda each: each.transpose(1, 2).contiguous().transpose(1, 2),
    "tokens first": lambda each: each.transpose(0, 1).contiguous().transpose(0, 1),
    "every other": lambda each: each.repeat_interleave(2, 2)[:, :, ::2],
}


@pytest.mark.parametrize(
    ("tokens", "values_lie"), [(1, "as they come"), (64, "by columns"), (200, "by columns"), (64, "every other")]
)
@pytest.mark.parametrize("factors_lie", NORMED)
def test_normed_products(tokens, values_lie, factors_lie):
    one, other = NORMED[values_lie], NORMED[factors_lie]
    values, factors = one(rows((3, tokens, 70))), other(rows((3, tokens, 70)).flip(2))
    centres, scales = rows((3, tokens)), rows((3, tokens)).square()
    wide = (values.double() - centres.unsqueeze(2)) * scales.unsqueeze(2) * factors
    products, sums = kernels.normed_products(values, centres, scales, factors)
    np.testing.assert_allclose(products, wide.sum(1), atol=1e-6 * wide.abs().sum(1).max())
    np.testing.assert_allclose(sums, factors.double().sum(1), atol=1e-6 * factors.abs().sum(1).max())


KERNELS = {
    "normed_products by columns": lambda: kernels.normed_products(
        rows((9, 200, 70)).transpose(1, 2), rows((9, 70)), rows((9, 70)), rows((70, 9, 200)).transpose(0, 1)
    ),
    "normed_products": lambda: kernels.normed_products(
        rows((9, 70, 200)), rows((9, 70)), rows((9, 70)), rows((9, 70, 200))
    ),
    "row_sums": lambda: kernels.row_sums(rows((9, 20000))),
    "moments": lambda: moments_of(rows((9, 20000), torch.float64), about_mean=True),
    "moments_of_all": lambda: kernels.moments_of_all([rows((9, 20000)), rows((9, 3))], about_mean=True),
    "centred_products": lambda: kernels.centred_products(rows((3, 3, 20000)), torch.arange(3.0), rows((3, 3, 20000))),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_threads_change_nothing(kernel, monkeypatch):
    monkeypatch.setattr(dispatch, "PARALLEL_ELEMENTS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared = kernel()
    monkeypatch.setattr(dispatch, "PARALLEL_ELEMENTS", 1 << 60)
    np.testing.assert_array_equal(kernel(), shared)


def test_kernels_run_in_many_threads_at_once():
    values = rows((9, 20000))
    expected = kernels.row_sums(values)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kernels.row_sums(values), range(200)))
    assert all(np.array_equal(each, expected) for each in found)


OTHERS = {
    "float64": torch.ones(2, 3, dtype=torch.float64),
    "half": torch.ones(2, 3, dtype=torch.float16),
    "not contiguous": torch.ones(3, 2).t(),
}


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_no_kernel(values):
    assert kernels.row_sums(values) is None
    assert kernels.centred_products(values.unsqueeze(0), torch.ones(len(values)), values.unsqueeze(0)) is None


def statistics_of_a_network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3), torch.nn.BatchNorm2d(24), torch.nn.Flatten(), torch.nn.Linear(24 * 36, 60)
    ).eval()
    parameters = dict(model.named_parameters())
    outputs = model(torch.randn(9, 3, 8, 8))
    names = ["max", "min", "mean", "std", "l1", "l2", "linf", "l0.5"]
    groups = {name: [name] for name in parameters} | {"model": list(parameters)}
    gradient = torch.softmax(outputs.detach(), 1)
    return reduce_gradients(Engine(parameters), outputs, gradient, statistics=names, groups=groups)


def test_statistics_are_the_same_without_numba(monkeypatch):
    """As where Numba is missing, or told not to compile."""
    compiled = statistics_of_a_network()
    monkeypatch.setattr(dispatch, "loops", lambda name: None)
    plain = statistics_of_a_network()
    assert list(compiled) == list(plain)
    largest = {name: compiled[f"{name.rsplit('/', 1)[0]}/linf"].max() for name in compiled}
    for name, values in compiled.items():
        torch.testing.assert_close(plain[name], values, rtol=1e-5, atol=1e-6 * float(largest[name]))


@pytest.mark.slow
def test_there_are_no_kernels_where_numba_is_told_not_to_compile():
    code = "import torch; from gradscore import kernels; print(kernels.row_sums(torch.ones(2, 3)))"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("None\n", "")


CONVOLUTIONS = {
    "one axis": ((2, 4, 3, 1, 30), {"padding": (1,)}),
    "two axes": ((2, 4, 3, 1, 12, 12), {"padding": (1, 1)}),
    "stride": ((2, 4, 3, 1, 13, 12), {"stride": (2, 3)}),
    "dilation": ((2, 4, 3, 1, 14, 14), {"dilation": (2, 2)}),
    "groups": ((4, 6, 3, 2, 20, 20), {"stride": (2, 2)}),
    "three axes": ((2, 4, 2, 1, 6, 6, 6), {}),
    "depthwise": ((6, 6, 3, 6, 8, 8), {"padding": (1, 1)}),
    "wide depthwise": ((6, 6, 5, 6, 8, 8), {"padding": (2, 2)}),
}


def convolved(sizes, settings, dtype):
    torch.manual_seed(0)
    inputs, outputs, width, groups, *size = sizes
    dims = len(size)
    weight = torch.randn(outputs, inputs // groups, *[width] * dims, dtype=dtype)
    image = torch.randn(5, inputs, *size, dtype=dtype)
    options = {name: settings.get(name, (default,) * dims) for name, default in OPTIONS.items()}
    result = (F.conv1d, F.conv2d, F.conv3d)[dims - 1](image, weight, None, groups=groups, **options)
    left = torch.randn_like(result)
    shape = tuple(weight.shape)
    return Convolved(
        left.view(5, 1, groups, outputs // groups, *left.shape[2:]),
        image.unsqueeze(1),
        shape[2:],
        **options,
        shape=shape,
    )


OPTIONS = {"stride": 1, "dilation": 1, "padding": 0}


@pytest.mark.parametrize(("sizes", "settings"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_grouped_blocks(sizes, settings):
    gradient = convolved(sizes, settings, torch.float64)
    found = torch.cat([block for _, block in grouped_blocks(gradient, 2 * 4 * 9 * 2)])
    torch.testing.assert_close(found, gradient.factored(slice(None)).dense(slice(None)).flatten(1))


CHOICES = {
    "many positions": ("two axes", torch.float32, True),
    "few positions": ("dilation", torch.float64, False),
    "strided groups": ("groups", torch.float32, True),
    "channels by themselves": ("depthwise", torch.float32, True),
    "channels by themselves, wide kernels": ("wide depthwise", torch.float32, False),
}


@pytest.mark.parametrize(("case", "dtype", "expected"), CHOICES.values(), ids=CHOICES)
def test_choice_of_the_way(case, dtype, expected):
    gradient = convolved(*CONVOLUTIONS[case], dtype)
    assert suits_groups(gradient) is expected


def test_both_ways_agree():
    gradient = convolved(*CONVOLUTIONS["two axes"], torch.float32)
    grouped = torch.cat([block for _, block in grouped_blocks(gradient, 1 << 20)])
    shifted = torch.cat([block for _, block in shifted_blocks(gradient, 1 << 20)], 1)
    torch.testing.assert_close(grouped.sum(1), shifted.sum((0, 2)), rtol=1e-4, atol=1e-4)
