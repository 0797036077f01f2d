"""The picture of training: what is kept of a run, the file, the page, and findings while it goes on."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo import cnn, digits

from gradscore.inspect import (
    ExplicitCall,
    GradHist1d,
    GradientGeometry,
    HealthWarning,
    Inspector,
    OutputNorm,
    ParameterDifferenceGeometry,
    every,
)
from gradscore.inspect.quantity import CAPACITY, Timeline
from gradscore.inspect.training_report import _epochs_of_findings, _parts


@pytest.mark.parametrize("steps", [1, CAPACITY, CAPACITY + 1, 5000])
def test_a_timeline_forgets_no_value_and_does_not_grow(steps):
    values = np.random.default_rng(0).normal(size=steps)
    timeline = Timeline()
    for step, value in enumerate(values):
        timeline.add(step, [value])
    found = list(timeline.stretches())
    assert len(found) <= CAPACITY
    assert sum(moments.count for _, _, moments in found) == steps
    truth = [values[start:stop] for start, stop, _ in found]
    np.testing.assert_allclose([moments.mean for _, _, moments in found], [part.mean() for part in truth], rtol=1e-9)
    np.testing.assert_allclose(
        [moments.figures()["std"] for _, _, moments in found], [part.std() for part in truth], atol=1e-12
    )
    assert [moments.maximum for _, _, moments in found] == [part.max() for part in truth]


def test_merged_timelines_are_those_of_all_values():
    one, other, both = Timeline(), Timeline(), Timeline()
    for step in range(600):
        for timeline in (both, one) if step < 100 else (both, other):
            timeline.add(step, [float(step), -1.0])
    one.merge(other)
    assert [(start, stop, moments.count, moments.mean) for start, stop, moments in one.stretches()] == [
        (start, stop, moments.count, pytest.approx(moments.mean)) for start, stop, moments in both.stretches()
    ]


QUANTITIES = (
    lambda: GradientGeometry(
        inplace=False, line_aggregation=["median", "mean"], range_aggregation=["Q1-Q3", "min-max"]
    ),
    lambda: OutputNorm(log_scale=True),
    lambda: GradHist1d(bins=11, span=(-0.1, 0.1), schedule=every(5)),
    ParameterDifferenceGeometry,
)


def train(name, *, steps=30, explodes_at=None, quantities=QUANTITIES, **options):
    """Trains a small network; at a step its learning rate may become absurd."""
    torch.manual_seed(0)
    model, (images, labels) = cnn(), digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    made = [make() for make in quantities]
    with Inspector(model, made, optimizer=optimizer, name=name, **options) as inspector:
        for step in range(steps):
            if step == explodes_at:
                optimizer.param_groups[0]["lr"] = 1e4
            batch = slice(16 * step % 1500, 16 * step % 1500 + 16)
            optimizer.zero_grad()
            inspector.backward(F.cross_entropy(model(images[batch]), labels[batch], reduction="none"))
            optimizer.step()
            if step % 10 == 9:
                inspector.tick_epoch()
    return inspector


def test_losses_and_learning_rates_step_by_step():
    inspector = train("run", steps=20)
    steps = inspector.record().steps
    loop = steps[steps["quantity"] == "training loop"].set_index(["measure", "start"])["mean"]
    assert loop["learning rate"].tolist() == [0.05] * 20
    assert loop["loss", 19] < loop["loss", 0] == pytest.approx(np.log(10), rel=0.1)


def test_values_of_steps_are_those_of_the_loop():
    model, weights = nn.Linear(1, 1), [1.0, -2.0, 0.5]
    quantity = GradientGeometry()
    with Inspector(model, [quantity]) as inspector:
        for weight in weights:
            (weight * model(torch.ones(1, 1))).sum().backward()
            inspector.push(validation_loss=3 * weight)
    steps = inspector.record().steps.set_index(["quantity", "measure", "layer"])
    assert steps.loc[("parameter gradient", "norm", "weight"), "max"].tolist() == [1.0, 2.0, 0.5]
    assert steps.loc[("training loop", "validation loss", "(model)"), "mean"].tolist() == [3.0, -6.0, 1.5]


@pytest.mark.filterwarnings("ignore::gradscore.inspect.HealthWarning")
def test_a_file_holds_all_there_is(tmp_path):
    inspector = train("run", explodes_at=15, health=every(5))
    inspector.save(tmp_path / "run.parquet")
    written, read = inspector.record(), pd.read_parquet(tmp_path / "run.parquet")
    for part in ("steps", "epochs", "histograms", "findings"):
        one = getattr(written, part).reset_index(drop=True)
        other = read.loc[read["part"] == part, list(one)].reset_index(drop=True)
        assert len(one) > 0
        assert other.astype(one.dtypes).equals(one)


def named_lines(axes):
    return [line for line in axes.lines if not line.get_label().startswith("_")]


@pytest.mark.slow
def test_page_of_a_run(tmp_path, drawn):
    inspector = train("run")
    inspector.report(tmp_path / "training.html")
    assert set(drawn) == set(re.findall(r'<figure[^>]* id="([^"]*)"', (tmp_path / "training.html").read_text()))
    assert (tmp_path / "training.parquet").is_file()
    layers = ["(model)", *(name for name, _ in inspector.model.named_parameters())]
    epochs = drawn["parameter-gradient-norm-epochs"].axes
    assert [axes.texts[0].get_text() for axes in epochs] == layers
    assert [[line.get_label() for line in named_lines(axes)] for axes in epochs] == [["median", "mean"]] * len(layers)
    assert [len(axes.collections) for axes in epochs] == [2] * len(layers)  # bands
    table = inspector.table().set_index(["quantity", "measure", "layer", "statistic", "epoch"])["value"]
    medians = [table["parameter gradient", "norm", layers[0], "median", epoch] for epoch in range(3)]
    np.testing.assert_allclose(named_lines(epochs[0])[0].get_ydata(), medians)
    low = [table["parameter gradient", "norm", layers[0], "Q1", epoch] for epoch in range(3)]
    assert set(low) <= set(epochs[0].collections[0].get_paths()[0].vertices[:, 1])
    assert drawn["output-norm-steps"].axes[0].get_yscale() == "log"
    shares = 10 ** drawn["histogram-run-0.weight"].axes[0].images[0].get_array()
    np.testing.assert_allclose(shares.sum(axis=0), 1)


def test_findings_stand_on_the_axis_of_time(tmp_path, drawn):
    with pytest.warns(HealthWarning, match="NaN or infinite"):
        inspector = train("run", explodes_at=12, quantities=(), health=every(3))
    (finding, *_) = inspector.findings()
    assert 12 <= finding.step <= 18
    inspector.report(tmp_path / "training.html")
    assert f"step {finding.step}: " in (tmp_path / "training.html").read_text()
    assert finding.step in [line.get_xdata()[0] for line in drawn["training-loop-loss-steps"].axes[0].lines]


@pytest.mark.filterwarnings("ignore::gradscore.inspect.HealthWarning")
def test_a_run_that_ends_in_no_numbers_is_drawn_to_its_end(tmp_path, drawn):
    quantities = QUANTITIES[1:3]
    train("run", explodes_at=12, quantities=quantities, health=every(3)).report(tmp_path / "training.html")
    loss, epochs = drawn["training-loop-loss-steps"].axes[0], drawn["output-norm-epochs"].axes[0]
    assert (loss.get_xlim(), loss.get_yscale()) == ((0, 29), "log")
    assert epochs.get_xlim() == (0, 2)
    assert {line.get_xdata()[0] for line in epochs.lines if line.get_label().startswith("_")} == {1}
    heat = drawn["histogram-run-0.weight"].axes[0].images[0]
    assert heat.get_extent()[:2] == [-0.5, 2.5]
    assert (~heat.get_array().mask).any(axis=0).tolist() == [True, True, False]


@pytest.mark.parametrize(("step", "though"), [(7, ""), (10, ", though the outputs of the model are finite")])
def test_a_loss_that_is_no_number_is_a_finding_at_its_step(step, though):
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(8, 4)
    with Inspector(model, [], health=every(5)) as inspector, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(16):
            loss = model(inputs).square().mean()
            loss.backward()
            inspector.push(loss=float("nan") if number in (step, step + 1) else loss)
    found = [(each.kind, each.layer, each.step, each.sentence) for each in inspector.findings()]
    assert found == [("bad loss", "(model)", step, f"the loss is NaN or infinite{though}")]
    assert [str(each.message) for each in said] == [f"step {step}: the loss is NaN or infinite{though}."]
    assert inspector.record().findings["step"].tolist() == [step]


def test_a_loss_is_no_finding_of_its_own_where_its_cause_was_found():
    model = nn.Linear(4, 2)
    nn.init.constant_(model.bias, float("inf"))
    with Inspector(model, [], health=every(1)) as inspector, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            loss = model(torch.ones(8, 4)).square().mean()
            inspector.push(loss=loss)
            loss.backward()
        found = inspector.findings()
    assert [each.kind for each in found] == ["bad weight"]
    assert ["holds 2 of 2 values" in str(each.message) for each in said] == [True]


def test_a_finding_is_said_once():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        inspector = train("run", explodes_at=5, health=every(2))
    kinds = [(each.kind, each.layer) for each in inspector.findings()]
    assert len(kinds) == len(set(kinds)) == len([each for each in said if each.category is HealthWarning]) > 0


def test_branches_that_begin_at_zero_are_not_dead_in_the_first_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(model[2].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Inspector(model, [], health=every(1)) as inspector:
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(32, 4)), torch.arange(32) % 3).backward()
            optimizer.step()
    assert inspector.findings() == []


def test_a_layer_that_dies_in_training_is_named_with_its_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with warnings.catch_warnings(), Inspector(model, [], health=every(1)) as inspector:
        warnings.simplefilter("ignore")
        for step in range(6):
            if step == 3:
                nn.init.constant_(model[0].bias, -100.0)
            model(torch.randn(32, 4)).square().mean().backward()
        found = inspector.findings()
    assert [(each.kind, each.layer, each.step) for each in found] == [("dead layer", "0", 4)]


class SingleKey(nn.Module):
    """Attends over one key, so that neither query nor key ever gets a gradient."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        weights = (self.query(x).unsqueeze(1) @ self.key(x).unsqueeze(2)).softmax(-1)
        return self.head((weights @ self.value(x).unsqueeze(1)).squeeze(1))


