"""One of everything that can be added, by a program of one's own: CONTRIBUTING.md says how, here it is done."""

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

pytestmark = pytest.mark.slow

ADDED = '''
import numpy as np
import torch

from gradscore.baselines import BASELINES, of_logits
from gradscore.data import (
    AUGMENTATIONS, SOURCES, SYNTHETIC, ArraySource, AugmentationKind, Request, SourceKind, SyntheticKind,
)
from gradscore.gradients import RULES, Dense, Gradients, PerSample, Use, output_gradient
from gradscore.inspect import QUANTITIES, OutputQuantity
from gradscore.losses import LOSSES, Loss, normalised
from gradscore.statistics import STATISTICS, Statistic


def lead(logits):
    """How far the second class lies behind the first."""
    found = logits.double().topk(2)
    gradient = torch.zeros_like(logits, dtype=torch.float64)
    gradient.scatter_(1, found.indices, torch.tensor([[-1.0, 1.0]], dtype=torch.float64).expand(len(logits), 2))
    return normalised(gradient, torch.zeros(len(logits)).double(), found.values[:, 1] - found.values[:, 0])


def negatives(request: Request):
    images = np.stack([255 - request.base.sample(place) for place in range(int(request.name))])
    return ArraySource(images, [str(place) for place in range(len(images))], None)


def upside_down(argument):
    return lambda images: images.flip(2)


class LargestOutput(OutputQuantity):
    """The largest output of a layer."""

    name = "largest output"
    title = "What layers return"
    captions = {"largest": "What a layer returns at most."}

    def observe(self, layer, module, output):
        self.record("largest", layer, output.detach().abs().max())


class Gain(torch.autograd.Function):
    """A factor for each feature, doubled."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return 2 * inputs * weight

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        return 2 * gradient * weight, 2 * (gradient * inputs).sum(0)


def gain(use: Use, gradients: Gradients) -> PerSample:
    """2 * inputs * weight."""
    inputs, _ = use.saved_tensors
    return Dense(2 * use.layout.samples_first(output_gradient(gradients) * inputs).sum(1))


LOSSES.add("toy_lead", Loss(head=lead, source="made up"))
STATISTICS.add(
    "toy_range",
    Statistic(
        summary="how far the elements reach", value=lambda found: found.maximum - found.minimum, extrema=True
    ),
)
SOURCES.add(
    "toy_negatives",
    SourceKind(
        open=negatives, form="toy_negatives:<count>", summary="the first fit images turned round", made_of_others=True
    ),
)
SYNTHETIC.add("toy_inside_out", SyntheticKind(lambda image, other, random: image ^ 255))
AUGMENTATIONS.add(
    "toy_upside_down",
    AugmentationKind(make=upside_down, form="toy_upside_down", summary="top and bottom change places"),
)
SECOND = of_logits(lambda logits: np.sort(logits, axis=1)[:, -2], summary="the second largest logit")
BASELINES.add("toy_second", SECOND)
QUANTITIES.add("toy_largest", LargestOutput)
RULES.add("GainBackward", gain)
'''

NET = """
import torch
from torch import nn

from toy import Gain


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 10)
        self.gain = nn.Parameter(torch.ones(12))

    def forward(self, images):
        return self.last(Gain.apply(self.first(images.flatten(1)).relu(), self.gain))
"""

CONFIG = """
model: {source: "python:net.py:Net", checkpoint: net.safetensors, num_classes: 10}
preprocessing: {mean: [0.5], std: [0.5]}
data:
  auxiliary: [toy_inside_out]
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 100}}
    test: {source: "sklearn:digits", select: {start: 100, stop: 200}}
  ood:
    - {name: turned, source: "toy_negatives:60"}
features: {losses: [toy_lead], statistics: [l1, toy_range], augmentations: [toy_upside_down], penultimate: false}
extract: {device: cpu}
meta: {Cs: [0.01], cv_folds: 2}
evaluate: {protocols: [known]}
run: run
"""

COMMANDS = {
    "extract": ["config.yaml", "--trust-code"],
    "fit-meta": ["run"],
    "evaluate": ["run"],
    "inspect": ["run", "--trust-code", "--quantities", "toy_largest", "--samples", "1000", "--batch-size", "100"],
}

ENDS = {"evaluate": 3}
"""Random weights are right by chance, of which there is no verdict."""

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from gradscore_cli.main import app

import toy

found = {name: CliRunner().invoke(app, [name, *given]) for name, given in json.loads(sys.argv[1]).items()}
print(json.dumps({name: [each.exit_code, each.output] for name, each in found.items()}))
"""

WEIGHTS = {
    "first.weight": (12, 64),
    "first.bias": (12,),
    "gain": (12,),
    "last.weight": (10, 12),
    "last.bias": (10,),
}


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in WEIGHTS.items()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str]]]:
    """A folder in which every command was run by a program that adds them; exit codes and what was printed."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "programs").mkdir()
    (folder / "programs" / "toy.py").write_text(ADDED)
    (folder / "net.py").write_text(NET)
    (folder / "config.yaml").write_text(CONFIG)
    save_file(weights(), folder / "net.safetensors")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "programs")},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return folder, {name: (code, said) for name, (code, said) in json.loads(found.stdout).items()}


