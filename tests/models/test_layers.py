"""Groups of parameters, and penultimate features against the model itself."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn

from gradscore.columns import feature_columns, penultimate_columns
from gradscore.errors import ConfigError, ModelError
from gradscore.models import Interface
from gradscore.models.layers import find_last_layer, group_parameters
from gradscore.store import RunFolder, read_head


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
    assert not NET[1]._forward_hooks


def test_the_same_model_may_run_in_another_thread():
    def forward():
        outputs = NET(X)
        thread = Thread(target=NET, args=(2 * X,))
        thread.start()
        thread.join()
        return outputs

    _, features = find_last_layer(NET, True).catch(forward)
    torch.testing.assert_close(features, BODY(X), rtol=0, atol=0)


def test_the_head_makes_the_logits():
    layer = find_last_layer(NET, True)
    _, features = caught(NET, True, X)
    np.testing.assert_allclose(
        features.numpy() @ layer.head.weight.T + layer.head.bias, NET(X).detach(), rtol=1e-5, atol=1e-6
    )


def test_logits_that_are_not_numbers_are_left_to_others():
    caught(NET, True, torch.full_like(X, torch.nan))


CHANGED = {
    "not the logits": (nn.Sequential(NET, nn.Tanh()), X),
    "called twice": (Twice(), X[:, :3]),
    "positions": (NET, X[:, None]),
}


@pytest.mark.parametrize(("model", "x"), CHANGED.values(), ids=CHANGED)
def test_other_layers_have_no_features(model, x):
    outputs, features = caught(model, True, x)
    assert features is None
    torch.testing.assert_close(outputs, model(x), rtol=0, atol=0)


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
    np.testing.assert_allclose(features.numpy() @ head.weight.T + head.bias, outputs.detach(), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> RunFolder:
    return RunFolder(make_run(features={"penultimate": True}, evaluate=False))


def test_logits_come_from_them(run: RunFolder) -> None:
    frame, head = run.read("ood.noise"), read_head(run.path)
    assert penultimate_columns(frame) == [f"penultimate_{place}" for place in range(36)]
    assert not set(penultimate_columns(frame)) & set(feature_columns(frame))
    logits = frame[penultimate_columns(frame)].to_numpy() @ head.weight.T + head.bias
    np.testing.assert_allclose(
        logits, frame[[f"logit_{place}" for place in range(10)]].to_numpy(), rtol=1e-4, atol=1e-4
    )


class Net(nn.Module):
    """Parameters of its own, of a normalisation layer, and one shared by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(nn.Linear(2, 2).weight.detach())
        self.norm = nn.LayerNorm(2)
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight


ALL = ["token", "norm.weight", "norm.bias", "first.weight", "first.bias", "second.bias"]
CASES = {
    "every parameter": ({"patterns": ["*"]}, {name: [name] for name in ALL}),
    "patterns, in the order of the model": (
        {"patterns": ["*.bias", "norm.*"]},
        {name: [name] for name in ["norm.weight", "norm.bias", "first.bias", "second.bias"]},
    ),
    "modules": (
        {"patterns": ["*"], "granularity": "module"},
        {
            ".": ["token"],
            "norm": ["norm.weight", "norm.bias"],
            "first": ["first.weight", "first.bias"],
            "second": ["second.bias"],
        },
    ),
    "model": ({"granularity": "model", "patterns": ["first.*"]}, {"model": ["first.weight", "first.bias"]}),
}


@pytest.mark.parametrize(("features", "wanted"), CASES.values(), ids=CASES)
def test_groups(features: dict, wanted: dict) -> None:
    found = group_parameters(Net(), **features)
    assert list(found.items()) == list(wanted.items())


def test_a_pattern_without_a_match() -> None:
    with pytest.raises(ConfigError, match=r"features\.parameters\.1: 'NORM\.\*' matches no parameter"):
        group_parameters(Net(), ["*", "NORM.*"])


def test_a_model_without_parameters() -> None:
    with pytest.raises(ModelError, match="has no parameters"):
        group_parameters(nn.Flatten(), ["*"])
