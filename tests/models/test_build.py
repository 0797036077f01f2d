"""Models from their sources and checkpoints, and every way in which these can be unusable."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from trusted import built

from gradscore.errors import ModelError
from gradscore.models import ModelConfig, build_model, trusting_code

SOURCE = """
from torch import nn


def net(outputs=4):
    model = nn.Sequential(nn.Linear(3, outputs), nn.Dropout(), nn.BatchNorm1d(outputs))
    return model.requires_grad_(False)
"""


def make_config(source: str, **settings: object) -> ModelConfig:
    return ModelConfig.model_validate({"source": source, "checkpoint": None, "num_classes": 4, **settings})


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(SOURCE)
    return f"python:{tmp_path / 'net.py'}"


def test_model_is_ready_to_compute_gradients(source: str) -> None:
    model = built(make_config(f"{source}:net"))
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in model.parameters())


def test_a_dotted_module_is_a_source() -> None:
    config = make_config("python:torch.nn:Linear", arguments={"in_features": 5, "out_features": 2})
    assert built(config)(torch.zeros(1, 5)).shape == (1, 2)


def test_torchvision_models_take_arguments() -> None:
    config = make_config("torchvision:squeezenet1_1", arguments={"num_classes": 4})
    model = build_model(config).model
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_235_496 - 996 * 513  # less 996 classes


def test_code_is_trusted_through_the_environment(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSCORE_TRUST_CODE", "1")
    assert isinstance(build_model(make_config(f"{source}:net")).model, nn.Sequential)


UNTRUSTED = {"not set": "", "set to something else": "yes"}


@pytest.mark.parametrize("value", UNTRUSTED.values(), ids=UNTRUSTED)
def test_untrusted_code_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GRADSCORE_TRUST_CODE", value)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="--trust-code or set GRADSCORE_TRUST_CODE=1"):
        build_model(make_config(f"python:{tmp_path}/evil.py:net"))
    assert not (tmp_path / "ran").exists()


def test_trust_ends_with_its_block_and_at_the_border_of_its_thread(source: str) -> None:
    with trusting_code(), ThreadPoolExecutor(1) as pool:
        build_model(make_config(f"{source}:net"))
        in_a_thread = pool.submit(build_model, make_config(f"{source}:net"))
    with pytest.raises(ModelError, match="runs the code in"):
        in_a_thread.result()
    with pytest.raises(ModelError, match="runs the code in"):
        build_model(make_config(f"{source}:net"))


BAD_SOURCES = {
    "unknown kind": ("keras:vgg", {}, "wanted torchvision:<name>, timm:<name>, .*; valid: torchvision, timm"),
    "unknown torchvision model": ("torchvision:resnet81", {}, r"; did you mean 'resnet18'\?$"),
    "unknown torchvision argument": ("torchvision:resnet18", {"depth": 3}, "unexpected keyword argument 'depth'"),
    "weights that would be downloaded": ("torchvision:resnet18", {"weights": "DEFAULT"}, "model.checkpoint"),
    "no factory named": ("python:torch.nn", {}, "wanted python:<file.py or module>:<function>"),
    "missing file": ("python:/nowhere/net.py:net", {}, "/nowhere/net.py does not exist"),
}


@pytest.mark.parametrize(("name", "arguments", "message"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_unusable_source(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built(make_config(name, arguments=arguments))


BAD_CODE = {
    "no such function": (SOURCE, "has no function 'net_of_others'"),
    "a function that raises": ("def net_of_others():\n    raise KeyError('a block')", "KeyError: 'a block'"),
    "no module": ("def net_of_others():\n    pass", "returned NoneType, wanted a torch.nn.Module"),
    "syntax": ("def net(:", "importing the model source .*net.py failed: SyntaxError"),
    "import": ("import not_there_at_all", "importing the model source .*net.py failed: ModuleNotFoundError"),
}


@pytest.mark.parametrize(("code", "message"), BAD_CODE.values(), ids=BAD_CODE)
def test_unusable_code(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(ModelError, match=message):
        built(make_config(f"python:{tmp_path}/net.py:net_of_others"))
