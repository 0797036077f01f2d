"""Products that a CUDA device reduces before they are written: interpreted, compiled, and chosen only where they exist.

No device is needed: Triton's interpreter computes on the processor what the kernel says, its compiler makes machine
code for devices that are not there, and tensors without contents say which of them they are on.
"""

import platform
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interpreted_tiles import STATISTICS, interpreted
from torch._subclasses import FakeTensorMode

from gradscore import kernels
from gradscore.gradients.per_sample import Convolved, Factored
from gradscore.kernels import dispatch
from gradscore.statistics import measure as measuring
from gradscore.statistics.measure import measure
from gradscore.statistics.statistic import evaluate, needs

needs_triton = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no Triton for other systems"
)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def spoilt(value):
    left = random(3, 1, 70, 5)
    left[1, 0, 3, 2] = value
    return left, random(3, 1, 66, 5)


PRODUCTS = {
    "one of all": (random(1, 1, 1, 1), random(1, 1, 1, 1)),
    "one position": (random(3, 1, 5, 1), random(3, 1, 7, 1)),
    "a row": (random(4, 1, 1, 6), random(4, 1, 90, 6)),
    "a column": (random(4, 1, 90, 6), random(4, 1, 1, 6)),
    "one tile": (random(2, 1, 64, 32), random(2, 1, 64, 32)),
    "smaller than a tile": (random(4, 1, 5, 3), random(4, 1, 7, 3)),
    "one more than a tile": (random(2, 1, 65, 33), random(2, 1, 65, 33)),
    "several tiles": (random(2, 1, 130, 40), random(2, 1, 200, 40)),
    "groups": (random(3, 4, 70, 9), random(3, 4, 5, 9)),
    "by columns": (random(2, 1, 5, 9).transpose(2, 3), random(2, 1, 5, 6).transpose(2, 3)),
    "tokens first": (random(5, 2, 9).permute(1, 2, 0).unsqueeze(1), random(5, 2, 6).permute(1, 2, 0).unsqueeze(1)),
    "groups last": (random(2, 9, 5, 3).permute(0, 3, 1, 2), random(2, 6, 5, 3).permute(0, 3, 1, 2)),
    "part of a tensor": (random(2, 1, 11, 8)[:, :, 1:-1, 2:-1], random(2, 1, 6, 5)),
    "every other position": (random(2, 1, 9, 10)[..., ::2], random(2, 1, 6, 5)),
    "expanded": (random(2, 1, 9, 1).expand(2, 1, 9, 5), random(1, 1, 6, 5).expand(2, 1, 6, 5)),
    "small": (1e-17 * random(2, 1, 70, 5), 1e-17 * random(2, 1, 6, 5)),
    "large": (1e18 * random(2, 1, 70, 5), 1e18 * random(2, 1, 6, 5)),
}

LINES = {
    "sum of outer products": Factored(random(3, 1, 70, 4), random(3, 1, 9, 4), (70, 9)),
    "groups of outer products": Factored(random(3, 2, 7, 4), random(3, 2, 9, 4), (14, 9)),
    "convolution of pixels": Convolved(
        random(3, 1, 1, 8, 5, 6), random(3, 1, 9, 5, 6), (1, 1), (1, 1), (1, 1), (0, 0), (8, 9, 1, 1)
    ),
    "convolution of pixels, channels last, in groups": Convolved(
        random(3, 5, 6, 8).permute(0, 3, 1, 2).reshape(3, 1, 2, 4, 5, 6),
        random(3, 5, 6, 10).permute(0, 3, 1, 2).unsqueeze(1),
        (1, 1),
        (1, 1),
        (1, 1),
        (0, 0),
        (8, 5, 1, 1),
    ),
    "convolution of a line": Convolved(random(3, 1, 1, 8, 7), random(3, 1, 9, 7), (1,), (1,), (1,), (0,), (8, 9, 1)),
}

FAR = (1e3 + random(2, 1, 70, 4), 1 + 1e-3 * random(2, 1, 65, 4))
SPOILT = {"NaN": spoilt(float("nan")), "infinity": spoilt(float("inf"))}


def products_of(left, right):
    """(n, elements) float64."""
    return (left.double() @ right.double().transpose(2, 3)).flatten(1)


