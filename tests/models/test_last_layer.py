"""Penultimate features against the model itself, and their way to the figures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from meta_models import OOD, meta_model
from torch import nn

from gradscore.baselines import BASELINES
from gradscore.columns import feature_columns, penultimate_columns
from gradscore.errors import ConfigError, ModelError
from gradscore.evaluation.run import EvaluationReport, evaluate_run
from gradscore.meta import group_of
from gradscore.models import Interface
from gradscore.models.layers import find_last_layer
from gradscore.store import read_head
from gradscore.store.run_folder import RunFolder

OF_FEATURES = [
    name for name in BASELINES if BASELINES[name].needs in ("penultimate", "neighbours") and BASELINES[name].is_compared
]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


def caught(model, setting, x):
    layer = find_last_layer(model, setting)
    return layer.catch(lambda: model(x))


BODY = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
NET = nn.Sequential(BODY, nn.Linear(3, 2, bias=False))
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("setting", [True, "1"])
def test_what_enters_the_last_layer(setting):
    outputs, features = caught(NET, setting, X)
    torch.testing.assert_close(features, BODY(X), rtol=0, atol=0)
    torch.testing.assert_close(outputs, NET(X), rtol=0, atol=0)
    assert not features.requires_grad


def test_no_hook_stays():
    caught(NET, True, X)
    assert not NET[1]._forward_hooks


def test_the_head_makes_the_logits():
    layer = find_last_layer(NET, True)
    _, features = caught(NET, True, X)
    np.testing.assert_allclose(features.numpy() @ layer.head.weight.T + layer.head.bias, NET(X).detach(), rtol=1e-5)


def test_nothing_asked_for():
    assert find_last_layer(NET, False) is None


def test_logits_that_are_not_numbers_are_left_to_others():
    caught(NET, True, torch.full_like(X, torch.nan))


CHANGED = {
    "not the logits": (nn.Sequential(NET, nn.Tanh()), X),
    "called twice": (Twice(), X[:, :3]),
    "positions": (NET, X[:, None]),
}


@pytest.mark.parametrize(("model", "x"), CHANGED.values(), ids=CHANGED)
def test_other_layers_are_refused(model, x):
    with pytest.raises(ModelError, match="the logits are not what layer"):
        caught(model, True, x)


BAD = {
    "mistyped": (NET, "0.00", "no module '0.00'; did you mean '0.0'"),
    "no linear layer": (nn.Sequential(nn.Conv2d(1, 2, 1)), True, "got '0', a Conv2d"),
}


@pytest.mark.parametrize(("model", "setting", "message"), BAD.values(), ids=BAD)
def test_unusable_names(model, setting, message):
    with pytest.raises(ConfigError, match=message):
        find_last_layer(model, setting)


def test_the_head_of_one_logit_makes_two():
    model = nn.Sequential(BODY, nn.Linear(3, 1))
    Interface(num_classes=2, one_logit=True).attach(model)
    outputs, features = caught(model, True, X)
    head = find_last_layer(model, True).head
    np.testing.assert_allclose(features.numpy() @ head.weight.T + head.bias, outputs.detach(), rtol=1e-5)


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> RunFolder:
    return RunFolder(make_run(features={"penultimate": True}, evaluate=False))


@pytest.fixture(scope="module")
def evaluation(run: RunFolder) -> EvaluationReport:
    return evaluate_run(run)


def test_the_table_holds_them_apart_from_the_features(run: RunFolder) -> None:
    frame = run.read("in_dist.test")
    assert penultimate_columns(frame) == [f"penultimate_{place}" for place in range(36)]
    assert not set(penultimate_columns(frame)) & set(feature_columns(frame))


def test_logits_come_from_them(run: RunFolder) -> None:
    frame, head = run.read("ood.noise"), read_head(run.path)
    logits = frame[penultimate_columns(frame)].to_numpy() @ head.weight.T + head.bias
    np.testing.assert_allclose(
        logits, frame[[f"logit_{place}" for place in range(10)]].to_numpy(), rtol=1e-4, atol=1e-4
    )


def test_meta_models_see_scores_of_them_alone(run: RunFolder) -> None:
    inputs = meta_model(run, OOD).inputs
    assert not [name for name in inputs.names if name.startswith("penultimate")]
    assert {"penultimate", "neighbours"} <= {group_of(name) for name in inputs.names}


def test_every_baseline_is_reported_and_compared(evaluation: EvaluationReport) -> None:
    records = pd.DataFrame(evaluation.records).query("task == 'ood'")
    assert set(OF_FEATURES) <= set(records["score"])
    assert {f"auroc_gain_over_{name}" for name in OF_FEATURES} <= set(records["metric"])


def test_features_change_nothing_else(run: RunFolder, small_run: Path) -> None:
    columns = feature_columns(run.read("in_dist.test"))
    pd.testing.assert_frame_equal(run.read("in_dist.test", columns), RunFolder(small_run).read("in_dist.test", columns))
