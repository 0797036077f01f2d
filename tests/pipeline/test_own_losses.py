"""Losses that a program gives as functions of logits: beside those by name, and their mistakes."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gradscore
from gradscore.errors import ConfigError, CoupledSamplesError, EngineError, GradscoreError

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


def changing(logits: Tensor) -> Tensor:
    value = logits.logsumexp(1)
    with torch.no_grad():
        logits.zero_()
    return value


COUPLED = r"changes with the other samples of its batch, or from call to call"
WEIGHT = nn.Parameter(torch.ones(3, dtype=torch.float64))
OF_LOGITS = r"def loss\(logits\): \.\.\. from logits \(N, K\) to the loss of each sample \(N,\)"
MISTAKES: dict[str, tuple[Callable[..., Any], type[GradscoreError], str]] = {
    "three arguments": (lambda model, inputs, labels: X, ConfigError, rf"got custom\(model, .*wanted {OF_LOGITS}"),
    "the wrong way round": (lambda batch, model: X, ConfigError, r"def loss\(model, batch\)"),
    "by keyword": (lambda *, logits: X, ConfigError, rf"wanted {OF_LOGITS}"),
    "a mean": (lambda logits: logits.mean(), EngineError, rf"wanted one value .*\(\d+,\), got shape \(\): {OF_LOGITS}"),
    "a number": (lambda logits: 1.0, EngineError, r"got float"),
    "a value for each class": (lambda logits: logits, EngineError, r"got shape \(\d+, 3\)"),
    "values of the network": (
        lambda logits: WEIGHT.sum().expand(len(logits)),
        EngineError,
        r"no gradient with respect",
    ),
    "changes in place what it needs": (changing, EngineError, r"fails for logits .*inplace"),
    "complex values": (lambda logits: logits.sum(1).to(torch.complex128), EngineError, r"wanted real values"),
    "softmax over samples": (lambda logits: -logits.softmax(0).log().mean(1), CoupledSamplesError, COUPLED),
    "sums along the batch": (lambda logits: logits.cumsum(0).sum(1), CoupledSamplesError, COUPLED),
    "random numbers": (lambda logits: torch.randn(len(logits)) * logits.sum(1), CoupledSamplesError, COUPLED),
    "a failure": (lambda logits: logits[:, 9], EngineError, rf"IndexError.*wanted {OF_LOGITS}"),
    "a module of torch": (nn.CrossEntropyLoss(), EngineError, r"wanted def loss\(model, batch\)"),
}


def test_one_sample_alone_shows_a_loss_across_samples(model: nn.Module) -> None:
    with pytest.raises(CoupledSamplesError, match=COUPLED):
        gradscore.features(model, X[:1].double(), losses=lambda logits: -logits.softmax(0).log().mean(1) * logits[:, 0])


def test_a_loss_cannot_change_the_logits(model: nn.Module) -> None:
    def loss(logits: Tensor) -> Tensor:
        value = logits.sum(1)
        with torch.no_grad():
            logits.zero_()
        return value

    table = gradscore.features(model, X.double(), losses=loss)
    assert table["logit_0"].to_numpy() == pytest.approx(model(X.double())[:, 0].detach().numpy())


@pytest.mark.parametrize(("loss", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_answered_with_the_signature(model: nn.Module, loss: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        gradscore.features(model, X if issubclass(error, ConfigError) else [X.double()], losses=loss)


class LooksAtFirst(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows + rows[:1].detach()


class LooksAtPlace(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows * (1 + torch.arange(len(rows), dtype=rows.dtype)[:, None])


class Sorts(nn.Module):
    """As sequences are packed, but not put back."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows[rows[:, 0].argsort()]


@pytest.mark.parametrize("kind", [LooksAtFirst, LooksAtPlace, Sorts])
def test_networks_that_mix_samples_are_refused_whichever_comes_first(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), kind(), nn.Linear(5, 3)).eval()
    with pytest.raises(CoupledSamplesError, match="changes with the other samples of its batch"):
        gradscore.features(model, X.float())


class CentredBackwards(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        found = rows.clone()
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient - gradient.mean(0, keepdim=True))
        return found


@pytest.mark.parametrize("losses", ["uniform", lambda model, rows: model(rows).square().sum(1)], ids=["name", "own"])
def test_a_backward_pass_that_mixes_samples_is_refused(losses: Any) -> None:
    torch.manual_seed(0)
    data = X.float() if losses == "uniform" else X.float().split(6)
    model = nn.Sequential(nn.Linear(4, 5), CentredBackwards(), nn.Linear(5, 3)).eval()
    with pytest.raises(
        CoupledSamplesError, match=r"gradient of a sample('s loss)? changes with the other samples of its"
    ):
        gradscore.features(model, data, losses=losses)


class Spectrum(nn.Module):
    """Filters of complex numbers, whose gradients are alike but for rounding far below what float32 can square."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.last = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(torch.fft.irfft(torch.fft.rfft(rows) * self.filter, n=4))


def test_gradients_of_complex_parameters_are_compared() -> None:
    torch.manual_seed(0)
    model = Spectrum().double().eval()
    found = gradscore.features(
        model, list(X.double().split(6)), losses=lambda model, rows: model(rows).square().sum(1), statistics="l2"
    )
    wanted = [
        float(torch.autograd.grad(model(row[None]).square().sum(), model.filter)[0].abs().square().sum().sqrt())
        for row in X.double()
    ]
    (name,) = [name for name in found if "/filter/" in name]
    assert found[name].tolist() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.filterwarnings("ignore:0.weight. frozen", "ignore:0.bias. frozen")
@pytest.mark.parametrize("losses", ["uniform", lambda model, rows: model(rows).square().sum(1)], ids=["name", "own"])
def test_where_only_frozen_parameters_are_chosen_there_is_no_gradient_to_compare(losses: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).eval()
    model[0].requires_grad_(False)
    data = X.float() if losses == "uniform" else [X.float()]
    with pytest.warns(gradscore.GradientWarning, match="its gradients are zero for all 12"):
        found = gradscore.features(model, data, losses=losses, statistics=["l2"], parameters=["0.*"])
    assert not found.filter(like="/0.").to_numpy().any()