def test_a_layer_on_which_nothing_depends_is_not_dead_in_training():
    torch.manual_seed(0)
    model = SingleKey()
    with Inspector(model, [], health=every(1)) as inspector:
        for _ in range(4):
            model(x=torch.randn(32, 4)).square().mean().backward()
        before = torch.get_rng_state()
        assert inspector.findings() == []
    assert torch.equal(torch.get_rng_state(), before)


class NoCopies(SingleKey):
    def __deepcopy__(self, memo):
        raise TypeError("no copies")


def test_a_trial_that_fails_is_said_and_training_goes_on():
    model = NoCopies()
    with warnings.catch_warnings(record=True) as said, Inspector(model, [], health=every(1)) as inspector:
        warnings.simplefilter("always")
        for _ in range(4):
            model(x=torch.randn(32, 4)).square().mean().backward()
    messages = [str(each.message) for each in said if each.category is HealthWarning]
    assert "cannot try whether anything depends on key: TypeError: no copies" in messages
    assert inspector.step == 3


def test_what_is_paused_and_what_is_evaluated_is_not_looked_at():
    model = nn.Linear(4, 3)
    bad = torch.full((2, 4), torch.nan)
    with Inspector(model, [], health=every(1)) as inspector:
        model(torch.randn(2, 4)).sum().backward()
        with inspector.paused():
            model(bad)
        with torch.no_grad():
            model(bad)
        assert inspector.findings() == []