def digits(start: int, stop: int) -> np.ndarray:
    return np.round(load_digits().images[start:stop] * (255 / 16))


SPLITS = {
    "in_dist.test": digits(100, 200),
    "ood.turned": 255 - digits(0, 60),
    "ood.toy_inside_out": 255 - digits(0, 100),
}


def by_hand(images: np.ndarray) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters and outputs of layers in float64, with a graph and without anything of the package."""
    held = {name: weight.double().requires_grad_() for name, weight in weights().items()}
    inputs = torch.from_numpy(images).flatten(1) / 127.5 - 1
    first = inputs @ held["first.weight"].T + held["first.bias"]
    return held, {"first": first, "last": (first.relu() * 2 * held["gain"]) @ held["last.weight"].T + held["last.bias"]}


def features_by_hand(images: np.ndarray) -> pd.DataFrame:
    """One backward pass per sample."""
    held, outputs = by_hand(images)
    rows = []
    for logits in outputs["last"]:
        second, first = logits.sort()[0][-2:]
        gradients = torch.autograd.grad(second - first, list(held.values()), retain_graph=True)
        rows.append({})
        for name, gradient in zip(held, gradients, strict=True):
            rows[-1][f"toy_lead/{name}/l1"] = gradient.abs().sum().item()
            rows[-1][f"toy_lead/{name}/toy_range"] = (gradient.max() - gradient.min()).item()
    return pd.DataFrame(rows)


def table(folder: Path, split: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "run" / "features" / split)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_works(done, command):
    code, said = done[1][command]
    assert code == ENDS.get(command, 0), said


@pytest.mark.parametrize("split", SPLITS)
def test_source_gives_its_images(done, split):
    found = table(done[0], split)[[f"logit_{k}" for k in range(10)]]
    np.testing.assert_allclose(found, by_hand(SPLITS[split])[1]["last"].detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("split", SPLITS)
def test_augmentation_shows_the_images_otherwise(done, split):
    found = table(done[0], split)[[f"augmentation/toy_upside_down/logit_{k}" for k in range(10)]]
    wanted = by_hand(SPLITS[split][:, ::-1].copy())[1]["last"].detach()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("split", SPLITS)
def test_loss_and_statistic_make_the_features(done, split):
    found, wanted = table(done[0], split), features_by_hand(SPLITS[split])
    assert {name for name in found.columns if "/" in name and "augmentation/" not in name} == set(wanted.columns)
    np.testing.assert_allclose(found[wanted.columns], wanted, rtol=1e-4, atol=1e-4)


def test_rule_takes_the_place_of_the_reference(done):
    said = done[1]["extract"][1]
    assert "10 features per sample" in said
    assert "reference" not in said


def test_score_is_evaluated(done):
    logits = by_hand(SPLITS["in_dist.test"])[1]["last"].detach().numpy()
    wrong = logits.argmax(1) != load_digits().target[100:200]
    records = pd.read_json(done[0] / "run" / "evaluation" / "metrics.json")
    chosen = records[(records["task"] == "misclassification") & (records["metric"] == "auroc")].set_index("score")
    assert chosen["value"]["toy_second"] == pytest.approx(roc_auc_score(wrong, np.sort(logits, axis=1)[:, -2]))


def test_score_stands_in_the_report(done):
    assert "toy_second" in (done[0] / "run" / "evaluation" / "report.html").read_text()


def test_page_shows_images_of_the_source(done):
    page = (done[0] / "run" / "evaluation" / "report.html").read_text()
    shown = re.findall(
        r'<img src="data:image/png;base64,(.*?)" alt="(\d+)">', page.partition("slip through: turned")[2]
    )
    images = [np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) for content, _ in shown]
    np.testing.assert_array_equal(images, SPLITS["ood.turned"][[int(place) for _, place in shown]])


@pytest.mark.parametrize("layer", ["first", "last"])
@pytest.mark.parametrize("split", ["in_dist.test", "ood.turned"])
def test_quantity_measures(done, split, layer):
    figures = pd.read_parquet(done[0] / "run" / "inspect" / "figures.parquet")
    found = figures[figures["statistic"] == "max"].set_index(["group", "layer"])["value"]
    outputs = by_hand(SPLITS[split])[1][layer]
    assert found[split.removeprefix("ood."), layer] == pytest.approx(outputs.abs().max().item(), rel=1e-5)


@pytest.mark.parametrize("words", ["What layers return", "What a layer returns at most."])
def test_quantity_stands_in_the_page(done, words):
    assert words in (done[0] / "run" / "inspect" / "report.html").read_text()
