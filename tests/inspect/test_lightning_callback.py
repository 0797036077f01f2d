"""A model that Lightning trains, watched: the same figures as in a plain loop, and no trace afterwards."""

import importlib
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from gradscore.errors import ConfigError, MissingExtraError
from gradscore.inspect import (
    GradHist1d,
    GradientGeometry,
    HealthWarning,
    Inspector,
    MeanGSNR,
    OutputNorm,
    ParameterDifferenceGeometry,
    every,
)
from gradscore.inspect.lightning_callback import InspectorCallback

from lightning.pytorch.loggers import Logger  # isort: skip (likewise)
from lightning.pytorch import LightningModule, Trainer  # isort: skip (after gradscore, which mends torchvision first)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*deprecated:FutureWarning:lightning.pytorch"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning:lightning.pytorch"),
]

EPOCHS = 2


class Module(LightningModule):
    """Runs its layers without a call of its own, as modules of Lightning may."""

    def __init__(self, watch=None, fails_at=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
        self.fails_at = fails_at
        self.watch = [watch]

    def losses(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def training_step(self, batch, number):
        if number == self.fails_at:
            raise ArithmeticError("no loss")
        losses = self.losses(batch)
        if self.watch[0] is not None:
            self.watch[0].observe_losses(losses)
        return losses.mean()

    def validation_step(self, batch):
        self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def quantities():
    return [
        GradientGeometry(inplace=False),
        ParameterDifferenceGeometry(),
        OutputNorm(record_eval=True, schedule=every(2)),
        GradHist1d(bins=9, span=(-0.1, 0.1)),
        MeanGSNR(schedule=every(2)),
    ]


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(12, 8, generator=generator), torch.arange(12) % 3) for _ in range(3)]


@pytest.fixture
def fit(batches, tmp_path):
    def run(module, *callbacks, logger=False, epochs=EPOCHS, ckpt_path=None):
        trainer = Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=list(callbacks),
            logger=logger,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        loaders = DataLoader(batches, batch_size=None), DataLoader(batches[:1], batch_size=None)
        trainer.fit(module, *loaders, ckpt_path=ckpt_path)
        return module

    return run


def in_a_plain_loop(batches):
    module = Module()
    optimizer = module.configure_optimizers()
    with Inspector(module.net, quantities()) as inspector:
        for _ in range(EPOCHS):
            for batch in batches:
                optimizer.zero_grad()
                losses = module.losses(batch)
                inspector.observe_losses(losses)
                losses.mean().backward()
                optimizer.step()
            with torch.no_grad():
                module.net(batches[0][0])
            inspector.tick_epoch()
    return inspector.table()


def hooks(module):
    """The hooks of modules and of parameters, and the names of all attributes."""
    parameters = [(each._backward_hooks, each._post_accumulate_grad_hooks) for each in module.parameters()]
    modules = [
        (sorted(vars(each)), {key: dict(value) for key, value in vars(each).items() if key.endswith("_hooks")})
        for each in module.modules()
    ]
    return repr((parameters, modules))


def tensors(module):
    return [(each.detach().tolist(), repr(each.grad)) for each in module.parameters()]


def test_the_figures_are_those_of_a_plain_loop(fit, batches):
    watch = InspectorCallback(quantities())
    fit(Module(watch), watch)
    found, expected = watch.inspector.table(), in_a_plain_loop(batches)
    columns = ["epoch", "quantity", "measure", "statistic"]
    assert found[columns].equals(expected[columns])
    assert found["layer"].str.removeprefix("net.").tolist() == expected["layer"].tolist()
    torch.testing.assert_close(
        torch.tensor(found["value"]), torch.tensor(expected["value"]), rtol=1e-6, atol=1e-9, equal_nan=True
    )


def test_the_module_is_as_without_the_callback(fit):
    watch = InspectorCallback(quantities())
    watched, plain = fit(Module(watch), watch), fit(Module())
    assert tensors(watched) == tensors(plain)
    assert hooks(watched) == hooks(plain)


def test_an_exception_leaves_no_trace(fit):
    watch = InspectorCallback(quantities())
    module, plain = Module(watch, fails_at=1), Module(fails_at=1)
    with pytest.raises(ArithmeticError, match="no loss"):
        fit(module, watch)
    with pytest.raises(ArithmeticError, match="no loss"):
        fit(plain)
    assert watch.inspector.step == 1
    assert hooks(module) == hooks(plain)
    assert tensors(module) == tensors(plain)


def test_another_fit_begins_anew(fit):
    watch = InspectorCallback([GradientGeometry()])
    with pytest.raises(ArithmeticError):
        fit(Module(fails_at=2), watch)
    fit(Module(), watch)
    table = watch.inspector.table().set_index(["epoch", "layer", "measure", "statistic"])["value"]
    assert table[(0, "net.0.weight", "norm", "count")] == 3


