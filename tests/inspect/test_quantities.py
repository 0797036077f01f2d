"""Quantities that hooks feed, against NumPy and numbers worked by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from gradscore import inspect
from gradscore.errors import ConfigError
from gradscore.gradients.per_sample import Dense
from gradscore.inspect import (
    ExplicitCall,
    GradientActivation,
    GradientGeometry,
    LossModule,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
)
from gradscore.inspect.layer_quantities import precise_norm
from gradscore.inspect.quantity import Quantity, Running, band_of, merge_found

LAYER = nn.Linear(1, 1)
VALUES = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0]


def filled(values, *, keeps=False):
    aggregate = Running(keeps=keeps)
    for value in values:
        aggregate.add(value)
    return aggregate


def listed(quantity, measure, layer="layer"):
    return quantity.value[measure][layer].values


EXPECTED = {
    "mean": np.mean(VALUES), "std": np.std(VALUES), "min": -5.0, "max": 9.0,
    "median": 2.0, "Q1": np.quantile(VALUES, 0.25), "Q3": np.quantile(VALUES, 0.75),
    "IQR": np.quantile(VALUES, 0.75) - np.quantile(VALUES, 0.25),
}  # fmt: skip
BANDS = {
    "std": (np.mean(VALUES) - np.std(VALUES), np.mean(VALUES) + np.std(VALUES)),
    "min-max": (-5.0, 9.0),
    "Q1-Q3": (np.quantile(VALUES, 0.25), np.quantile(VALUES, 0.75)),
}


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("cut", [0, 3, len(VALUES)])
def test_statistics(keeps, cut):
    one, other = filled(VALUES[:cut], keeps=keeps), filled(VALUES[cut:], keeps=keeps)
    one.merge(other)
    figures = one.figures()
    assert figures == pytest.approx(EXPECTED if keeps else {name: EXPECTED[name] for name in figures})
    assert one.count == 7
    assert {name: band for name in BANDS if (band := band_of(figures, name)) is not None} == {
        name: pytest.approx(band) for name, band in BANDS.items() if keeps or name != "Q1-Q3"
    }


@pytest.mark.parametrize("keeps", [False, True])
def test_values_that_are_not_finite_are_counted_apart(keeps):
    aggregate = filled([np.nan, 1.0, np.inf, 3.0], keeps=keeps)
    assert (aggregate.count, aggregate.non_finite, aggregate.figures()["mean"]) == (2, 2, 2.0)
    assert np.isnan([*filled([np.nan], keeps=keeps).figures().values()]).all()


def test_variance_of_large_values_that_nearly_agree():
    assert filled([1e9, 1e9 + 1, 1e9 + 2]).figures()["std"] == pytest.approx(np.sqrt(2 / 3))


REFUSED = {
    "unknown statistic": ({"line_aggregation": "mode"}, "no statistic 'mode'; there are mean, std"),
    "unknown range": ({"range_aggregation": "all"}, "no range 'all'; there are std"),
    "median in place": ({"line_aggregation": ["mean", "median"]}, "'median' needs the values themselves"),
    "quartiles in place": ({"range_aggregation": "Q1-Q3"}, "set inplace=False"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_aggregations_are_checked_when_a_quantity_is_made(options, message):
    with pytest.raises(ConfigError, match=message):
        OutputNorm(**options)


SHOWN = torch.tensor([[3.0, -4.0]])


def show_samples(quantity):
    quantity.start(2)
    quantity.observe("p", torch.zeros(1), Dense(torch.tensor([[1.0], [3.0]])))
    quantity.finish()


def show_step(quantity):
    quantity.observe("p", torch.zeros(2))
    quantity.observe("p", SHOWN[0])


BY_HAND = {
    "ExplicitCall": (lambda each: each.push("loss", 3.0), "loss", 3.0),
    "GradHist1d": (show_samples, "gradients", 3.0),
    "GradHist2d": (show_samples, "gradients", 3.0),
    "GradientActivation": (lambda each: each.observe("p", SHOWN.relu()), "activation rate", 0.5),
    "GradientGeometry": (lambda each: each.observe("p", SHOWN), "norm", 5.0),
    "LossModule": (lambda each: each.observe("loss", nn.MSELoss(), torch.tensor(3.0)), "training loss", 3.0),
    "MeanGSNR": (show_samples, "batch", 2.0**2 / 1.0),
    "OutputActivation": (lambda each: each.observe("layer", nn.ReLU(), SHOWN.relu()), "activation rate", 0.5),
    "OutputGradientGeometry": (lambda each: each.observe("layer", LAYER, SHOWN), "norm", 5.0),
    "OutputNorm": (lambda each: each.observe("layer", LAYER, SHOWN), "norm", 5.0),
    "ParameterDifferenceGeometry": (show_step, "norm", 5.0),
    "ParameterNorm": (lambda each: each.observe("layer", nn.BatchNorm1d(4)), "weight norm", 2.0),
}
"""What a quantity is shown, and what one of its measures has to be then."""

EXPORTED = [name for name, each in vars(inspect).items() if isinstance(each, type) and issubclass(each, Quantity)]


@pytest.mark.parametrize("name", [name for name in EXPORTED if hasattr(getattr(inspect, name), "name")])
def test_every_exported_quantity_has_a_number_worked_by_hand(name):
    show, measure, expected = BY_HAND[name]
    quantity = getattr(inspect, name)()
    show(quantity)
    found = {row.measure: row.value for row in quantity.summary() if row.statistic in ("mean", "largest magnitude")}
    assert found[measure] == pytest.approx(expected, rel=1e-4)


GRADIENTS = [torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 4.0], [3.0, 0.0]]), torch.ones(1, 2)]


def test_norms_of_whole_batches_and_turns_between_them():
    quantity = OutputGradientGeometry(inplace=False)
    for gradient in (*GRADIENTS, -GRADIENTS[2]):
        quantity.observe("layer", LAYER, gradient)
    assert listed(quantity, "norm") == pytest.approx([5.0, 5.0, np.sqrt(2), np.sqrt(2)])
    assert listed(quantity, "correlation") == pytest.approx([0.0, -1.0])


def test_tiny_gradients_have_their_true_turn():
    quantity = GradientGeometry(inplace=False)
    for scale in (1e-5, 1e-5, 1e-25, -1e-25):
        quantity.observe("p", scale * torch.tensor([1.0, 2.0, 2.0]))
    assert listed(quantity, "norm", "p") == pytest.approx([3e-5, 3e-5, 3e-25, 3e-25])
    assert listed(quantity, "correlation", "p") == pytest.approx([1.0, 1.0, -1.0])


def test_no_turn_from_or_to_nothing():
    quantity = GradientGeometry(inplace=False)
    for gradient in (torch.ones(2), torch.zeros(2), torch.ones(2), torch.full((2,), torch.nan)):
        quantity.observe("p", gradient)
    assert "correlation" not in quantity.value
    assert quantity.value["norm"]["p"].non_finite == 1


def test_a_gradient_that_is_changed_in_place_is_not_compared_as_it_is_then():
    quantity, module = OutputGradientGeometry(inplace=False), nn.Linear(2, 2)
    for turn in (1.0, -1.0, 1.0, -1.0):
        gradient = torch.tensor([[turn, 0.0], [0.0, turn]])
        quantity.observe("layer", module, gradient)
        gradient.mul_(-1)
    assert listed(quantity, "correlation", "layer") == pytest.approx([-1.0, -1.0, -1.0])


def test_root_mean_square():
    quantity = GradientGeometry(normalize=True, correlation=False, inplace=False)
    quantity.observe("p", torch.full((5, 5), -3.0))
    assert listed(quantity, "norm", "p") == [3.0]
    assert list(quantity.value) == ["norm"]


REDUCTIONS = {"mean": (6.0, 8.0), "sum": (3.0, 4.0)}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_norms_per_sample(reduction):
    quantity = OutputGradientGeometry(inplace=False, per_sample=True, reduction=reduction)
    quantity.observe("layer", LAYER, GRADIENTS[0])
    assert listed(quantity, "norm per sample") == pytest.approx(REDUCTIONS[reduction])


def test_reset_begins_a_new_history():
    quantity = GradientGeometry()
    quantity.observe("p", torch.ones(2))
    quantity.reset()
    quantity.observe("p", torch.ones(2))
    assert list(quantity.value) == ["norm"]
    assert quantity.value["norm"]["p"].count == 1


def test_steps_of_parameters():
    quantity = ParameterDifferenceGeometry(inplace=False)
    for value in ([0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [6.0, 0.0]):
        quantity.observe("p", torch.tensor(value))
    assert listed(quantity, "norm", "p") == pytest.approx([5.0, 5.0, 8.0])
    assert listed(quantity, "correlation", "p") == pytest.approx([1.0, -0.8])


def test_a_step_does_not_span_a_reset():
    quantity = ParameterDifferenceGeometry()
    quantity.observe("p", torch.zeros(2))
    quantity.reset()
    quantity.observe("p", torch.ones(2))
    assert quantity.value == {}


@pytest.mark.parametrize("kind", [GradientGeometry, ParameterDifferenceGeometry])
def test_what_was_seen_before_a_reset_is_in_no_norm_of_the_model(kind):
    quantity = kind()
    for value in (torch.zeros(2), torch.ones(2)):
        quantity.observe("p", value)
    quantity.reset()
    quantity.finish()
    assert quantity.value == {}


def test_activation_and_death_of_gradients():
    quantity = GradientActivation(inplace=False)
    quantity.observe("weight", torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 1e-9]]))
    quantity.observe("bias", torch.tensor([0.0, 2.0, 1e-9, -1.0]))
    assert listed(quantity, "activation rate", "weight") == pytest.approx([1 / 3])
    assert listed(quantity, "death rate", "weight") == pytest.approx([1 / 3])
    assert listed(quantity, "activation rate", "bias") == listed(quantity, "death rate", "bias") == [0.5]


def test_units_that_are_dead_in_every_batch():
    one, other = GradientActivation(), GradientActivation()
    one.observe("bias", torch.tensor([0.0, 1.0, 0.0]))
    other.observe("bias", torch.tensor([0.0, 0.0, 1.0]))
    assert one.never_active() == {"bias": (2, 3)}
    merge_found(one.mergeable(), other.mergeable())
    assert one.never_active() == {"bias": (1, 3)}


OUTPUTS = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]]])
ACTIVITY = {
    "channels first": (False, (0 + 3 / 4 + 1 / 4) / 3, 1 / 3),
    "channels last": (True, (2 / 6 + 2 / 6) / 2, 0.0),
}


@pytest.mark.parametrize(("channel_last", "rate", "death"), ACTIVITY.values(), ids=ACTIVITY)
def test_activation_and_death_of_outputs(channel_last, rate, death):
    quantity = OutputActivation(channel_last=channel_last, inplace=False)
    quantity.observe("layer", LAYER, OUTPUTS)
    assert listed(quantity, "activation rate") == pytest.approx([rate])
    assert listed(quantity, "death rate") == pytest.approx([death])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_units_that_are_no_number_are_not_dead(bad):
    outputs, gradients = OutputActivation(), GradientActivation()
    values = torch.tensor([[0.0, bad, 1.0], [0.0, bad, 0.0]])
    outputs.observe("layer", nn.ReLU(), values)
    gradients.observe("layer", values.T)
    for quantity in (outputs, gradients):
        for measure in ("death rate", "activation rate"):
            found = quantity.value[measure]["layer"]
            assert (found.count, found.non_finite) == (0, 1)
        assert quantity.never_active() == {"layer": (0, 3)}


CAPTIONS = {
    "root mean square": (True, "Root mean square of"),
    "norm": (False, "Euclidean norm of"),
}


@pytest.mark.parametrize(("normalize", "beginning"), CAPTIONS.values(), ids=CAPTIONS)
@pytest.mark.parametrize(
    ("kind", "measure"), [(OutputNorm, "norm"), (GradientGeometry, "norm"), (ParameterNorm, "bias norm")]
)
def test_captions_speak_of_the_settings(kind, measure, normalize, beginning):
    assert kind(normalize=normalize).caption(measure).startswith(beginning)


def test_norms_of_outputs():
    quantity = OutputNorm(inplace=False)
    quantity.observe("layer", LAYER, torch.tensor([[[3.0], [4.0]], [[0.0], [1.0]]]))
    quantity.observe("flat", LAYER, torch.tensor([1.0, -2.0]))
    assert (listed(quantity, "norm"), listed(quantity, "norm", "flat")) == ([3.0], [1.5])
    rms = OutputNorm(inplace=False, normalize=True)
    rms.observe("layer", LAYER, torch.full((2, 9), 2.0))
    assert listed(rms, "norm") == [2.0]


def evaluated(**options):
    quantity = OutputNorm(**options)
    module = nn.Linear(1, 1).eval()
    quantity.observe("training mode", nn.Linear(1, 1), torch.ones(2, 1))
    quantity.observe("eval mode", module, torch.ones(2, 1))
    with torch.no_grad():
        quantity.observe("no gradients", nn.Linear(1, 1), torch.ones(2, 1))
    return sorted(quantity.value.get("norm", {}))


PASSES = {
    "those with gradients": ({}, ["eval mode", "training mode"]),
    "all passes": ({"record_eval": True}, ["eval mode", "no gradients", "training mode"]),
}


@pytest.mark.parametrize(("options", "expected"), PASSES.values(), ids=PASSES)
def test_which_passes_count(options, expected):
    assert evaluated(**options) == expected


def test_norms_of_parameters():
    quantity = ParameterNorm(inplace=False)
    layer = nn.Linear(2, 2, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    quantity.observe("layer", layer)
    quantity.observe("nothing", nn.ReLU())
    assert quantity.value.keys() == {"weight norm"}
    assert listed(quantity, "weight norm") == [4.0]


def test_losses_of_a_module():
    quantity = LossModule(inplace=False)
    quantity.observe("loss", nn.MSELoss(), torch.tensor(3.0))
    with torch.no_grad():
        quantity.observe("loss", nn.MSELoss(), torch.tensor([5.0]))
    assert listed(quantity, "training loss", "(model)") == [3.0]
    assert listed(quantity, "validation loss", "(model)") == [5.0]
    with pytest.raises(ConfigError, match=r"MSELoss returned a tensor of shape \(2,\), wanted a single loss"):
        quantity.observe("loss", nn.MSELoss(), torch.zeros(2))


def test_figures_pushed_by_hand():
    quantity = ExplicitCall()
    quantity.push("loss", 1.0)
    quantity.push("loss", torch.tensor([3.0]))
    assert quantity.value["loss"]["(model)"].mean == 2.0
    with pytest.raises(ConfigError, match=r"'loss': wanted one number, got a tensor of shape \(2,\)"):
        quantity.push("loss", torch.zeros(2))


SHAPES = {"long": (5_000_000,), "a matrix": (300, 70), "no elements": (0, 3), "one number": ()}


def random_tensor(shape, factor=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * factor


@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30], ids=["usual", "tiny", "huge"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_norms(shape, factor):
    tensor = random_tensor(shape, factor)
    found = precise_norm(tensor)
    assert (found.dtype, found.shape) == (torch.float64, ())
    np.testing.assert_allclose(found, np.sqrt((tensor.double().numpy() ** 2).sum()), rtol=1e-7)
