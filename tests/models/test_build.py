"""Models from their sources and checkpoints, and every way in which these can be unusable."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gradscore.errors import ModelError
from gradscore.models.build import build_model, load_checkpoint
from gradscore.models.settings import ModelConfig

SOURCE = """
from torch import nn

number = 3


def net(outputs=4):
    model = nn.Sequential(nn.Linear(3, outputs), nn.Dropout(), nn.BatchNorm1d(outputs))
    return model.requires_grad_(False)


def failing():
    raise KeyError("no such block")


def nothing():
    return None
"""


def make_net(outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, outputs), nn.Dropout(), nn.BatchNorm1d(outputs))


def make_config(source: str, **settings: object) -> ModelConfig:
    return ModelConfig.model_validate({"source": source, "checkpoint": None, "num_classes": 4, **settings})


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(SOURCE)
    return f"python:{tmp_path / 'net.py'}"


def save_half(content: object, path: Path) -> None:
    torch.save(content, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def save_half_safetensors(content: dict, path: Path) -> None:
    save_file(content, path)
    path.write_bytes(path.read_bytes()[:-5])


def test_model_is_ready_to_compute_gradients(source: str) -> None:
    model = build_model(make_config(f"{source}:net"), trust_code=True)
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in model.parameters())


def test_arguments_reach_the_factory(source: str) -> None:
    model = build_model(make_config(f"{source}:net", arguments={"outputs": 7}), trust_code=True)
    assert model(torch.zeros(2, 3)).shape == (2, 7)


def test_a_dotted_module_is_a_source() -> None:
    config = make_config("python:torch.nn:Linear", arguments={"in_features": 5, "out_features": 2})
    assert build_model(config, trust_code=True)(torch.zeros(1, 5)).shape == (1, 2)


def test_torchvision_models_take_arguments() -> None:
    config = make_config("torchvision:squeezenet1_1", arguments={"num_classes": 4})
    model = build_model(config, trust_code=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_235_496 - 996 * 513  # less 996 classes


def test_code_is_trusted_through_the_environment(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSCORE_TRUST_CODE", "1")
    assert isinstance(build_model(make_config(f"{source}:net"), trust_code=False), nn.Sequential)


UNTRUSTED = {"not set": "", "set to 0": "0", "set to something else": "yes"}


@pytest.mark.parametrize("value", UNTRUSTED.values(), ids=UNTRUSTED)
def test_untrusted_code_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GRADSCORE_TRUST_CODE", value)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="--trust-code or GRADSCORE_TRUST_CODE=1"):
        build_model(make_config(f"python:{tmp_path}/evil.py:net"), trust_code=False)
    assert not (tmp_path / "ran").exists()


BAD_SOURCES = {
    "unknown kind": ("keras:vgg", {}, "wanted torchvision:<name> or python:"),
    "unknown torchvision model": ("torchvision:resnet81", {}, "did you mean resnet18"),
    "torchvision model of another task": ("torchvision:fcn_resnet50", {}, "has no classifier"),
    "unknown torchvision argument": ("torchvision:resnet18", {"depth": 3}, "unexpected keyword argument 'depth'"),
    "weights that would be downloaded": ("torchvision:resnet18", {"weights": "DEFAULT"}, "model.checkpoint"),
    "no factory named": ("python:torch.nn", {}, "wanted python:<file.py or module>:<factory>"),
    "missing file": ("python:/nowhere/net.py:net", {}, "/nowhere/net.py does not exist"),
    "missing module": ("python:not_there_at_all:net", {}, "No module named 'not_there_at_all'"),
}


@pytest.mark.parametrize(("name", "arguments", "message"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_unusable_source(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(make_config(name, arguments=arguments), trust_code=True)


BAD_FACTORIES = {
    "missing": ("other", {}, "has no function 'other'"),
    "not callable": ("number", {}, "has no function 'number'"),
    "raises": ("failing", {}, "KeyError: 'no such block'"),
    "returns no module": ("nothing", {}, "returned NoneType, wanted a torch.nn.Module"),
    "unknown argument": ("net", {"width": 2}, "unexpected keyword argument 'width'; check model.arguments"),
}


@pytest.mark.parametrize(("factory", "arguments", "message"), BAD_FACTORIES.values(), ids=BAD_FACTORIES)
def test_unusable_factory(source: str, factory: str, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(make_config(f"{source}:{factory}", arguments=arguments), trust_code=True)


BAD_CODE = {"syntax": ("def net(:", "SyntaxError"), "import": ("import not_there_at_all", "ModuleNotFoundError")}


@pytest.mark.parametrize(("code", "message"), BAD_CODE.values(), ids=BAD_CODE)
def test_source_file_that_does_not_import(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(ModelError, match=f"importing the model source .*net.py failed: {message}"):
        build_model(make_config(f"python:{tmp_path}/net.py:net"), trust_code=True)


CHECKPOINTS = {
    "safetensors": ("model.safetensors", save_file, lambda state: state),
    "pt": ("model.pt", torch.save, lambda state: state),
    "pth": ("model.pth", torch.save, lambda state: state),
    "nested under state_dict": ("model.pt", torch.save, lambda state: {"epoch": 3, "state_dict": state}),
    "nested under model": ("model.pt", torch.save, lambda state: {"model": state, "optimizer": {}}),
    "module. prefix": ("model.pt", torch.save, lambda state: {f"module.{name}": state[name] for name in state}),
    "nested and prefixed": (
        "model.pt",
        torch.save,
        lambda state: {"state_dict": {f"module.{name}": state[name] for name in state}},
    ),
}


@pytest.mark.parametrize(("name", "save", "wrap"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoint_is_loaded(tmp_path: Path, source: str, name: str, save, wrap) -> None:
    state = make_net().state_dict()
    save(wrap(state), tmp_path / name)
    model = build_model(make_config(f"{source}:net", checkpoint=tmp_path / name), trust_code=True)
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


def test_checkpoint_without_step_counters_is_loaded(tmp_path: Path) -> None:
    state = make_net().state_dict()
    del state["2.num_batches_tracked"]
    torch.save(state, tmp_path / "model.pt")
    model = make_net()
    load_checkpoint(model, tmp_path / "model.pt")
    assert torch.equal(model.state_dict()["0.weight"], state["0.weight"])


STATE = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
MANY = {f"extra{number}": torch.zeros(1) for number in range(20)}
MISFITS = {
    "missing": ({"weight": STATE["weight"]}, "1 missing: bias"),
    "unexpected": ({**STATE, "scale": torch.zeros(1)}, "1 unexpected: scale"),
    "wrong shape": ({**STATE, "bias": torch.zeros(5)}, r"bias \(model \(2,\), file \(5,\)\)"),
    "a long list": ({**STATE, **MANY}, r"20 unexpected: extra0, .*, extra7 and 12 more\."),
    "not tensors": ({**STATE, "epoch": 3}, "1 entries that are not tensors: epoch"),
    "a list": ([1, 2], "holds list, wanted a state dict"),
    "nothing": ({}, "holds dict, wanted a state dict"),
}


@pytest.mark.parametrize(("state", "message"), MISFITS.values(), ids=MISFITS)
def test_checkpoint_that_does_not_fit(tmp_path: Path, state: object, message: str) -> None:
    torch.save(state, tmp_path / "model.pt")
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with pytest.raises(ModelError, match=message):
        load_checkpoint(model, tmp_path / "model.pt")
    assert torch.equal(model.weight, before)


DAMAGED = {
    "truncated pt": ("model.pt", save_half, "cannot be read"),
    "truncated safetensors": ("model.safetensors", save_half_safetensors, "is it damaged"),
    "empty pt": ("model.pt", lambda _, path: path.write_bytes(b""), "is it damaged"),
    "empty safetensors": ("model.safetensors", lambda _, path: path.write_bytes(b""), "is it damaged"),
    "text": ("model.pt", lambda _, path: path.write_text("hello"), "model.pt"),
    "unknown extension": ("model.onnx", save_file, "wanted .safetensors, .pt or .pth, got .onnx"),
    "missing": ("model.pt", lambda _, path: None, "does not exist"),
}


@pytest.mark.parametrize(("name", "save", "message"), DAMAGED.values(), ids=DAMAGED)
def test_unreadable_checkpoint(tmp_path: Path, name: str, save, message: str) -> None:
    save(STATE, tmp_path / name)
    with pytest.raises(ModelError, match=message):
        load_checkpoint(nn.Linear(3, 2), tmp_path / name)


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


LEGACY = {"zip format": True, "legacy format": False}


@pytest.mark.parametrize("zipped", LEGACY.values(), ids=LEGACY)
def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save({**STATE, "extra": Payload(tmp_path / "ran")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match="holds more than plain weights and is refused"):
        load_checkpoint(nn.Linear(3, 2), path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()  # the payload is a real one
