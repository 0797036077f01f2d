"""The scripts behind the example configurations, on made data."""

import gzip
import hashlib
import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gradscore.config import load_config

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "data_scripts"


def load(name, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ARCHITECTURES = {
    "digits": ("digits_cnn", 8, (1, 8, 8), 38_152),
    "LeNet": ("lenet", 10, (1, 28, 28), 215_370),
    "ResNet-20": ("cifar_resnet20", 10, (3, 32, 32), 269_722),
}


@pytest.mark.parametrize(("name", "classes", "shape", "parameters"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_architectures(name, classes, shape, parameters, monkeypatch):
    model = getattr(load("architectures", monkeypatch), name)(classes)
    assert model(torch.zeros(2, *shape)).shape == (2, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_resnet20_has_the_published_names(monkeypatch):
    names = set(load("architectures", monkeypatch).cifar_resnet20().state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer2.0.conv1.weight", "layer3.2.bn2.bias", "linear.bias"} <= names
    assert not any("shortcut" in name for name in names)


def idx(array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}i", *array.shape)
    return header + array.tobytes()


@pytest.fixture
def folder(tmp_path):
    content = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content))
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(content)[:10] + b"\xff" * 30)
    (tmp_path / "digest").write_text(hashlib.sha256(content).hexdigest())
    return tmp_path


@pytest.mark.parametrize("name", ["packed", "plain"])
def test_reads_idx_files(name, folder, monkeypatch):
    digests = {name: (folder / "digest").read_text()}
    array = load("fashion_mnist", monkeypatch).read_idx(folder, name, digests)
    np.testing.assert_array_equal(array, np.arange(24).reshape(2, 3, 4))


BAD = {
    "missing": ("absent", "Install Debian's package"),
    "damaged": ("damaged", "cannot read"),
    "another file": ("plain", "has sha256"),
}


@pytest.mark.parametrize(("name", "message"), BAD.values(), ids=BAD)
def test_refuses_other_files(name, message, folder, monkeypatch):
    script = load("fashion_mnist", monkeypatch)
    with pytest.raises(script.DataNotHadError, match=message):
        script.read_idx(folder, name, {name: "0" * 64})


def test_without_data_the_script_says_so(tmp_path):
    command = [sys.executable, SCRIPTS / "fashion_mnist.py", "--source", tmp_path / "none", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot read")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_training_is_reproducible(monkeypatch, tmp_path):
    training = load("training", monkeypatch)
    images, labels = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    digests = []
    for run in range(2):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        training.train(model, images, labels, epochs=2, batch_size=8, rate=0.1)
        digests.append(training.save(model, tmp_path / f"{run}.safetensors"))
    assert digests[0] == digests[1]
    assert training.accuracy(model, images, labels) > 0.5


@pytest.mark.parametrize("name", ["digits", "fashion_mnist", "cifar10_resnet20"])
def test_configurations_are_valid(name, monkeypatch):
    monkeypatch.setenv("GRADSCORE_CIFAR10", "/data")
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    assert config.model.source.endswith(("digits_cnn", "lenet", "cifar_resnet20"))
    assert {entry.name for entry in config.data.ood if not entry.auxiliary} != set()
