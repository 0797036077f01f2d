"""Whatever setting changes a value changes the identity of a run, and no other does; every setting says which it is."""

import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gradscore.config import Config
from gradscore.data.sources import SOURCES
from gradscore.models import group_parameters, weights_sha256
from gradscore.store import RunInputs, describe_inputs
from gradscore.store.manifest import differences
from gradscore.system import Influence, Section, influence_of


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """The sections that a type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in typing.get_args(annotation):
        yield from sections_in(part)


def leaves(section: type[Section], path: str = "") -> Iterator[tuple[str, type[Section], str]]:
    """Every setting that is no section itself: its dotted path, the section that has it, its name."""
    for name, field in section.model_fields.items():
        inner = list(sections_in(field.annotation))
        for each in inner:
            yield from leaves(each, f"{path}{name}.")
        if not inner:
            yield f"{path}{name}", section, name


SETTINGS = {path: (section, name) for path, section, name in leaves(Config)}


def test_every_setting_says_what_it_is_and_what_it_influences() -> None:
    """By a text below it, and by a type of gradscore.system."""
    silent = [
        path
        for path, (section, name) in SETTINGS.items()
        if influence_of(section, name) is None or not section.model_fields[name].description
    ]
    assert silent == []


def settings() -> dict[str, Any]:
    return {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 3},
        "data": {
            "in_dist": {
                "fit": {"source": "sklearn:digits"},
                "test": {"source": "sklearn:digits"},
                "calibration": {"source": "sklearn:digits"},
                "bank": {"source": "sklearn:digits"},
            },
            "ood": [{"name": "noise", "source": "synthetic:uniform_noise"}],
            "shifted": [{"name": "blurred", "source": "corrupted:blur"}],
        },
        "run": "run",
    }


SET = {
    "source": "npz:other.npz",
    "arguments": {"seed": 1},
    "select.classes": [0],
    "select.count": 5,
    "select.start": 5,
    "select.stop": 5,
    "select.hash": [0.0, 0.5],
    "select.lot": [0.0, 0.5],
    "select.seed": 1,
    "label_map": {0: 1},
}
OTHER: dict[str, Any] = {
    "model.source": "torchvision:resnet34",
    "model.arguments": {"width": 2},
    "model.num_classes": 4,
    "model.output": "logits",
    "preprocessing.resize": 9,
    "preprocessing.crop": 8,
    "preprocessing.channels": 1,
    "preprocessing.mean": {"mean": [0.5], "std": [1.0]},
    "preprocessing.std": {"mean": [0.0], "std": [0.5]},
    "preprocessing.max_length": {"processor": "elsewhere", "max_length": 9},
    "preprocessing.weights": "ResNet18_Weights.IMAGENET1K_V1",
    **{f"data.in_dist.fit.{name}": value for name, value in SET.items()},
    **{f"data.in_dist.test.{name}": value for name, value in SET.items()},
    **{f"data.in_dist.calibration.{name}": value for name, value in SET.items()},
    **{f"data.in_dist.bank.{name}": value for name, value in SET.items()},
    **{f"data.ood.{name}": value for name, value in SET.items()},
    **{f"data.shifted.{name}": value for name, value in SET.items()},
    "features.losses": ["entropy"],
    "features.statistics": ["l2"],
    "features.parameters": ["*.weight"],
    "features.granularity": "model",
    "features.penultimate": "fc",
    "features.augmentations": ["mirror"],
    "features.average_gradients": {"average_gradients": ["mirror"], "augmentations": ["mirror"]},
    "features.autocast": "bf16",
    "extract.batch_size": 2,
    "extract.device": "cuda",
    "extract.on_error": "skip",
    "extract.part_size": 3,
    "extract.seed": 1,
}
"""Another value for each setting that influences features; where two go together, for both."""

HARMLESS: dict[str, Any] = {
    "model.checkpoint": "elsewhere.pt",
    "model.prefix": "net.",
    "preprocessing.processor": "elsewhere",
    "model.declared_accuracy": 0.5,
    "data.class_names": ["a", "b", "c"],
    "data.ood.group": "far",
    "data.ood.auxiliary": True,
    "extract.workers": 3,
    "meta.cv_folds": 3,
    "meta.seed": 1,
    "meta.Cs": [1.0],
    "meta.boosts": [1.0],
    "evaluate.protocols": ["known"],
    "evaluate.near_duplicates": "ignore",
    "run": "elsewhere",
}
NAMES_OF_SETS = {"data.ood.name", "data.shifted.name"}
"""They name splits, which are compared by name."""

MADE_OF_OTHERS = {"data.auxiliary"}
"""It fills in another setting, which is compared."""


def test_there_is_another_value_for_every_setting() -> None:
    features = {path for path, place in SETTINGS.items() if influence_of(*place) is Influence.FEATURES}
    assert features == set(OTHER)
    assert set(SETTINGS) - features == set(HARMLESS) | NAMES_OF_SETS | MADE_OF_OTHERS


def changed(path: str, value: Any) -> dict[str, Any]:
    """The settings with another value at a dotted path; a value that is a mapping of siblings replaces them all."""
    found = settings()
    *parents, name = path.split(".")
    place: Any = found
    for parent in parents:
        place = place.setdefault(parent, {})
        place = place[0] if isinstance(place, list) else place
    siblings = value if isinstance(value, dict) and name in value else {name: value}
    place |= siblings
    return found


def identity(settings: dict[str, Any]) -> RunInputs:
    config = Config.model_validate(settings)
    model = nn.Sequential(nn.Linear(2, 3))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    features = config.features
    return describe_inputs(
        config,
        weights_sha256=weights_sha256(model),
        dtype="float32",
        device="cpu" if config.extract.device == "auto" else config.extract.device,
        groups=group_parameters(model, features.parameters, granularity=features.granularity),
        fingerprints=dict.fromkeys(
            ["in_dist.fit", "in_dist.test", "in_dist.calibration", "in_dist.bank", "ood.noise", "shifted.blurred"],
            "same",
        ),
        penultimate={True: "0", False: None}.get(features.penultimate, features.penultimate),
    )


def test_what_influences_features_is_part_of_the_identity_and_nothing_else() -> None:
    before = identity(settings())
    part_of_it = [path for path, value in (OTHER | HARMLESS).items() if identity(changed(path, value)) != before]
    assert part_of_it == list(OTHER)


def test_code_of_every_kind_of_source_that_runs_some_is_part_of_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES._entries, "mine", replace(SOURCES["python"], form="mine:<file.py>:<function>"))
    code = tmp_path / "data.py"
    hashes = []
    for text in ("a = 1\n", "a = 2\n"):
        code.write_text(text)
        inputs = identity(changed("data.in_dist.test.source", f"mine:{code}:samples"))
        hashes.append(inputs.data["in_dist.test"].code_sha256)
    assert None not in hashes
    assert hashes[0] != hashes[1]


def test_long_settings_are_shown_where_they_differ() -> None:
    path = "/a/long/path/to/the/folder/of/{}/with/images/in/it/for/tests"
    (said,) = differences({"source": path.format("first")}, {"source": path.format("second")})
    assert "folder/of/first/with" in said
    assert "folder/of/second/with" in said
