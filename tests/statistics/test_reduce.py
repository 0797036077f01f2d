"""Statistics against NumPy on the reference's gradients, and where float32 would lose digits."""

import numpy as np
import pytest
import torch
from torch import nn

from gradscore.errors import ConfigError
from gradscore.gradients import Engine, GradientWarning, plan, reference_gradients
from gradscore.gradients.per_sample import Dense, Factored, TableRows, Total, add
from gradscore.kernels import dispatch
from gradscore.statistics import measure as measuring
from gradscore.statistics.measure import measure, measure_exactly
from gradscore.statistics.statistic import STATISTICS, Statistic, evaluate, find_statistic, needs, reduce_gradients

REFERENCE = {
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "std": lambda g: np.std(g, ddof=1) if g.size > 1 else 0.0,
    "l1": lambda g: np.abs(g).sum(),
    "l2": lambda g: np.sqrt((g**2).sum()),
    "linf": lambda g: np.abs(g).max(),
    "l0.5": lambda g: np.sqrt(np.abs(g)).sum() ** 2,
    "l3": lambda g: (np.abs(g) ** 3).sum() ** (1 / 3),
}
NAMES = tuple(REFERENCE)


def pooled(gradient, statistic):
    return evaluate(statistic, measure(gradient, needs([statistic])))


def assert_numpy(gradient, *, rtol, atol):
    """Every statistic asked for alone, against NumPy in float64."""
    rows = gradient.dense(slice(None)).flatten(1).double().numpy()
    truth = np.array([[statistic(row) for row in rows] for statistic in REFERENCE.values()])
    np.testing.assert_allclose(np.stack([pooled(gradient, name) for name in NAMES]), truth, rtol=rtol, atol=atol)


def uses(count, height):
    torch.manual_seed(0)
    values = torch.randn(4, count, 3, dtype=torch.float64)
    return TableRows(torch.randint(0, height, (4, count)), values, height, (height, 3))


def factored(*sizes, groups=1, positions=1):
    torch.manual_seed(0)
    left, right = (torch.randn(4, groups, size, positions, dtype=torch.float64) for size in sizes)
    return Factored(left, right, (groups * sizes[0], sizes[1]))


FORMS = {
    "outer product": factored(5, 7),
    "outer product, one entry": factored(1, 1),
    "sum of outer products": factored(5, 7, positions=3),
    "groups": factored(5, 7, groups=2, positions=3),
    "larger than a block": factored(900, 800, positions=2),
    "table, few uses": uses(5, 30),
    "table, one row used often": TableRows(torch.zeros(4, 6, dtype=torch.long), uses(6, 9).values, 9, (9, 3)),
    "table, more uses than rows": uses(12, 4),
    "sum of forms": Total((factored(30, 3, positions=2), uses(5, 30))),
    "tied table, few uses": add([uses(5, 30), factored(30, 3, positions=2)]),
    "tied table, most rows used": add([uses(40, 60), factored(60, 3, positions=2)]),
    "tied table of several uses": add([uses(5, 30), factored(30, 3, positions=2), uses(4, 30), factored(30, 3)]),
    "tied table and a sum": add([uses(5, 30), factored(30, 3, positions=2), Dense(uses(6, 30).dense(slice(None)))]),
    "scalar products": factored(300, 250, positions=20),
    "scalar products of groups": factored(150, 200, groups=2, positions=20),
    "scalar products in tiles": factored(400, 500, positions=200),
    "tied table and scalar products": add([uses(20, 3000), factored(3000, 3, positions=2)]),
}


def test_all_are_compared():
    assert set(STATISTICS.built_in) <= set(NAMES)


@pytest.mark.parametrize("gradient", FORMS.values(), ids=FORMS)
def test_equals_numpy(gradient):
    assert_numpy(gradient, rtol=1e-10, atol=1e-14)


@pytest.fixture
def accelerator(monkeypatch):
    """As on an accelerator: moments are tensors, kernels of the CPU are not there, and no sample is looked at twice."""
    monkeypatch.setattr(measuring, "as_array", lambda values: values.detach())
    monkeypatch.setattr(dispatch, "loops", lambda name: None)
    monkeypatch.setattr(measuring, "_on_cpu", measuring._on_accelerator)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("gradient", FORMS.values(), ids=FORMS)
