"""Quantities over per-sample gradients, against NumPy on gradients from the reference."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscore import Engine
from gradscore.errors import ConfigError
from gradscore.gradients import reference_gradients
from gradscore.gradients.per_sample import Dense, TableRows
from gradscore.inspect import GradHist1d, GradHist2d, MeanGSNR
from gradscore.inspect.quantity import merge_found
from gradscore.inspect.sample_gradients import aligned_blocks, feeding

MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.Tanh(), nn.Linear(9, 4)),
    "dead units": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.ReLU(), nn.Linear(9, 4)),
    "convolution": lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(20, 4)),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().double()


def losses_of(model, start, stop):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(24, 3, 4, 4, dtype=torch.float64, generator=generator)[start:stop]
    return F.cross_entropy(model(images), torch.arange(24)[start:stop] % 4, reduction="none")


def feed(model, *quantities, batches=((0, 24),)):
    engine = Engine(dict(model.named_parameters()))
    for batch in batches:
        losses = losses_of(model, *batch)
        with feeding(quantities, engine.parameters, len(losses)) as sink:
            engine.stream(losses, torch.ones_like(losses), sink)
    return quantities[0]


def truth(model, start=0, stop=24):
    """Exact per-sample gradients, (N, elements) by parameter."""
    losses = losses_of(model, start, stop)
    found = reference_gradients(losses, torch.ones_like(losses), dict(model.named_parameters()))
    rows = [{name: gradient.flatten().numpy() for name, gradient in gradients.items()} for _, gradients in found]
    return {name: np.stack([row[name] for row in rows]) for name, _ in model.named_parameters()}


def binned(values, bins, low, high):
    """Indices as documented: floor((v - low) / (high - low) * bins), the outermost bins take what lies beyond."""
    return np.clip(np.floor((np.asarray(values) - low) / (high - low) * bins), 0, bins - 1).astype(int)


def counted(values, bins, low, high):
    return np.bincount(binned(values, bins, low, high).ravel(), minlength=bins)


BATCHES = {
    "one batch": [(0, 24)],
    "ragged batches": [(0, 10), (10, 20), (20, 24)],
    "one by one": [(i, i + 1) for i in range(24)],
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_histogram_of_every_parameter(model, batches):
    quantity = feed(model, GradHist1d(bins=21, span=(-0.3, 0.2)), batches=batches)
    expected = {name: counted(values, 21, -0.3, 0.2).tolist() for name, values in truth(model).items()}
    assert {name: each.counts.tolist() for name, each in quantity.histograms.items()} == expected
    assert quantity.model.counts.tolist() == np.sum(list(expected.values()), axis=0).tolist()
    assert quantity.model.counts.dtype == torch.int64


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_histogram_against_parameters(model, batches):
    quantity = feed(model, GradHist2d(bins=(8, 6), spans=((-0.3, 0.2), (-0.2, 0.1))), batches=batches)
    parameters = {name: each.detach().numpy().ravel() for name, each in model.named_parameters()}
    expected = np.zeros(48, dtype=np.int64)
    for name, values in truth(model).items():
        places = binned(values, 8, -0.3, 0.2) * 6 + binned(parameters[name], 6, -0.2, 0.1)
        expected += np.bincount(places.ravel(), minlength=48)
    assert quantity.model.counts.tolist() == expected.reshape(8, 6).tolist()


def test_range_follows_the_gradients_in_the_next_period(model):
    quantity = feed(model, GradHist1d(bins=10, adapt=1e-6))
    assert quantity.spans == ((-2.0, 2.0),)
    quantity.reset()
    largest = max(np.abs(values).max() for values in truth(model).values())
    assert quantity.spans[0] == pytest.approx((-largest, largest))
    assert quantity.histograms == {}


def test_range_of_every_parameter(model):
    quantity = feed(model, GradHist1d(bins=10, adapt=1e-6, per_parameter=True))
    quantity.reset()
    feed(model, quantity)
    largest = {name: np.abs(values).max() for name, values in truth(model).items()}
    assert {name: each.ranges[0][1] for name, each in quantity.histograms.items()} == pytest.approx(largest)
    with pytest.raises(ConfigError, match="different bins cannot be merged"):
        _ = quantity.model


def test_each_axis_adapts_on_its_own(model):
    quantity = feed(model, GradHist2d(adapt=(None, 1e-6)))
    quantity.reset()
    largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    assert quantity.spans[0] == (-1.0, 1.0)
    assert quantity.spans[1] == pytest.approx((-largest, largest))


@pytest.mark.slow
def test_values_that_are_not_finite_are_counted_apart():
    quantity = GradHist1d(bins=4, span=(-1.0, 1.0), adapt=1e-6)
    values = torch.tensor([[np.nan, np.inf, -np.inf, 0.5], [0.0, -5.0, 5.0, 1.0]])
    quantity.observe("p", torch.zeros(4), Dense(values))
    assert quantity.model.counts.tolist() == [1, 0, 1, 3]
    assert quantity.model.non_finite == 3
    quantity.reset()
    assert quantity.spans == ((-5.0, 5.0),)


def test_rows_of_a_table_that_no_sample_uses_are_zeros():
    quantity = GradHist1d(bins=2, span=(-1.0, 1.0))
    table = TableRows(torch.tensor([[1], [4]]), torch.tensor([[[-0.5, 0.5]], [[-0.5, -0.5]]]), 6, (6, 2))
    quantity.observe("embedding", torch.zeros(6, 2), table)
    assert quantity.model.counts.tolist() == [3, 21]


def test_counts_beyond_what_single_precision_holds():
    quantity = GradHist1d(bins=3, span=(-1.0, 1.0))
    quantity.observe(
        "p", torch.zeros(1), TableRows(torch.tensor([[0]]), torch.zeros(1, 1, 1), 50_331_649, (50_331_649, 1))
    )
    assert quantity.model.counts.tolist() == [0, 50_331_649, 0]


UNUSABLE = {
    "no bins": (lambda: GradHist1d(bins=0), "at least one bin"),
    "empty range": (lambda: GradHist1d(span=(1.0, 1.0)), "from low to high"),
    "range that is not finite": (lambda: GradHist1d(span=(0.0, np.nan)), "finite range"),
    "epsilon": (lambda: MeanGSNR(epsilon=0.0), "epsilon must be above 0"),
}


@pytest.mark.parametrize(("make", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_settings(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def ratios(values, epsilon, relative):
    signal = values.mean(0) ** 2
    noise = values.var(0) + epsilon * (signal if relative else 1)
    return np.divide(signal, noise, out=np.zeros_like(signal), where=noise > 0)


@pytest.mark.slow
@pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_signal_to_noise_over_a_data_set(model, batches, relative):
    quantity = feed(model, MeanGSNR(epsilon=1e-3, relative=relative), batches=batches)
    expected = {name: ratios(values, 1e-3, relative) for name, values in truth(model).items()}
    found = {name: quantity.ratios(name).numpy() for name in expected}
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-15)
    means = {name: each.mean() for name, each in expected.items()}
    assert quantity.over_data_set() == pytest.approx(
        {**means, "(model)": np.concatenate(list(expected.values())).mean()}
    )


class Expert(nn.Module):
    """Two layers, the second of which runs only for samples that ask for it, if there is one; a third never runs."""

    def __init__(self):
        super().__init__()
        self.all, self.some, self.none = (nn.Linear(4, 3) for _ in range(3))

    def forward(self, inputs):
        chosen = (inputs[:, 0] > 0).nonzero().flatten()
        found = self.all(inputs)
        return found.index_add(0, chosen, self.some(inputs[chosen])) if len(chosen) else found


@pytest.mark.filterwarnings("ignore::gradscore.gradients.engine.GradientWarning")
@pytest.mark.parametrize("size", [12, 6, 3])
@pytest.mark.parametrize("does_run", ["first", "last"])
def test_samples_that_do_not_reach_a_parameter_have_no_gradient_whatever_the_batches(size, does_run):
    torch.manual_seed(0)
    model, inputs = Expert().double(), torch.randn(12, 4, dtype=torch.float64)
    inputs[:, 0] = inputs[:, 0].abs() * (torch.arange(12) < 6) - inputs[:, 0].abs() * (torch.arange(12) >= 6)
    inputs = inputs if does_run == "first" else inputs.flip(0)
    quantity, engine = MeanGSNR(relative=False, epsilon=1e-9), Engine(dict(model.named_parameters()))
    rows = []
    for part in range(0, 12, size):
        losses = F.cross_entropy(
            model(inputs[part : part + size]), torch.arange(part, part + size) % 3, reduction="none"
        )
        for loss in losses:
            each = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
            rows.append(
                [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), each, strict=True)]
            )
        with feeding([quantity], engine.parameters, len(losses)) as sink:
            engine.stream(losses, torch.ones_like(losses), sink)
    found, ratios = quantity.over_data_set(), []
    for (name, _), values in zip(model.named_parameters(), zip(*rows, strict=True), strict=True):
        samples = torch.stack(values).flatten(1).numpy()
        if name.startswith("none"):
            assert name not in found
            continue
        ratios.append(samples.mean(axis=0) ** 2 / (samples.var(axis=0) + 1e-9))
        assert found[name] == pytest.approx(ratios[-1].mean(), rel=1e-9)
    assert found["(model)"] == pytest.approx(np.concatenate(ratios).mean(), rel=1e-9)


def test_signal_to_noise_of_batches(model):
    quantity = feed(model, MeanGSNR(inplace=False), batches=[(0, 10), (10, 24)])
    expected = [
        np.concatenate([ratios(values, 1e-5, True) for values in truth(model, *batch).values()]).mean()
        for batch in [(0, 10), (10, 24)]
    ]
    assert quantity.value["batch"]["(model)"].values == pytest.approx(expected)


def test_one_sample_has_no_signal_to_noise(model):
    quantity = feed(model, MeanGSNR(), batches=[(0, 1)])
    assert np.isnan(list(quantity.over_data_set().values())).all()
    assert quantity.value["batch"]["(model)"].non_finite == 1


@pytest.mark.slow
def test_signal_to_noise_of_tiny_gradients_does_not_depend_on_their_size():
    values = torch.tensor([[1e-4, 3.0], [3e-4, 5.0]])
    quantity = MeanGSNR(epsilon=1e-9)
    quantity.start(2)
    quantity.observe("p", torch.zeros(2), Dense(values))
    quantity.finish()
    assert quantity.ratios("p").tolist() == pytest.approx([4.0, 16.0], rel=1e-5)


def test_signal_to_noise_of_gradients_that_nearly_agree_is_not_negative():
    values = 900 + 3e-4 * torch.randn(64, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    quantity = MeanGSNR(epsilon=1e-20)
    for rows in (slice(0, 30), slice(30, 64)):
        quantity.start(34)
        quantity.observe("p", torch.zeros(500), Dense(values[rows]))
        quantity.finish()
    found = quantity.ratios("p").numpy()
    np.testing.assert_allclose(found, values.mean(0) ** 2 / values.var(0, correction=0), rtol=1e-4)
    single = MeanGSNR(epsilon=1e-20)
    single.start(64)
    single.observe("p", torch.zeros(500), Dense(values.float()))
    assert (single._batch["p"].squares >= 0).all()


QUANTITIES = {
    "histogram": lambda: GradHist1d(bins=7, span=(-0.1, 0.1)),
    "against parameters": lambda: GradHist2d(bins=(4, 3)),
    "signal to noise": MeanGSNR,
}


@pytest.mark.parametrize("make", QUANTITIES.values(), ids=QUANTITIES)
def test_merging_is_the_same_as_seeing_everything(model, make):
    whole = feed(model, make(), batches=[(0, 10), (10, 24)])
    one, other = feed(model, make(), batches=[(0, 10)]), feed(model, make(), batches=[(10, 24)])
    merge_found(one.mergeable(), other.mergeable())
    rows = {(row.measure, row.layer, row.statistic): row.value for row in whole.summary()}
    merged = {(row.measure, row.layer, row.statistic): row.value for row in one.summary()}
    assert merged == pytest.approx(rows, nan_ok=True)


CONVOLUTIONS = {
    "many positions": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "few positions": lambda: nn.Conv2d(3, 4, (3, 2), stride=3),
    "groups": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "one axis": lambda: nn.Conv1d(3, 4, 3),
    "dilated": lambda: nn.Conv2d(3, 4, 3, dilation=2, padding=2),
}


@pytest.fixture(params=CONVOLUTIONS)
def convolved(request):
    """A single-precision gradient of a convolution's weights as the engine gives it, and the same written out."""
    torch.manual_seed(0)
    layer = CONVOLUTIONS[request.param]()
    images = torch.randn(5, layer.in_channels, *[12] * len(layer.kernel_size))
    outputs = layer(images).square().flatten(1).sum(1)
    found = []
    engine = Engine({"weight": layer.weight})
    engine.stream(outputs, torch.ones(5), lambda name, rows, gradient: found.append(gradient), retain_graph=True)
    written = reference_gradients(outputs, torch.ones(5), {"weight": layer.weight})
    return layer.weight, found[0], torch.stack([each["weight"].flatten() for _, each in written]).numpy()


@pytest.mark.parametrize("budget", [1, 100, 1 << 20])
def test_blocks_are_aligned_with_the_parameter(convolved, budget):
    _, gradient, expected = convolved
    parts = {}
    for block in aligned_blocks(gradient, budget):
        parts.setdefault(block.part, []).append((block.entries, block.values.clone()))
    columns = [(entries[0][0], torch.cat([values for _, values in entries])) for entries in parts.values()]
    found = np.zeros_like(expected)
    for entries, values in columns:
        found[:, slice(None) if entries is None else entries.numpy()] = values.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_signal_to_noise_of_convolutions(convolved):
    weight, gradient, expected = convolved
    quantity = MeanGSNR()
    quantity.start(5)
    quantity.observe("weight", weight, gradient)
    quantity.finish()
    np.testing.assert_allclose(
        quantity.ratios("weight"), ratios(expected.astype(float), 1e-5, True), rtol=1e-3, atol=1e-4
    )