def test_inputs_that_are_given_by_name_are_looked_at():
    model = SingleKey()
    with Inspector(model, [], health=every(1)) as inspector:
        model(x=torch.full((2, 4), torch.inf)).sum().backward()
    with pytest.warns(HealthWarning, match="2 of 2 samples hold values"):
        assert [each.kind for each in inspector.findings()] == ["bad input"]


def test_histograms_of_many_epochs_are_subsampled_evenly():
    model, quantity = nn.Linear(2, 2), GradHist1d(bins=3)
    with Inspector(model, [quantity]) as inspector:
        for _ in range(150):
            inspector.observe_losses(model(torch.randn(2, 2)).sum(1))
            inspector.tick_epoch()
    assert sorted(set(inspector.record().histograms["epoch"])) == list(range(0, 150, 4))
    (_, heat, *_) = [plot for part in _parts(inspector.record()) for plot in part.plots]
    image = heat.figure.axes[0].images[0]
    assert image.get_extent()[:2] == [-2, 150]
    assert image.get_array().shape[1] == len(range(0, 150, 4))
    assert not image.get_array().mask.all(axis=0).any()


def test_epochs_of_a_resumed_fit_have_their_numbers(tmp_path):
    torch.manual_seed(0)
    model, (images, labels) = nn.Linear(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    with Inspector(model, [GradHist1d(), GradientGeometry()], health=every(1)) as inspector:
        inspector.epoch = 5
        for epoch in range(3):
            for _ in range(4):
                inspector.backward(F.cross_entropy(model(images), labels, reduction="none"))
            if epoch == 1:
                model(torch.full((2, 4), torch.nan)).sum().backward()
                with pytest.warns(HealthWarning, match="samples hold values"):
                    inspector.findings()
            inspector.tick_epoch()
    record = inspector.record()
    steps = record.epochs[["epoch", "step"]].drop_duplicates()
    assert dict(zip(steps["epoch"], steps["step"], strict=True)) == {5: 3, 6: 8, 7: 12}
    assert set(zip(record.histograms["epoch"], record.histograms["step"], strict=True)) == {(5, 3), (6, 8), (7, 12)}
    assert set(_epochs_of_findings(record)) == {6.0}
    (heat, *_) = [plot for part in _parts(record) for plot in part.plots if plot.figure.axes[0].images]
    assert heat.figure.axes[0].images[0].get_extent()[:2] == [4.5, 7.5]
    inspector.report(tmp_path / "training.html")
    assert "by epoch" in (tmp_path / "training.html").read_text()


DRAWN = {
    "no bands": ({"range_aggregation": None}, ["mean"], 0),
    "deviations": ({"range_aggregation": "std"}, ["mean"], 1),
    "two lines, two bands": ({"line_aggregation": ["max", "mean"]}, ["max", "mean"], 2),
    "what epochs alone have": (
        {"inplace": False, "line_aggregation": "median", "range_aggregation": "Q1-Q3"}, ["mean"], 0
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "lines", "bands"), DRAWN.values(), ids=DRAWN)
def test_steps_are_drawn_as_they_are_set(options, lines, bands):
    model = nn.Linear(4, 3)
    with Inspector(model, [OutputNorm(**options)]) as inspector:
        for _ in range(3):
            model(torch.randn(2, 4))
    ((plot,),) = [part.plots for part in _parts(inspector.record())]
    (axes,) = plot.figure.axes
    assert [line.get_label() for line in named_lines(axes)] == lines
    assert len(axes.collections) == bands


def test_names_in_a_page_make_no_element(tmp_path):
    inspector = Inspector(nn.Linear(2, 2), [ExplicitCall()], name="<img src=x>")
    inspector.push(loss=1.0)
    inspector.report(tmp_path / "training.html")
    assert "<img src=x>" not in (tmp_path / "training.html").read_text()
