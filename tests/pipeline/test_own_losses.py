"""Losses that a program gives as functions of logits: beside those by name, and their mistakes."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gradscore
from gradscore.errors import ConfigError, EngineError, GradscoreError

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


def to_all_classes(logits: Tensor) -> Tensor:
    return -logits.log_softmax(1).mean(1)


def test_the_gradients_of_a_function_are_those_of_the_loss_by_name(model: nn.Module) -> None:
    wanted = gradscore.features(model, X, losses="uniform")
    found = gradscore.features(model, X, losses=to_all_classes)
    renamed = found.rename(columns=lambda name: name.replace("to_all_classes/", "uniform/"))
    pd.testing.assert_frame_equal(renamed, wanted, rtol=1e-9)


def test_functions_of_one_name_are_told_apart(model: nn.Module) -> None:
    def loss(logits: Tensor) -> Tensor:
        return logits.logsumexp(1)

    first, again = (set(gradscore.features(model, X, losses=loss)) for _ in range(2))
    assert first == again

    def loss(logits: Tensor) -> Tensor:
        return logits.square().sum(1)

    other = set(gradscore.features(model, X, losses=loss))
    assert {name.split("/")[0] for name in other - first} == {"loss_2"}


def test_a_detector_is_fitted_on_it(model: nn.Module) -> None:
    labels = model(X.double()).argmax(1).detach()
    labels[::3] = (labels[::3] + 1) % 3
    many, classes = X.repeat(8, 1) + 0.1 * torch.randn(96, 4), labels.repeat(8)
    detector = gradscore.Detector(
        model,
        losses=to_all_classes,
        alpha=0.5,
        meta={"Cs": [0.01], "cv_folds": 2},
        evaluate={"protocols": ["auxiliary"]},
    ).fit((many, classes))
    assert any(name.startswith("to_all_classes/") for name in detector.bundle.columns)


OF_LOGITS = r"def loss\(logits\): \.\.\. from logits \(N, K\) to the loss of each sample \(N,\)"
MISTAKES: dict[str, tuple[Callable[..., Any], type[GradscoreError], str]] = {
    "no argument": (lambda: X, ConfigError, rf"wanted {OF_LOGITS}; or, for any model, def loss\(model, batch\)"),
    "three arguments": (lambda model, inputs, labels: X, ConfigError, rf"got custom\(model, .*wanted {OF_LOGITS}"),
    "labels beside logits": (lambda logits, labels: X, ConfigError, rf"wanted {OF_LOGITS}"),
    "the wrong way round": (lambda batch, model: X, ConfigError, r"def loss\(model, batch\)"),
    "by keyword": (lambda *, logits: X, ConfigError, rf"wanted {OF_LOGITS}"),
    "a mean": (lambda logits: logits.mean(), EngineError, rf"wanted one value .*\(\d+,\), got shape \(\): {OF_LOGITS}"),
    "a number": (lambda logits: 1.0, EngineError, r"got float"),
    "a value for each class": (lambda logits: logits, EngineError, r"got shape \(\d+, 3\)"),
    "no gradient": (lambda logits: logits.detach().amax(1), EngineError, r"no gradient with respect to the logits"),
    "a failure": (lambda logits: logits[:, 9], EngineError, rf"IndexError.*wanted {OF_LOGITS}"),
    "a module of torch": (nn.CrossEntropyLoss(), EngineError, r"wanted def loss\(model, batch\)"),
}


@pytest.mark.parametrize(("loss", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_answered_with_the_signature(model: nn.Module, loss: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        gradscore.features(model, X if error is not EngineError else [X.double()], losses=loss)
