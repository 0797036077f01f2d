"""Models and loops that are out of the ordinary: nothing breaks, and nothing is missed in silence."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from gradscore.errors import ConfigError, DataError, EngineError, ModelError
from gradscore.inspect import (
    GradHist1d,
    GradHist2d,
    GradientActivation,
    GradientGeometry,
    InspectionWarning,
    Inspector,
    MeanGSNR,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
    TensorQuantity,
    every,
    examine,
)
from gradscore.inspect.histograms import range_up_to


class Scaled(nn.Module):
    """Has a scalar parameter, as contrastive models have for their logits."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * self.linear(x)


class WithLoss(nn.Module):
    """Computes its own loss, a tensor without axes."""

    def __init__(self):
        super().__init__()
        self.linear, self.criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()

    def forward(self, x):
        return self.criterion(self.linear(x), torch.arange(len(x)) % 3)


class Widths(nn.Module):
    """One ReLU after layers of several widths, and one of the widths twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 6)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.third(self.relu(self.second(self.relu(self.first(x))))))


@pytest.fixture
def inputs():
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def values(quantity, measure="norm"):
    return {layer: each.values for layer, each in quantity.value[measure].items()}


def step_of(parameter, by):
    with torch.no_grad():
        parameter.add_(by)


def test_steps_of_a_parameter_without_axes(inputs):
    model, quantity = Scaled(), ParameterDifferenceGeometry(inplace=False)
    with Inspector(model, [quantity]) as inspector:
        for change in (1.0, 0.5, -0.25):
            model(inputs)
            step_of(model.scale, change)
        inspector.observe_parameters()
    assert values(quantity)["scale"] == [1.0, 0.5, 0.25]
    assert values(quantity, "correlation")["scale"] == [1.0, -1.0]


def test_gradient_at_a_loss_without_axes(inputs):
    model, quantity = WithLoss(), OutputGradientGeometry(inplace=False, per_sample=True)
    with Inspector(model, [quantity]):
        for _ in range(2):
            (3 * model(inputs)).backward()
    assert values(quantity)["criterion"] == [3.0, 3.0]


def test_every_call_of_a_layer_has_figures_of_its_own(inputs):
    model, quantity = Widths(), OutputActivation(inplace=False)
    step_of(model.first.bias, torch.tensor([0.0] * 6 + [-100.0] * 2))
    with Inspector(model, [quantity]):
        model(inputs)
    assert {layer: units for layer, (_, units) in quantity.never_active().items() if "relu" in layer} == {
        "relu": 8,
        "relu#2": 6,
        "relu#3": 6,
    }
    assert quantity.never_active()["relu"][0] >= 2


def test_units_of_several_widths_are_kept_apart():
    quantity = OutputActivation()
    for width in (2, 3):
        quantity.observe("layer", nn.ReLU(), torch.tensor([[0.0, 1.0, 0.0][:width]]))
    assert quantity.never_active() == {"layer (2 wide)": (1, 2), "layer (3 wide)": (2, 3)}


def test_a_layer_is_compared_with_the_batch_before_and_not_with_its_other_call(inputs):
    model, quantity = Widths(), OutputGradientGeometry(skip_activation=False, inplace=False)
    with Inspector(model, [quantity]):
        model(inputs).square().sum().backward()
        assert "correlation" not in quantity.value
        model(inputs).square().sum().backward()
    found = values(quantity, "correlation")
    assert {layer: found[layer] for layer in ("relu", "relu#2", "relu#3")} == {
        layer: pytest.approx([1.0]) for layer in ("relu", "relu#2", "relu#3")
    }


def test_the_table_is_in_the_order_of_the_model(inputs):
    model = Widths()
    with Inspector(model, [OutputGradientGeometry(skip_activation=False), GradientGeometry()]) as inspector:
        model(inputs).sum().backward()
        inspector.tick_epoch()
    layers = inspector.table().groupby("quantity", sort=False)["layer"].unique()
    assert list(layers["output gradient"]) == ["first", "second", "third", "relu", "relu#2", "relu#3"]
    assert list(layers["parameter gradient"]) == [*(name for name, _ in model.named_parameters()), "(model)"]


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"gradscore" not in buffer.getvalue()
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deep copy": copy.deepcopy,
    "saved and loaded": saved,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_a_watched_model_are_not_watched(inputs, copied):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    quantities = [OutputNorm(inplace=False), GradientGeometry(inplace=False), OutputGradientGeometry(inplace=False)]
    with Inspector(model, quantities) as inspector:
        other = copied(model)
        other(inputs).sum().backward()
        assert (inspector.step, *(quantity.value for quantity in quantities)) == (-1, {}, {}, {})
        assert torch.equal(other(inputs), model(inputs))
    assert inspector.step == 0
    assert b"gradscore" not in repr(other.state_dict()).encode()


COMPILED, SCRIPT = "compiled modules do not run hooks that come later", "0 is TorchScript, whose layers take no hooks"
WITHOUT_HOOKS = {
    "compiled in part": (lambda net: nn.Sequential(torch.compile(net, backend="eager"), nn.ReLU()), COMPILED),
    "compiled in place": (lambda net: (net.compile(backend="eager"), net)[1], COMPILED),
    "a script": (lambda net: nn.Sequential(torch.jit.trace(net, torch.ones(6, 4))), SCRIPT),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(("change", "message"), WITHOUT_HOOKS.values(), ids=WITHOUT_HOOKS)
def test_modules_that_take_no_hooks_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        Inspector(change(nn.Linear(4, 3)), [OutputNorm()]).attach()


def test_says_when_another_model_than_the_watched_one_was_run(inputs):
    model = nn.Linear(4, 3)
    with Inspector(model, [OutputNorm(), GradientGeometry()]) as inspector:
        F.linear(inputs, model.weight).sum()
        with pytest.warns(InspectionWarning, match=r"output, parameter gradient: nothing was seen.*torch\.compile"):
            inspector.tick_epoch()
        model(inputs).sum().backward()
        inspector.tick_epoch()


def test_says_when_gradients_of_single_samples_are_not_asked_for(inputs):
    model = nn.Linear(4, 3)
    with Inspector(model, [MeanGSNR(), GradHist1d()]) as inspector:
        model(inputs).sum().backward()
        with pytest.warns(InspectionWarning, match=r"gradient histogram: nothing was seen.*inspector\.backward"):
            inspector.tick_epoch()


def test_batches_after_which_the_optimizer_waits_are_no_steps(inputs):
    model, quantity = nn.Linear(4, 3), ParameterDifferenceGeometry(inplace=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Inspector(model, [quantity]) as inspector:
        for batch in range(6):
            model(inputs).square().sum().backward()
            if batch % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        inspector.observe_parameters()
    assert len(values(quantity)["weight"]) == 2
    assert min(values(quantity)["weight"]) > 0


def test_steps_of_an_optimizer_that_writes_past_autograd_are_seen(inputs):
    model, quantity = nn.Linear(4, 3), ParameterDifferenceGeometry(inplace=False)
    with Inspector(model, [quantity]) as inspector:
        for _ in range(2):
            model(inputs)
            model.bias.data.add_(2.0)
        inspector.observe_parameters()
    assert values(quantity)["bias"] == pytest.approx([12**0.5] * 2)
    assert values(quantity)["weight"] == [0.0, 0.0]


def test_a_pass_in_between_is_no_step_when_paused(inputs):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    labels = torch.arange(6) % 3
    outputs, samples = OutputNorm(inplace=False), MeanGSNR()
    with Inspector(model, [outputs, samples]) as inspector:
        for _ in range(3):
            with inspector.paused():
                losses = F.cross_entropy(model.eval()(inputs), labels, reduction="none")
            inspector.observe_losses(losses)
            F.cross_entropy(model.train()(inputs), labels).backward()
    assert inspector.step == 2
    assert len(values(outputs)["1"]) == 3
    assert samples.moments["0.weight"].count == 18


def test_sparse_gradients():
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Flatten(), nn.Linear(4, 3))
    geometry, activation = GradientGeometry(inplace=False), GradientActivation(inplace=False)
    samples = MeanGSNR()
    with Inspector(model, [geometry, activation, samples]) as inspector:
        for _ in range(2):
            losses = model(torch.tensor([[0, 1], [1, 2]])).sum(1)
            inspector.observe_losses(losses)
            losses.sum().backward()
    dense = model[0].weight.grad.to_dense() / 2
    assert values(geometry)["0.weight"] == pytest.approx([float(dense.norm())] * 2)
    assert values(geometry, "correlation")["0.weight"] == pytest.approx([1.0])
    assert values(activation, "death rate")["0.weight"] == pytest.approx([0.4] * 2)
    assert samples.moments["0.weight"].count == 4


def test_parameters_that_are_unfrozen_later(inputs):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    geometry, samples = GradientGeometry(inplace=False), MeanGSNR()
    with Inspector(model, [geometry, samples]) as inspector:
        for _ in range(2):
            losses = model(inputs).square().sum(1)
            inspector.backward(losses)
            model[0].requires_grad_(True)
    assert {name: len(found) for name, found in values(geometry).items()} == {
        "1.weight": 2,
        "1.bias": 2,
        "0.weight": 1,
        "0.bias": 1,
        "(model)": 1,
    }
    assert samples.moments["0.weight"].count == 6
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


WIDTHS = {"1e-300": 0.0, "1e-40": 1e-42, "4e38": 2e38}


@pytest.mark.parametrize("largest", WIDTHS.values(), ids=WIDTHS)
def test_ranges_that_float32_has_no_numbers_for(largest):
    low, high = range_up_to(largest, 1e-300)
    histogram = GradHist1d(bins=3, span=(low, high)).model
    histogram.add(torch.tensor([[largest, -largest, 0.0]]))
    middle = 3 if largest == 0 else 1
    assert histogram.counts.tolist() == [(3 - middle) // 2, middle, (3 - middle) // 2]


def test_parameters_without_a_gradient_are_counted_where_zero_lies(inputs):
    model, quantity = nn.Linear(4, 3), GradHist2d(bins=(5, 5), adapt=(1e-300, 1e-300))
    with Inspector(model, [quantity]) as inspector:
        for _ in range(2):
            inspector.observe_losses(0.0 * model(inputs).sum(1))
            counts = quantity.model.counts.sum(1)
            quantity.reset()
    assert counts.tolist() == [0, 0, 6 * 15, 0, 0]


class Nameless(TensorQuantity):
    def observe(self, name, tensor):
        del name, tensor


REFUSED = {
    "health": (lambda: Inspector(nn.Linear(2, 2), [], health=5), r"health: wanted .*, got 5 \(int\)"),
    "optimizer": (lambda: Inspector(nn.Linear(2, 2), [], optimizer="sgd"), "wanted one with param_groups, got str"),
    "no module": (lambda: Inspector("net", []), "model: wanted .*, got 'net'"),
    "one quantity": (
        lambda: Inspector(nn.Linear(2, 2), OutputNorm()),
        "quantities: wanted a list of .*, got .*OutputNorm",
    ),
    "a class": (lambda: Inspector(nn.Linear(2, 2), [OutputNorm]), "quantities: wanted a list of .*, got .*OutputNorm"),
    "no number": (lambda: Inspector(nn.Linear(2, 2), []).push(loss="low"), "'loss': wanted one number, got 'low'"),
    "numbers": (lambda: Inspector(nn.Linear(2, 2), []).push(loss=torch.ones(3)), r"got a tensor of shape \(3,\)"),
    "its own file": (lambda: Inspector(nn.Linear(2, 2), []).report("run.parquet"), "end its own name with .html"),
    "reduction": (lambda: OutputGradientGeometry(reduction="none"), "reduction 'mean' or 'sum', got 'none'"),
    "eps": (lambda: GradientActivation(eps=-1), "eps is a magnitude, 0 or more, got -1"),
    "schedule": (lambda: OutputNorm(schedule=5), "a schedule is a function of the step, got 5"),
    "no line": (lambda: OutputNorm(line_aggregation=()), "names no statistic"),
    "no name": (Nameless, "Nameless has no name"),
    "one quantity for two": (
        lambda: (shared := [OutputNorm()], [Inspector(nn.Linear(2, 2), shared).attach() for _ in range(2)]),
        "another inspector that is attached feeds output: make quantities for each inspector",
    ),
    "attached twice": (lambda: Inspector(nn.Linear(2, 2), []).attach().attach(), "attached already"),
    "two of a name": (
        lambda: Inspector(nn.Linear(2, 2), [OutputNorm(), OutputNorm()]),
        "two quantities of the same name, 'output': derive",
    ),
    "no such layer": (lambda: Inspector(nn.Linear(2, 2), [], layers=["con"]), "'con' matches no layer"),
    "no such parameter": (lambda: Inspector(nn.Linear(2, 2), [], parameters=["x"]), "'x' matches no parameter"),
    "no health": (lambda: Inspector(nn.Linear(2, 2), []).findings(), "health="),
    "no width": (lambda: GradHist1d(span=(-1.7e308, 1.7e308)), "finite range"),
    "steps": (lambda: every(0), "positive number of steps"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises((ConfigError, ModelError), match=message):
        make()


def test_gradient_at_a_view_that_is_changed_in_place():
    found = {}
    images = torch.randn(3, 1, 4, 4)
    convolution, linear = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)
    for inplace in (False, True):
        model = nn.Sequential(convolution, nn.Flatten(), nn.ReLU(inplace=inplace), linear)
        quantity = OutputGradientGeometry(skip_activation=False, inplace=False)
        with Inspector(model, [quantity]):
            for _ in range(2):
                model(images).square().sum().backward()
        found[inplace] = values(quantity)
    assert found[True] == found[False]
    assert found[True].keys() == {"0", "1", "2", "3"}


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.head, self.reentrant = nn.Linear(4, 3), reentrant

    def forward(self, x):
        if self.reentrant is None:
            return self.head(self.block(x))
        return self.head(checkpoint(self.block, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("record_eval", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_counts_once(inputs, reentrant, record_eval):
    found = []
    for way in (None, reentrant):
        torch.manual_seed(0)
        model = Checkpointed(way)
        quantities = [
            OutputNorm(inplace=False, record_eval=record_eval),
            OutputGradientGeometry(inplace=False, skip_activation=False),
        ]
        with Inspector(model, quantities) as inspector:
            for _ in range(2):
                model(inputs.clone().requires_grad_()).square().sum().backward()
        found.append([inspector.step, *map(values, quantities)])
    assert found[1] == found[0]


def test_gradient_norm_of_the_whole_model(inputs):
    model, quantity = Scaled(), GradientGeometry(inplace=False)
    with Inspector(model, [quantity]) as inspector:
        truth = []
        for factor in (1.0, 3.0):
            model.zero_grad()
            (factor * model(inputs)).square().sum().backward()
            truth.append(torch.cat([each.grad.double().flatten() for each in model.parameters()]).norm().item())
        inspector.finish_step()
    assert values(quantity)["(model)"] == pytest.approx(truth, rel=1e-6)


def test_step_of_the_whole_model_relative_to_its_weights(inputs):
    model, quantity = Scaled(), ParameterDifferenceGeometry(inplace=False)
    with Inspector(model, [quantity]) as inspector:
        before = torch.cat([each.detach().double().flatten() for each in model.parameters()])
        model(inputs)
        step_of(model.linear.weight, 0.5)
        step_of(model.scale, 1.0)
        inspector.observe_parameters()
    norm = (12 * 0.25 + 1) ** 0.5
    assert values(quantity)["(model)"] == pytest.approx([norm])
    assert values(quantity, "size relative to the weights")["(model)"] == pytest.approx([norm / float(before.norm())])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.start, self.head = nn.Parameter(torch.ones(8)), nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x + self.start)
        return self.head(x.mean(1))


CHOSEN = {
    "by name": ({"layers": ["blocks.1", "head", "blocks.0.self_attn"]}, ["blocks.0.self_attn", "blocks.1", "head"]),
    "a name and a pattern": ({"layers": ["blocks.1", "*.linear?"]}, ["blocks.0.linear1", "blocks.0.linear2",
                             "blocks.1", "blocks.1.linear1", "blocks.1.linear2"]),
}  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), CHOSEN.values(), ids=CHOSEN)
def test_blocks_can_be_watched(options, expected):
    assert list(Inspector(Attending(), [], **options).layers) == expected


def test_parameters_of_modules_with_layers_within_are_part_of_the_norms():
    model, quantity = Attending(), ParameterNorm(inplace=False)
    with Inspector(model, [quantity]) as inspector:
        inspector.observe_modules()
    attention = model.blocks[0].self_attn
    norm = float(attention.in_proj_weight.detach().norm())
    assert values(quantity, "in_proj_weight norm")["blocks.0.self_attn"] == pytest.approx([norm])
    assert values(quantity, "start norm")["(model)"] == pytest.approx([8**0.5])


class Fourier(nn.Module):
    """Has a layer that returns complex numbers, and a complex parameter."""

    def __init__(self):
        super().__init__()
        self.linear, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        self.transform = nn.Identity()

    def forward(self, x):
        return (self.transform(torch.fft.fft(self.linear(x))) @ self.weight).abs()


def test_complex_numbers(inputs):
    model = Fourier()
    outputs, gradients = OutputNorm(inplace=False), GradientGeometry(inplace=False)
    others = [OutputActivation(), GradientActivation(), OutputGradientGeometry(), ParameterDifferenceGeometry()]
    truth = []
    with Inspector(model, [outputs, gradients, ParameterNorm(), *others], health=every(1)) as inspector:
        for factor in (1.0, 2.0):
            model.zero_grad()
            (factor * model(inputs)).square().sum().backward()
            truth.append(np.linalg.norm(model.weight.grad.numpy()))
        inspector.tick_epoch()
        assert inspector.findings() == []
    table = inspector.table().set_index(["quantity", "measure", "layer", "statistic"])["value"]
    norms = np.linalg.norm(torch.fft.fft(model.linear(inputs)).detach().numpy(), axis=1)
    assert table["output", "norm", "transform", "mean"] == pytest.approx(norms.mean(), rel=1e-6)
    assert table["parameter gradient", "norm", "weight", "max"] == pytest.approx(max(truth), rel=1e-6)
    assert table["parameter gradient", "correlation", "weight", "mean"] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [GradHist1d, MeanGSNR])
def test_single_samples_and_complex_parameters(inputs, kind):
    with Inspector(Fourier(), [kind()]) as inspector, pytest.raises(EngineError, match="weight is complex"):
        inspector.backward(inspector.model(inputs).square().sum(1))


def seen_of(model, inputs, *, under_vmap):
    with Inspector(model, [OutputNorm(), OutputGradientGeometry()], health=every(1)) as inspector:
        outputs = torch.func.vmap(model)(inputs) if under_vmap else model(inputs)
        F.cross_entropy(model(inputs), torch.arange(6) % 3).backward()
        inspector.tick_epoch()
    return outputs, inspector.table()


def test_calls_under_vmap_are_not_looked_at():
    model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(6, 4)
    outputs, seen = seen_of(model, inputs, under_vmap=True)
    wanted, _ = seen_of(model, inputs, under_vmap=False)
    torch.testing.assert_close(outputs, wanted)
    assert set(seen["layer"]) >= {"0", "1", "2"}
    assert not any("#" in layer for layer in seen["layer"])


NO_BATCHES = {
    "a loader": (DataLoader(TensorDataset(torch.zeros(4, 3)), batch_size=2), "got DataLoader"),
    "samples with labels": ([(torch.zeros(4, 3), torch.zeros(4))], "got list with tuple"),
    "none": ([], "got empty list"),
    "one batch by itself": (torch.zeros(4, 3), "got Tensor"),
}


@pytest.mark.parametrize(("batches", "got"), NO_BATCHES.values(), ids=NO_BATCHES)
def test_what_is_no_list_of_batches(batches, got: str) -> None:
    with pytest.raises(DataError, match=rf"batches: wanted a list of tensors of samples.*; {got}$"):
        examine(nn.Linear(3, 2).eval(), batches)


@pytest.mark.parametrize("bias", [0.0, -1e-3])
def test_units_of_zeros_are_dead(bias: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
    with torch.no_grad():
        model[0].weight[:40], model[0].bias[:40] = 0, bias
    (found,) = examine(model, [torch.randn(256, 8)])
    assert found.layer == "0"
    assert "40 of 64" in found.sentence


def test_units_are_dead_though_the_few_others_are_never_off() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval(), torch.randn(256, 64)
    with torch.no_grad():
        outputs = model[0](x)
        side = torch.where(torch.arange(128) < 4, 4.5, -4.5)
        model[0].bias += side * outputs.std(0) - outputs.mean(0)
    hidden = model[0](x)
    (gradient,) = torch.autograd.grad(model[1:](hidden).log_softmax(1).mean(1).sum(), [hidden])
    dead = int((gradient == 0).all(0).sum())
    assert dead > 120
    (found,) = examine(model, [x])
    assert found.layer == "0"
    assert f"{dead} of 128 units get no gradient" in found.sentence


def test_no_unit_is_dead_where_samples_hardly_differ() -> None:
    """Half of the units are off for all of them."""
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(128, 10)).eval()
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.normal_(std=(2 / 128) ** 0.5)
    assert not [each for each in examine(model, [torch.rand(256, 128)]) if each.kind.startswith("dead")]


def test_two_quantities_of_a_kind_by_the_advice():
    class Second(OutputNorm):
        name = "second"

    model = nn.Linear(2, 2)
    with Inspector(model, [OutputNorm(), Second()]) as inspector:
        model(torch.ones(1, 2)).sum().backward()
    assert {each.quantity for each in inspector.record().steps.itertuples()} == {"output", "second"}
