"""What doctor passes, the later commands get through; what they would refuse or misread, it does not pass."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradscore.config import Config
from gradscore.data import TEST
from gradscore.deployment import Scorer, make_bundle, write_bundle
from gradscore.doctor import check_config
from gradscore.doctor.checks import Diagnosis
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.models import trusting_code
from gradscore.pipeline import extract
from gradscore.store import RunFolder
from gradscore.system import import_torchvision

import_torchvision()
transformers = importlib.import_module("transformers")

CODE = """
from blocks import Net, loaded
import torch
from torch import nn


def plain():
    return loaded(Net())

class Wrapped(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.net, self.change = plain(), change

    def forward(self, x):
        return self.change(self.net(x), x)

def dictionary():
    return Wrapped(lambda z, x: {"scores": z, "features": x.flatten(1)})

def pair():
    return Wrapped(lambda z, x: (z, z + 1))


def renamed():
    return Wrapped(lambda z, x: z.roll(1, 1))

def untrained():
    return Net()
"""
BLOCKS = """
from pathlib import Path

import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))


def loaded(model):
    model.load_state_dict(torch.load(Path(__file__).parent / "net.pt", weights_only=True))
    return model
"""


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 8 - 1, torch.tensor(found.target)


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, *, steps: int = 120) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        found = model(inputs)
        nn.functional.cross_entropy(found if isinstance(found, Tensor) else found.logits, labels).backward()
        optimizer.step()
    return model.eval()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model in every form."""
    folder = tmp_path_factory.mktemp("zoo")
    torch.manual_seed(0)
    images, labels = digits()
    images, labels = images[600:], labels[600:]
    model = trained(net(), images, labels)
    (folder / "net.py").write_text(CODE)
    (folder / "blocks.py").write_text(BLOCKS)
    state = model.state_dict()
    torch.save(state, folder / "net.pt")
    torch.save({"state_dict": {f"model.{name}": each for name, each in state.items()}}, folder / "net.ckpt")
    torch.save({f"_orig_mod.module.{name}": each for name, each in state.items()}, folder / "net.bin")
    program = torch.export.export(model, (images[:3],), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(program, folder / "net.pt2")
    settings = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    vit = trained(transformers.ViTForImageClassification(settings), images, labels)
    vit.save_pretrained(folder / "vit")
    return folder


def zoo_config(home: Path, out: Path, model: dict, **sections: dict) -> Config:
    source = {"source": "sklearn:digits"}
    settings = {
        "model": {"checkpoint": None, "num_classes": 10, **model},
        "preprocessing": {"mean": [0.5], "std": [0.5]},
        "data": {
            "auxiliary": [],
            "in_dist": {
                "fit": {**source, "select": {"stop": 100}},
                "test": {**source, "select": {"start": 150, "stop": 250}},
                "calibration": {**source, "select": {"start": 300, "stop": 400}},
            },
            "ood": [{"source": "synthetic:gaussian_noise", "name": "noise", "select": {"stop": 60}}],
        },
        "features": {"statistics": ["l1", "l2"], "losses": ["uniform"]},
        "extract": {"device": "cpu"},
        "meta": {"Cs": [0.01], "cv_folds": 2},
        "evaluate": {"protocols": ["known"], "near_duplicates": "ignore"},
        "run": out / "run",
        **sections,
    }
    return Config.model_validate(settings, context={"base": home})


def at(source: str, **settings: object) -> dict:
    return {"source": source, **settings}


SOUND = {
    "a dictionary": at("python:net.py:dictionary"),
    "a tuple with a position": at("python:net.py:pair", output=0),
    "a checkpoint with two prefixes": at("python:net.py:untrained", checkpoint="net.bin"),
    "a program": at("program:net.pt2"),
    "a folder of transformers": at("transformers:vit"),
}


@pytest.fixture(autouse=True)
def trusting() -> Iterator[None]:
    """The code of the models is the tests' own."""
    with trusting_code():
        yield


@pytest.mark.parametrize("model", SOUND.values(), ids=SOUND)
def test_what_doctor_passes_gets_through(home: Path, tmp_path: Path, model: dict) -> None:
    config = zoo_config(home, tmp_path, model)
    diagnosis = check_config(config)
    assert diagnosis.usable, problems(diagnosis)
    extract(config)
    run = RunFolder(config.run)
    fit_run(run)
    assert evaluate_run(run).warnings == []
    bundle = make_bundle(run, alpha=0.2, model_source=config.model.source)
    write_bundle(tmp_path / "b.gradscore", bundle)
    scorer = Scorer.load(tmp_path / "b.gradscore", model_source=config.model.source)
    logits = run.read(TEST)[[f"logit_{place}" for place in range(10)]].to_numpy()
    raw = (load_digits().images[150:170] * 255 / 16).round().astype(np.uint8)[:, None]
    assert scorer(torch.from_numpy(raw))["prediction"].tolist() == logits[:20].argmax(1).tolist()


def problems(diagnosis: Diagnosis) -> str:
    return "\n".join(str(each) for each in diagnosis.remarks if each.severity == "problem")


def test_another_number_of_classes_does_not_pass(home: Path, tmp_path: Path) -> None:
    config = zoo_config(home, tmp_path, at("python:net.py:plain", num_classes=12))
    assert "returns 10 logits, num_classes says 12" in problems(check_config(config))


def test_classes_by_name_may_be_put_in_order(home: Path, tmp_path: Path) -> None:
    """As `run` says it: the list is what the network's outputs are in their order."""
    digits = load_digits()
    for place, (image, label) in enumerate(zip(digits.images[:400], digits.target[:400], strict=True)):
        folder = tmp_path / "digits" / f"{'abcdefghij'[label]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(folder / f"{place}.png")
    part = {"source": f"folder:{tmp_path / 'digits'}"}
    data = {"auxiliary": [], "in_dist": {"fit": part, "test": part}}
    found = problems(check_config(zoo_config(home, tmp_path, at("python:net.py:renamed"), data=data)))
    assert "set data.class_names to [j, a, b, c, d, e, f, g, h, i], or set label_map to {a: 1, b: 2" in found


def test_an_ood_set_that_the_model_cannot_take_does_not_pass(home: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for number in range(8):
        Image.new("L", (20, 20), number * 20).save(tmp_path / "far" / f"{number}.png")
    config = zoo_config(home, tmp_path, at("python:net.py:plain"))
    data = config.model_dump(mode="json")["data"]
    data["ood"].append({"name": "far", "source": f"folder:{tmp_path}/far"})
    found = problems(check_config(zoo_config(home, tmp_path, at("python:net.py:plain"), data=data)))
    assert re.search(r"samples of ood.far: the model cannot take images of shape \(1, 20, 20\)", found), found
