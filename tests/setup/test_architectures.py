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


HARDER = {
    "the shortest name of several": "vit_small_patch16_224",
    "layers are tried while it is made": "tinynet_e",
    "a parameter is replaced while it is made": "deit_tiny_distilled_patch16_224",
}


@pytest.mark.parametrize("name", HARDER.values(), ids=HARDER)
def test_recognised_without_a_hint(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the families of these; that networks of all families are only begun is tested below."""
    families = timm.list_models(["*tinynet*", "*vit_*224*", "deit*"])
    monkeypatch.setattr(timm, "list_models", lambda: families)
    assert recognised(shapes_of(timm.create_model(name, num_classes=3).state_dict())).source == f"timm:{name}"


def test_a_network_that_is_pruned_while_it_is_made_is_recognised_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    family = timm.list_models("*resnet50*")
    monkeypatch.setattr(timm, "list_models", lambda: family)
    state = shapes_of(timm.create_model("ecaresnet50d_pruned", num_classes=3).state_dict())
    assert recognised(state, hint="ecaresnet50d_pruned").source == "timm:ecaresnet50d_pruned"


@pytest.mark.parametrize("hint", ["", "tf_mobilenetv3_small_075"])
def test_all_networks_with_the_same_parameters_are_named(hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["mobilenetv3_small_075", "tf_mobilenetv3_small_075"]
    monkeypatch.setattr(timm, "list_models", lambda: [*names, "mobilenetv3_small_100"])
    one, other = (timm.create_model(name, num_classes=3).eval() for name in names)
    other.load_state_dict(one.state_dict())
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(one(images), other(images))
    found = recognised(shapes_of(one.state_dict()), hint=hint)
    assert {found.source, *(f"timm:{name}" for name in found.others)} == {f"timm:{name}" for name in names}
    assert found.source == f"timm:{hint or names[0]}"


def test_of_networks_with_the_same_parameters_the_hint_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    family = timm.list_models("*small_patch16*")
    monkeypatch.setattr(timm, "list_models", lambda: family)
    state = shapes_of(timm.create_model("vit_small_patch16_224", num_classes=3).state_dict())
    assert recognised(state, hint="my_deit_small_patch16_224").source == "timm:deit_small_patch16_224"


def test_other_networks_are_not_guessed_and_only_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    other = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    finished: list[nn.Module] = []
    monkeypatch.setattr("gradscore.setup.architectures.shapes_of", lambda state: finished.append(state) or {})
    assert recognised(shapes_of(other.state_dict())) is None
    assert finished == []


def test_nothing_is_left_behind() -> None:
    state = shapes_of(models.resnet18().state_dict())
    before = torch.random.get_rng_state()
    recognised(state, hint="resnet18")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.empty(1).device.type == "cpu"


BESIDE = {
    "nothing": ({}, ()),
    "a loss": ({"criterion.weight": torch.ones(3)}, ("model.",)),
    "a count of averaged weights": ({"n_averaged": torch.tensor(3)}, ("model.",)),
    "an average": ({"ema_model.weight": torch.ones(3)}, ("model.", "ema_model.")),
}


@pytest.mark.parametrize(("beside", "prefixes"), BESIDE.values(), ids=BESIDE)
def test_a_network_is_recognised_in_the_checkpoint_of_a_training_loop(beside: dict, prefixes: tuple[str, ...]) -> None:
    state = {f"model.{name}": value for name, value in models.resnet18(num_classes=3).state_dict().items()}
    inside, found = unwrapped(shapes_of(state | beside))
    assert (recognised(inside, hint="resnet18").source, found) == ("torchvision:resnet18", prefixes)


SORTED = {
    "a hidden layer that sorts after the head": (
        {"body.weight": (16, 1, 3, 3), "head.weight": (8, 128), "hidden.weight": (128, 576)},
        8,
    ),
    "more classes than hidden units": ({"0.weight": (10, 784), "2.weight": (100, 10)}, 100),
    "words": ({"embedding.weight": (5000, 32), "out.weight": (4, 32), "within.weight": (32, 32)}, 4),
}


@pytest.mark.parametrize(("state", "classes"), SORTED.values(), ids=SORTED)
def test_of_sorted_names_the_weight_that_no_other_takes_makes_the_logits(
    state: dict[str, tuple[int, ...]], classes: int
) -> None:
    found = class_count(state)
    assert found is not None
    assert found[1] == classes