def test_moments_beside_the_gradients(gradient):
    assert {type(pooled(gradient, name)) for name in NAMES} == {torch.Tensor}
    assert_numpy(gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("statistics", "loops"), [(["l2"], True), (["std"], False), (["l2", "max"], False)], ids=str)
def test_norms_of_large_parameters(monkeypatch, loops, statistics):
    """Of 900,000 squares in float32 one sum is off by 2e-5."""
    if not loops:
        monkeypatch.setattr(dispatch, "loops", lambda name: None)
    values = torch.randn(2, 900_000, generator=torch.Generator().manual_seed(0))
    found = measure(Dense(values), needs(statistics))
    truth = [REFERENCE[statistics[0]](row.double().numpy()) for row in values]
    np.testing.assert_allclose(evaluate(statistics[0], found), truth, rtol=1e-7)


class Conjugated(nn.Module):
    """The imaginary part of a conjugate is a view, whose sign is not in memory: `torch._neg_view` makes such views."""

    def __init__(self, turn):
        super().__init__()
        self.real, self.imaginary, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm, self.turn = nn.LayerNorm(8), turn

    def forward(self, x):
        return self.head(self.turn(self.norm(self.turn(torch.complex(self.real(x), self.imaginary(x)).conj().imag))))


def compare_with_numpy(engine, outputs, gradient, groups, statistics, *, rtol, atol=0.0):
    """Statistics of groups, and those that NumPy makes of the reference's gradients."""
    found = reduce_gradients(engine, outputs, gradient, statistics=statistics, groups=groups, retain_graph=True)
    assert list(found) == [f"{group}/{name}" for group in groups for name in statistics]
    for index, gradients in reference_gradients(outputs, gradient, engine.parameters):
        for group, names in groups.items():
            elements = np.concatenate([gradients[name].double().flatten().numpy() for name in dict.fromkeys(names)])
            got = [found[f"{group}/{name}"][index].item() for name in statistics]
            want = [REFERENCE[name](elements) for name in statistics]
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("self_check", [True, False], ids=["self-checked", "not checked"])
@pytest.mark.parametrize("turn", [torch.clone, torch._neg_view])
def test_signs_that_are_not_in_memory(turn, self_check):
    torch.manual_seed(0)
    model = Conjugated(turn)
    engine = Engine(dict(model.named_parameters()), self_check=self_check)
    groups = {name: [name] for name in engine.parameters}
    compare_with_numpy(engine, model(torch.randn(5, 6)), torch.randn(5, 3), groups, ["max", "min"], rtol=1e-5)
    assert set(engine.coverage.values()) <= {"rule", "unused"}


def test_two_signs_of_the_same_memory():
    """Of one output gradient, the imaginary part and that of its conjugate."""
    torch.manual_seed(0)
    one, other = nn.Linear(5, 4), nn.Linear(5, 4)
    x, zero = torch.randn(3, 5), torch.zeros(3, 4)
    sums = torch.complex(zero, one(x)) + torch.complex(zero, other(x)).conj()
    engine = Engine({"one": one.bias, "other": other.bias, "weight": other.weight})
    groups = {name: [name] for name in engine.parameters}
    compare_with_numpy(engine, sums.imag.pow(3).sum(1), torch.ones(3), groups, ["max", "min"], rtol=1e-5)