def moments_of(rows, *, about_mean):
    """What `kernels.product_moments` says, in float64."""
    rows = rows.numpy()
    mean = rows.mean(1)
    apart = rows - about_mean * mean[:, None]
    return np.stack([rows.max(1), rows.min(1), mean, np.sqrt((apart**2).sum(1)), np.abs(rows).sum(1)], 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    products = {**PRODUCTS, "again": PRODUCTS["several tiles"], "far from zero": FAR, **SPOILT}
    return interpreted(tmp_path_factory.mktemp("interpreted"), products=products, gradients=LINES)


@needs_triton
@pytest.mark.parametrize("about_mean", [True, False], ids=["about the mean", "about zero"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(found, name, about_mean):
    rows = products_of(*PRODUCTS[name])
    wanted, got = moments_of(rows, about_mean=about_mean), found["products"][name][about_mean].numpy()
    magnitudes = wanted[:, 4]
    # The bounds for sums over elements are those of the loops on the processor.
    scale = np.stack([magnitudes, magnitudes, magnitudes / rows.shape[1], rows.norm(dim=1).numpy(), magnitudes], 1)
    assert got.dtype == np.float64
    np.testing.assert_array_less(np.abs(got - wanted), 2e-6 * scale + 1e-50)


@needs_triton
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("name", LINES)
def test_statistics(found, name, statistic):
    gradient = LINES[name]
    rows = gradient.dense(slice(None)).double().flatten(1)
    wanted = evaluate(statistic, measure(_written_out(rows), needs([statistic])))
    np.testing.assert_allclose(found["gradients"][name][statistic].numpy(), wanted, rtol=2e-6, atol=1e-7)


def _written_out(rows):
    return Factored(torch.eye(rows.shape[1], dtype=torch.float64).expand(len(rows), 1, -1, -1),
                    rows.unsqueeze(1).unsqueeze(2), (rows.shape[1], 1))  # fmt: skip


@needs_triton
def test_spread_about_a_mean_far_from_zero(found):
    wanted = moments_of(products_of(*FAR), about_mean=True)
    np.testing.assert_allclose(found["products"]["far from zero"][True].numpy()[:, 3], wanted[:, 3], rtol=1e-5)


NOT_FINITE = {
    ("NaN", True): [np.nan] * 5,
    ("NaN", False): [np.nan] * 5,
    ("infinity", True): [np.inf, -np.inf, np.nan, np.nan, np.inf],
    ("infinity", False): [np.inf, -np.inf, np.nan, np.inf, np.inf],
}


@needs_triton
@pytest.mark.parametrize(("case", "wanted"), NOT_FINITE.items(), ids=str)
def test_what_is_not_finite_stays_in_its_sample(found, case, wanted):
    name, about_mean = case
    got = found["products"][name][about_mean].numpy()
    np.testing.assert_array_equal(got[1], wanted)
    others = products_of(*(factor[[0, 2]] for factor in SPOILT[name]))
    np.testing.assert_allclose(got[[0, 2]], moments_of(others, about_mean=about_mean), rtol=1e-5, atol=1e-6)


@needs_triton
def test_the_same_values_bit_for_bit(found):
    torch.testing.assert_close(found["products"]["again"], found["products"]["several tiles"], rtol=0, atol=0)


@needs_triton
def test_works_where_it_can_be_tried(found):
    assert found["works"] is True


@needs_triton
@pytest.mark.parametrize("about_mean", [True, False], ids=["about the mean", "about zero"])
@pytest.mark.parametrize("capability", [80, 90])
def test_compiles_for_devices(capability, about_mean, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")  # the default of some versions, or of a user
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gradscore.kernels import product_tiles

    names = product_tiles.reduce_tiles.arg_names
    settings = {"ABOUT_MEAN": about_mean, "HEIGHT": product_tiles.ROWS, "WIDTH": product_tiles.COLUMNS,
                "DEPTH": product_tiles.INNER, "NUMBERS": product_tiles.KEPT}  # fmt: skip
    types = {**dict.fromkeys(names, "i32"), "left": "*fp32", "right": "*fp32", "found": "*fp64",
             **dict.fromkeys(settings, "constexpr")}  # fmt: skip
    source = ASTSource(product_tiles.reduce_tiles, types, settings)  # which Triton 3.2 calls by another name
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=product_tiles.OPTIONS)
    assert made.asm["cubin"][:4] == b"\x7fELF"
    assert f".target sm_{capability}" in made.asm["ptx"]
    # Products of float32 by tensor cores would keep ten bits of a number.
    assert "tf32" not in made.asm["ptx"]
    # Products and squares are added before they are rounded, whatever the default.
    assert all(f"fma.rn.f{bits}" in made.asm["ptx"] for bits in (32, 64))


def on(device, *, dtype=torch.float32, samples=3):
    """Factors without contents."""
    with FakeTensorMode():
        return (torch.empty(samples, 1, 40, 6, device=device, dtype=dtype),
                torch.empty(samples, 1, 30, 6, device=device, dtype=dtype))  # fmt: skip


@pytest.fixture
def stand_in(monkeypatch):
    """A module in the place of `product_tiles`, on a device on which it works."""
    module = SimpleNamespace(product_moments=lambda left, right, about_mean: left.new_empty(len(left), 5).double())
    monkeypatch.setattr(dispatch, "loops", {"product_tiles": module}.get)
    monkeypatch.setattr(dispatch, "_has_tiles", lambda device: True)
    return module


NO_KERNEL = {
    "processor": {"device": "cpu"},
    "no device": {"device": "meta"},
    "double precision": {"device": "cuda", "dtype": torch.float64},
    "half precision": {"device": "cuda", "dtype": torch.bfloat16},
    "no samples": {"device": "cuda", "samples": 0},
}


@pytest.mark.usefixtures("stand_in")
def test_chosen_for_float32_on_cuda():
    found = kernels.product_moments(*on("cuda"), about_mean=True)
    assert [(each.device.type, each.shape) for each in found] == [("cuda", (3,))] * 5


@pytest.mark.parametrize("case", NO_KERNEL.values(), ids=NO_KERNEL)
@pytest.mark.usefixtures("stand_in")
def test_not_chosen_for_others(case):
    assert kernels.product_moments(*on(**case), about_mean=True) is None


@pytest.mark.usefixtures("stand_in")
def test_not_chosen_without_triton(monkeypatch):
    monkeypatch.setattr(dispatch, "loops", lambda name: None)
    assert kernels.product_moments(*on("cuda"), about_mean=True) is None


BROKEN = {
    "raises": lambda left, right, about_mean: torch.empty(-1),
    "wrong": lambda left, right, about_mean: torch.zeros(len(left), 5, dtype=torch.float64),
    "rounds to ten bits": lambda left, right, about_mean: torch.from_numpy(moments_of(
        products_of(left.bfloat16(), right.bfloat16()), about_mean=about_mean)),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_not_chosen_where_it_does_not_work(monkeypatch, broken):
    monkeypatch.setattr(dispatch, "loops", lambda name: SimpleNamespace(product_moments=broken))
    assert dispatch._has_tiles.__wrapped__(torch.device("cpu")) is False


FORMS = {
    "sum of outer products": Factored,
    "convolution of pixels": lambda left, right, sizes: Convolved(
        left.reshape(3, 1, 1, 4000, 2, 3), right.reshape(3, 1, 300, 2, 3), (1, 1), (1, 1), (1, 1), (0, 0), sizes
    ),
}


def measured(form, *statistics):
    """Moments of gradients without contents, which are not on the processor."""
    left, right = torch.empty(3, 1, 4000, 6, device="meta"), torch.empty(3, 1, 300, 6, device="meta")
    return measure(form(left, right, (4000, 300)), needs(statistics))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_statistics_choose_it(form, stand_in, monkeypatch):
    monkeypatch.setattr(
        kernels,
        "product_moments",
        lambda *each, **how: kernels.RowMoments(*stand_in.product_moments(*each, **how).unbind(1)),
    )
    monkeypatch.setattr(measuring, "measure_exactly", None)
    assert measured(form, *STATISTICS).deviation.device.type == "meta"


@pytest.mark.parametrize("statistics", [["l0.5", "max"], ["l3"]], ids=str)
def test_other_norms_go_the_ordinary_way(statistics, monkeypatch):
    monkeypatch.setattr(kernels, "product_moments", None)
    assert measured(Factored, *statistics).device.type == "meta"
