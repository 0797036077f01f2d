"""Every argument of every public name: of another kind than is wanted, it is refused by an error of gradscore's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradscore
from gradscore.errors import DataError, GradscoreError

OTHERWISE = {"Audit", "GradscoreError", "GradientMetricCollector", "GradientWarning", "Projections", "Report"}
"""What programs are given, kinds of errors, and what raises as the package it stands for does."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


MODEL = net()
X = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
Y = MODEL(X).argmax(1)
Y[::4] = 1 - Y[::4]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Each public function and method, and what it can be called with."""
    folder = tmp_path_factory.mktemp("arguments")
    detector = gradscore.Detector(MODEL, losses=["uniform"], meta={"Cs": [0.01], "cv_folds": 2})
    detector.fit((X, Y), ood={"far": 5 * X[:100]}, auxiliary=[])
    report = detector.evaluate((X[:200] + 0.1, Y[:200]), ood={"other": 4 * X[100:200]})
    bundle = detector.save(folder / "a.gradscore")
    projections = gradscore.project(MODEL, X[:8], dim=64, out=folder / "projections")
    scorer = detector.scorer
    return {
        "Detector": (gradscore.Detector, {"model": MODEL}),
        "Detector.fit": (gradscore.Detector(MODEL).fit, {"data": (X, Y)}),
        "Detector.score": (detector.score, {"data": X}),
        "Detector.evaluate": (detector.evaluate, {"test": (X, Y)}),
        "Detector.save": (detector.save, {"path": folder / "b.gradscore"}),
        "Detector.load": (gradscore.Detector.load, {"path": bundle, "model": MODEL}),
        "Report.save": (report.save, {"path": folder / "a.html"}),
        "Engine": (gradscore.Engine, {"parameters": dict(MODEL.named_parameters())}),
        "Monitor": (gradscore.Monitor, {"bundle": scorer.bundle}),
        "Monitor.load": (gradscore.Monitor.load, {"path": bundle}),
        "Projections.dot": (projections.dot, {}),
        "Projections.cosines": (projections.cosines, {}),
        "Projections.nearest": (projections.nearest, {}),
        "Projections.own_places": (projections.own_places, {}),
        "Projections.concatenated": (gradscore.Projections.concatenated, {"parts": [projections]}),
        "Scorer": (gradscore.Scorer, {"bundle": scorer.bundle, "model": MODEL}),
        "Scorer.__call__": (scorer.__call__, {"images": X}),
        "Scorer.judge": (scorer.judge, {"batch": X}),
        "Scorer.load": (gradscore.Scorer.load, {"path": bundle, "model": MODEL}),
        "audit": (gradscore.audit, {"model": MODEL, "data": (X, Y)}),
        "check_model": (gradscore.check_model, {"model": MODEL, "batch": X}),
        "features": (gradscore.features, {"model": MODEL, "data": X}),
        "load_projections": (gradscore.load_projections, {"path": folder / "projections"}),
        "project": (gradscore.project, {"model": MODEL, "data": X}),
    }


def arguments() -> Iterator[tuple[str, str]]:
    for name in sorted(set(gradscore.__all__) - OTHERWISE | {"Projections", "Report"}):
        found = getattr(gradscore, name)
        if inspect.isclass(found):
            skipped = {"Projections", "Report"}  # made by the library
            methods = {
                "Detector": ["fit", "score", "evaluate", "save", "load"],
                "Monitor": ["load"],
                "Projections": ["dot", "cosines", "nearest", "own_places", "concatenated"],
                "Report": ["save"],
                "Scorer": ["__call__", "judge", "load"],
            }.get(name, [])
            doors = {f"{name}.{each}": getattr(found, each) for each in methods}
            doors |= {} if name in skipped else {name: found}
        else:
            doors = {name: found} if inspect.isfunction(found) else {}
        for door, function in doors.items():
            for parameter in inspect.signature(function).parameters.values():
                if parameter.name != "self" and parameter.kind != parameter.VAR_KEYWORD:
                    yield door, parameter.name


class Anything:
    """No text, number, list, mapping, model or function."""


@pytest.mark.parametrize(("name", "argument"), list(arguments()), ids=str)
def test_an_argument_of_another_kind_is_refused(calls, name: str, argument: str) -> None:
    function, given = calls[name]
    with pytest.raises(GradscoreError, match=r"wanted|got|is neither|no samples"):
        function(**{**given, argument: Anything()})


OFTEN_WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a score as a number": ("Detector", {"scores": 3}, "Detector: scores: wanted text or a list of text, got 3 (int)"),
    "a list of numbers as scores": (
        "Detector",
        {"scores": [1]},
        "Detector: scores: wanted text or a list of text, got [1] (list)",
    ),
    "a list as recipe": (
        "Detector",
        {"recipe": [1]},
        "Detector: recipe: wanted text, a dict with names as keys or None, got [1] (list)",
    ),
    "a number as path": ("Detector.save", {"path": 3}, "Detector.save: path: wanted text or a path, got 3 (int)"),
    "text for yes or no": (
        "Detector.load",
        {"trust_code": "no"},
        "Detector.load: trust_code: wanted True or False, got 'no' (str)",
    ),
    "a path as bundle": ("Monitor", {"bundle": "a"}, "Monitor: bundle: wanted a Bundle, got 'a' (str)"),
    "a class as model": ("features", {"model": nn.Linear}, "features: model: wanted a torch.nn.Module, got Linear"),
    "another word": (
        "Projections.nearest",
        {"similarity": "l2"},
        "Projections.nearest: similarity: wanted one of cosine, dot, got 'l2' (str)",
    ),
}


@pytest.mark.parametrize(("name", "wrong", "message"), OFTEN_WRONG.values(), ids=OFTEN_WRONG)
def test_messages_say_what_is_wanted(calls, name: str, wrong: dict[str, Any], message: str) -> None:
    function, given = calls[name]
    with pytest.raises(GradscoreError) as caught:
        function(**{**given, **wrong})
    assert str(caught.value) == message


def test_weights_may_be_text(calls, tmp_path: Path) -> None:
    function, given = calls["Scorer.load"]
    torch.save(MODEL.state_dict(), tmp_path / "net.pt")
    assert function(**given, weights=str(tmp_path / "net.pt")).bundle is not None


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("name", ["features", "check_model", "project", "Detector.fit", "Scorer.judge"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused_with_what_to_do(calls, name: str, layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
    function, given = calls[name]
    with pytest.raises(DataError, match=r"nested tensor.* pad them"):
        function(**{**given, [*given][-1]: nested})
    with pytest.raises(DataError, match=r"nested tensor.* pad them"):
        function(**{**given, [*given][-1]: {"x": nested}})