def test_complex_parameters_count_as_two_real_ones():
    """A filter of Fourier coefficients, and the same from their real and imaginary parts."""
    torch.manual_seed(0)
    weight, unused = nn.Parameter(torch.randn(5, dtype=torch.cfloat)), nn.Parameter(torch.randn(3, dtype=torch.cfloat))
    x = torch.randn(4, 8)
    losses = torch.fft.irfft(torch.fft.rfft(x) * weight).pow(3).sum(1)
    engine, groups = Engine({"weight": weight, "unused": unused}), {"weight": ["weight"], "both": ["weight", "unused"]}
    with pytest.warns(GradientWarning):
        found = reduce_gradients(
            engine, losses, torch.ones(4), statistics=NAMES, groups=groups, retain_graph=True
        )  # fmt: skip
    for index, gradients in reference_gradients(losses, torch.ones(4), {"weight": weight}):
        truth = torch.view_as_real(gradients["weight"]).flatten().double().numpy()
        for name in NAMES:
            assert float(found[f"weight/{name}"][index]) == pytest.approx(REFERENCE[name](truth), rel=1e-5)
            padded = REFERENCE[name](np.concatenate([truth, np.zeros(6)]))
            assert float(found[f"both/{name}"][index]) == pytest.approx(padded, rel=1e-5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


GROUPS = {
    "a parameter": {"head.weight": ["head.weight"]},
    "a module": {"conv": ["conv.weight", "conv.bias"]},
    "overlapping groups": {"one": ["conv.weight", "head.bias"], "two": ["head.bias", "norm.weight"]},
    "a name twice": {"head.bias": ["head.bias", "head.bias"]},
    "the model": {"model": [name for name, _ in Net().named_parameters()]},
}


@pytest.mark.parametrize("where", ["here", "accelerator"])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_pools_every_element_of_a_group_once(groups, where, request):
    if where == "accelerator":
        request.getfixturevalue(where)
    torch.manual_seed(0)
    model = Net().double()
    outputs = model(torch.randn(5, 2, 6, 6, dtype=torch.float64))
    engine = Engine(dict(model.named_parameters()))
    compare_with_numpy(engine, outputs, torch.randn_like(outputs), groups, NAMES, rtol=1e-10, atol=1e-15)


FLOAT32 = {
    "mean far above the deviations": 1000 + 0.01 * torch.randn(3, 40000, generator=torch.Generator().manual_seed(0)),
    "squares below the range": 1e-30 * torch.randn(3, 40000, generator=torch.Generator().manual_seed(0)),
    "squares above the range": 1e30 * torch.randn(3, 40000, generator=torch.Generator().manual_seed(0)),
    "constant": torch.full((3, 40000), 0.1),
    "zero": torch.zeros(3, 40000),
}


@pytest.mark.parametrize("block", FLOAT32.values(), ids=FLOAT32)
def test_keeps_digits_that_float32_would_lose(block):
    assert_numpy(Dense(block), rtol=3e-5, atol=1e-9 * float(block.abs().max()))


def test_non_finite_elements_show():
    block = torch.zeros(2, 40000)
    block[0, 7] = torch.nan
    found = measure(Dense(block), needs(NAMES))
    assert all(np.isnan(evaluate(name, found)).tolist() == [True, False] for name in NAMES)


def test_gradients_that_come_in_parts_are_not_gathered(monkeypatch):
    """Small ones wait for each other, but not for their own other samples: those may be large."""
    sizes = []
    monkeypatch.setattr(plan, "PRODUCT_BUDGET", 1)
    monkeypatch.setattr(
        measuring, "measure_exactly", lambda block, wanted: sizes.append(len(block)) or measure_exactly(block, wanted)
    )
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2, bias=False)).double()
    outputs = model(torch.randn(5, 3).double())
    reduce_gradients(
        Engine(dict(model.named_parameters()), self_check=False), outputs, torch.ones_like(outputs),
        statistics=["mean"], groups={name: [name] for name, _ in model.named_parameters()},
    )  # fmt: skip
    assert sizes == [1] * 10


def test_a_tensor_with_two_names_counts_once_in_a_group():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    inputs = torch.randn(4, 3, dtype=torch.float64)
    outputs = layer(layer(inputs).tanh())
    engine = Engine({"first": layer.weight, "bias": layer.bias, "second": layer.weight})
    groups = {"all": ["first", "bias", "second"], "second": ["second"]}
    found = reduce_gradients(engine, outputs, torch.ones_like(outputs), statistics=["l1"], groups=groups)
    outputs = layer(layer(inputs).tanh())
    reference = reference_gradients(outputs, torch.ones_like(outputs), {"weight": layer.weight, "bias": layer.bias})
    sums = np.array([[float(gradients[name].abs().sum()) for name in ("weight", "bias")] for _, gradients in reference])
    assert found["all/l1"].numpy() == pytest.approx(sums.sum(axis=1))
    assert found["second/l1"].numpy() == pytest.approx(sums[:, 0])


def test_unused_parameters_count_as_zeros():
    model = nn.Linear(3, 2).double()
    parameters = {**dict(model.named_parameters()), "other": nn.Parameter(torch.ones(94).double())}
    outputs = model(torch.ones(2, 3).double())
    with pytest.warns(UserWarning, match="do not depend"):
        found = reduce_gradients(
            Engine(parameters), outputs, torch.ones_like(outputs), statistics=["mean", "min"], groups={"g": parameters}
        )
    assert found["g/mean"].tolist() == pytest.approx([8 / 102, 8 / 102])
    assert found["g/min"].tolist() == [0, 0]


