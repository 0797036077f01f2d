"""Networks are found by the names and shapes of their parameters, whatever the number of classes."""

import importlib

import pytest
import torch
from torch import nn

from gradscore.setup.architectures import class_count, input_channels, recognised, shapes_of, unwrapped
from gradscore.system import import_torchvision

import_torchvision()
timm, models = importlib.import_module("timm"), importlib.import_module("torchvision.models")

NAMES = {
    "torchvision": ("torchvision:shufflenet_v2_x0_5", lambda: models.shufflenet_v2_x0_5(num_classes=7)),
    "computes while it is made": (
        "torchvision:regnet_y_400mf",
        lambda: models.regnet_y_400mf(num_classes=7),
    ),
    "timm": ("timm:test_vit", lambda: timm.create_model("test_vit", num_classes=7)),
}


@pytest.mark.parametrize(("source", "make"), NAMES.values(), ids=NAMES)
def test_recognised_by_parameters(source: str, make) -> None:
    state = shapes_of(make().state_dict())
    found = recognised(state, hint=source.partition(":")[2])
    assert found.source == source
    assert class_count(state)[1] == 7
    assert input_channels(state) == 3


def test_preprocessing_is_that_of_the_weights() -> None:
    found = recognised(shapes_of(models.resnet18().state_dict()), hint="my_resnet18_v2")
    assert found.source == "torchvision:resnet18"
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    assert found.preprocessing == {"resize": 256, "crop": 224, "mean": mean, "std": std}


def test_recognised_without_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["ghostnet_050", "mobilenetv3_small_050", "vit_tiny_patch16_224", "test_vit"]
    monkeypatch.setattr(timm, "list_models", lambda: names)
    assert recognised(shapes_of(timm.create_model("test_vit", num_classes=3).state_dict())).source == "timm:test_vit"


def test_other_networks_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscore.setup.architectures.find_spec", lambda name: None)
    other = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    assert recognised(shapes_of(other.state_dict())) is None


def test_nothing_is_left_behind() -> None:
    state = shapes_of(models.resnet18().state_dict())
    before = torch.random.get_rng_state()
    recognised(state, hint="resnet18")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.empty(1).device.type == "cpu"


BESIDE = {"nothing": ({}, None), "a loss": ({"criterion.weight": torch.ones(3)}, "model.")}


@pytest.mark.parametrize(("beside", "prefix"), BESIDE.values(), ids=BESIDE)
def test_a_network_is_recognised_in_the_checkpoint_of_a_training_loop(beside: dict, prefix: str | None) -> None:
    state = {f"model.{name}": value for name, value in models.resnet18(num_classes=3).state_dict().items()}
    inside, found = unwrapped(shapes_of(state | beside))
    assert (recognised(inside, hint="resnet18").source, found) == ("torchvision:resnet18", prefix)