class Kept(Logger):
    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.metrics = []

    def log_hyperparams(self, *arguments):
        del arguments

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))


def test_figures_go_to_the_loggers_of_the_trainer(fit):
    watch, logger = InspectorCallback([GradientGeometry()], log=True), Kept()
    fit(Module(), watch, logger=logger)
    table = watch.inspector.table().set_index(["epoch", "quantity", "measure", "layer", "statistic"])["value"]
    assert [step for step, _ in logger.metrics] == [3, 6]
    written = logger.metrics[1][1]["parameter gradient/norm/net.0.weight/mean"]
    assert written == table[1, "parameter gradient", "norm", "net.0.weight", "mean"]


@pytest.mark.parametrize("per_sample", [False, True])
def test_losses_and_learning_rates_are_kept(fit, per_sample):
    watch = InspectorCallback([GradientGeometry()])
    fit(Module(watch if per_sample else None), watch)
    steps = watch.inspector.record().steps
    loop = steps[steps["quantity"] == "training loop"].set_index("measure")
    assert loop.loc["learning rate", "mean"].tolist() == [0.1] * 6
    assert loop.loc["loss", "count"].tolist() == [1] * 6
    assert loop.loc["loss", "mean"].between(0.5, 2.0).all()


class Sick(Module):
    """At step 2 something happens to it; its layers are called one by one, or by its own `forward`."""

    def __init__(self, happens, *, through_forward):
        super().__init__()
        self.happens, self.through_forward = happens, through_forward

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, number):
        del number
        return F.cross_entropy((self if self.through_forward else self.net)(batch[0]), batch[1])

    def on_train_batch_end(self, *given):
        del given
        if self.global_step == 2:
            with torch.no_grad():
                self.happens(self.net)


class Alone(nn.Module):
    """Attends over one key: neither query nor key ever gets a gradient."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return (self.query(x) * self.key(x)).sum(1, keepdim=True).softmax(1) * self.value(x)


HAPPENS = {
    "a layer dies": (lambda net: net[0].bias.fill_(-100), [("dead layer", "net.0", 3)]),
    "a weight becomes NaN": (lambda net: net[2].weight[0, 0].fill_(torch.nan), [("bad weight", "net.2.weight", 2)]),
    "nothing": (lambda net: None, []),
}


@pytest.mark.filterwarnings("ignore::gradscore.inspect.HealthWarning")
@pytest.mark.parametrize("through_forward", [False, True])
@pytest.mark.parametrize(("happens", "expected"), HAPPENS.values(), ids=HAPPENS)
def test_what_is_not_well_is_found(fit, happens, expected, through_forward):
    watch = InspectorCallback([OutputNorm()], health=every(1))
    fit(Sick(happens, through_forward=through_forward), watch)
    assert [(each.kind, each.layer, each.step) for each in watch.inspector.findings()] == expected


def test_what_is_not_well_is_said_at_the_end_at_the_latest(fit):
    watch = InspectorCallback([], health=lambda step: step == 3 * EPOCHS - 1)
    with pytest.warns() as said:
        fit(Sick(HAPPENS["a weight becomes NaN"][0], through_forward=False), watch)
    loss, weight = (str(each.message) for each in said if each.category is HealthWarning)
    assert loss == "step 2: the loss is NaN or infinite."  # a step that nothing else is looked for in
    assert weight.startswith("step 5: net.0.weight of net.0 (Linear, layer 1 of 3) holds")


@pytest.mark.parametrize("through_forward", [False, True])
def test_layers_on_which_nothing_depends_are_not_dead(fit, through_forward):
    module, watch = Sick(lambda net: None, through_forward=through_forward), InspectorCallback([], health=every(1))
    module.net = Alone()
    fit(module, watch)
    assert watch.inspector.findings() == []


def test_losses_without_a_fit():
    with pytest.raises(ConfigError, match="give this InspectorCallback to the trainer"):
        InspectorCallback([]).observe_losses(torch.ones(2))


def test_without_lightning(monkeypatch):
    monkeypatch.delitem(sys.modules, "gradscore.inspect.lightning_callback")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gradscore\[lightning\]'"):
        importlib.import_module("gradscore.inspect.lightning_callback")


def test_a_resumed_fit_goes_on_counting_epochs_and_steps(fit, tmp_path):
    before = InspectorCallback([OutputNorm()])
    fit(Module(), before, epochs=1).trainer.save_checkpoint(tmp_path / "last.ckpt")
    watch = InspectorCallback([OutputNorm()])
    fit(Module(), watch, ckpt_path=tmp_path / "last.ckpt")
    assert {figure.epoch for figure in watch.inspector.history} == {1}
    steps = before.inspector.step + 1
    assert watch.inspector.record().steps["start"].min() == steps > 0
    assert watch.inspector.step == 2 * steps - 1