ORDERS = {"l1": 1.0, "l0.5": 0.5, "l10": 10.0, "l2.0": 2.0, "l2": None, "linf": None, "max": None}


@pytest.mark.parametrize(("name", "order"), ORDERS.items(), ids=ORDERS)
def test_reads_the_order_of_a_norm(name, order):
    assert find_statistic(name).order == order


@pytest.mark.parametrize("name", ["l0", "l-1", "median", "l", "lnan", ""])
def test_refuses_unknown_statistics(name):
    with pytest.raises(ConfigError, match="no statistic"):
        find_statistic(name)


BAD_GROUPS = {"unknown": ["nothing"], "empty": []}


@pytest.mark.parametrize("names", BAD_GROUPS.values(), ids=BAD_GROUPS)
def test_refuses_bad_groups(names):
    outputs = nn.Linear(3, 2)(torch.ones(2, 3))
    with pytest.raises(ConfigError, match="group 'g' has"):
        reduce_gradients(Engine({}), outputs, outputs.detach(), statistics=["max"], groups={"g": names})


def in_float32(gradient):
    return Factored(gradient.left.float(), gradient.right.float(), gradient.shape)


def opposite_pairs(gradient, remainder):
    """Outer products that cancel but for a share of them."""
    left, right = gradient.left, gradient.right
    again = torch.cat([left, -left * (1 - remainder)], 3), torch.cat([right, right], 3)
    return Factored(*again, gradient.shape)


def scaled(gradient, left, right):
    return Factored(gradient.left * left, gradient.right * right, gradient.shape)


PLAIN = factored(300, 250, positions=20)
HARD = {
    "nothing special": PLAIN,
    "outer products cancel": opposite_pairs(factored(300, 250, positions=10), 1e-3),
    "one factor too small to square": scaled(PLAIN, 1e-25, 1),
    "one factor small, one large": scaled(PLAIN, 1e-18, 1e18),
    "too large to square": scaled(PLAIN, 1e18, 1e3),
    "all zero": scaled(PLAIN, 0, 1),
}


@pytest.mark.parametrize("gradient", HARD.values(), ids=HARD)
def test_scalar_products_in_float32_keep_their_digits(gradient):
    gradient = in_float32(gradient)
    truth = [np.sqrt((row**2).sum()) for row in gradient_in_float64(gradient)]
    np.testing.assert_allclose(pooled(gradient, "l2"), truth, rtol=1e-5)


def gradient_in_float64(gradient):
    double = Factored(gradient.left.double(), gradient.right.double(), gradient.shape)
    return double.dense(slice(None)).flatten(1).numpy()


def test_scalar_products_take_the_place_of_products_where_they_are_fewer(monkeypatch):
    monkeypatch.setattr(measuring, "_from_sums", None)
    pooled(PLAIN, "l2")


def test_a_statistic_of_squares_does_not_change_with_what_else_is_asked_for(monkeypatch):
    rms = Statistic(summary="root mean square", value=lambda m: m.l2 / m.xp.sqrt(m.count), l2=True)
    monkeypatch.setitem(STATISTICS._entries, "rms", rms)
    values = 3 + torch.randn(4, 50, dtype=torch.float64)
    truth = values.square().mean(1).sqrt().numpy()
    for names in (["rms"], ["rms", "mean"], ["rms", "std"]):
        np.testing.assert_allclose(rms.value(measure(Dense(values), needs(names))), truth, rtol=1e-12)


UNSAID = {"l2": {}, "std": {"l2": True}, "std without a mean": {"mean": True}}


@pytest.mark.parametrize(("name", "said"), UNSAID.items(), ids=UNSAID)
def test_a_statistic_that_does_not_say_what_it_needs_is_stopped(monkeypatch, name, said):
    unsaid = Statistic(summary="unsaid", value=lambda m: getattr(m, name.split()[0]), **said)
    monkeypatch.setitem(STATISTICS._entries, "unsaid", unsaid)
    with pytest.raises(AssertionError, match=f"says {name.split()[0]}=True"):
        unsaid.value(measure(Dense(torch.randn(4, 5)), needs(["unsaid"])))
