"""Every door to the same samples: what is computed, what is chosen and what is decided is the same to the last bit.

The samples of four modalities, with settings as nobody gives any: by a configuration, by `gradscore.Detector`, by
`gradscore.features`, and by what `gradscore init` writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from trusted import built

import gradscore
from gradscore.config import Config, load_config
from gradscore.deployment import Scorer, make_bundle, write_bundle
from gradscore.evaluation import EvaluationReport, evaluate_run, fit_run
from gradscore.pipeline import extract
from gradscore.setup import propose
from gradscore.setup.proposal import as_yaml
from gradscore.store import RunFolder

NET = """
import torch
from torch import nn


def image():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def table():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def embedding():
    return nn.Linear(6, 3)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        return self.head(self.block(self.words(input_ids), src_key_padding_mask=attention_mask == 0).mean(1))


def tokens():
    return Transformer()
"""
Arrays = NDArray[Any] | dict[str, NDArray[Any]]

SIZES = {"fit": 110, "test": 60, "calibration": 70, "strange": 40}


def digits(random: np.random.Generator, count: int, strange: bool) -> NDArray[Any]:
    chosen = load_digits().images[random.permutation(1797)[:count]]
    chosen = (chosen * 15 + random.integers(0, 16, chosen.shape)).astype(np.uint8)  # no image twice
    return chosen[:, ::-1].copy() if strange else chosen


def vectors(random: np.random.Generator, count: int, strange: bool) -> NDArray[Any]:
    centres = random.integers(0, 3, count)[:, None]
    return (random.normal(size=(count, 6)) * (4 if strange else 1) + centres).astype(np.float32)


def sentences(random: np.random.Generator, count: int, strange: bool) -> dict[str, NDArray[Any]]:
    words = random.integers(20 if strange else 0, 40 if strange else 20, (count, 7))
    return {"input_ids": words, "attention_mask": (np.arange(7) < random.integers(5, 8, count)[:, None]).astype(int)}


MODALITIES: dict[str, tuple[str, Callable[[np.random.Generator, int, bool], Arrays], dict[str, Any] | None]] = {
    "images": ("image", digits, {"mean": [0.5], "std": [0.5]}),
    "rows of a table": ("table", vectors, None),
    "text as tokens": ("tokens", sentences, None),
    "embeddings with a linear head": ("embedding", vectors, None),
}
"""The model, what draws samples, and the preprocessing that a configuration and a detector are given."""

PENALTIES = {"Cs": [0.01], "boosts": [10.0], "cv_folds": 2}
"""The only settings of meta models that are given, for speed."""


@dataclass
class Doors:
    """The same samples in a run folder that was evaluated, and in a detector with its report."""

    run: RunFolder
    evaluation: EvaluationReport
    detector: gradscore.Detector
    report: gradscore.Report
    samples: dict[str, Any]
    preprocessing: dict[str, Any] | None


@pytest.fixture(scope="module", params=MODALITIES.values(), ids=MODALITIES)
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Doors:
    name, draw, preprocessing = request.param
    folder = tmp_path_factory.mktemp(name)
    (folder / "net.py").write_text(NET)
    source = {"source": f"python:{folder}/net.py:{name}", "checkpoint": folder / "net.safetensors", "num_classes": 3}
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.manual_seed(0)
    model = scope[name]().eval()
    save_file(model.state_dict(), folder / "net.safetensors")
    random = np.random.default_rng(0)
    given: dict[str, Any] = {}
    for part, count in SIZES.items():
        arrays = draw(random, count, part == "strange")
        inputs = in_memory(arrays)
        labels = predictions(model, inputs)
        flipped = random.random(count) < 0.25
        labels[flipped] = (labels[flipped] + 1) % 3
        named = arrays if isinstance(arrays, dict) else {"images": arrays}
        np.savez(folder / f"{part}.npz", labels=labels, **named)
        given[part] = (inputs, torch.from_numpy(labels))
    parts = {part: {"source": f"npz:{folder}/{part}.npz"} for part in SIZES}
    settings = {
        "model": source,
        "data": {
            "in_dist": {part: parts[part] for part in ("fit", "test", "calibration")},
            "ood": [{"name": "strange", **parts["strange"]}],
        },
        "preprocessing": preprocessing or {},
        "meta": PENALTIES,
        "evaluate": {"protocols": ["auxiliary", "in_dist_only"]},
        "run": folder / "run",
    }
    config = Config.model_validate(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        extract(config, trust_code=True)
        run = RunFolder(config.run)
        fit_run(run)
        evaluation = evaluate_run(run)
        detector = gradscore.Detector(built(run.config.model), preprocessing=preprocessing, meta=PENALTIES)
        detector.fit(batch(given["fit"]), calibration=batch(given["calibration"]))
        report = detector.evaluate(batch(given["test"]), ood={"strange": batch(given["strange"])})
    return Doors(run, evaluation, detector, report, given, preprocessing)


def in_memory(arrays: Arrays) -> Any:
    """Samples as a program has them: images with an axis of channels."""
    if isinstance(arrays, dict):
        return {name: torch.from_numpy(each) for name, each in arrays.items()}
    return torch.from_numpy(arrays[:, None] if arrays.dtype == np.uint8 else arrays)


def batch(given: tuple[Any, Tensor]) -> Any:
    inputs, labels = given
    return [{**inputs, "labels": labels}] if isinstance(inputs, dict) else (inputs, labels)


@torch.no_grad()
def predictions(model: nn.Module, inputs: Any) -> NDArray[np.int64]:
    if isinstance(inputs, dict):
        return model(**inputs).argmax(1).numpy()
    return model((inputs / 255 - 0.5) / 0.5 if inputs.dtype == torch.uint8 else inputs).argmax(1).numpy()


def values(table: pd.DataFrame) -> pd.DataFrame:
    return table.select_dtypes("float").reset_index(drop=True)


def test_features_are_the_same(doors: Doors) -> None:
    wanted = doors.run.read("in_dist.fit")
    pd.testing.assert_frame_equal(values(doors.detector.run.read("in_dist.fit")), values(wanted), check_exact=True)
    found = gradscore.features(doors.detector.model, batch(doors.samples["fit"]), preprocessing=doors.preprocessing)
    pd.testing.assert_frame_equal(values(found), values(wanted), check_exact=True)
    assert any(name.startswith("penultimate_") for name in found)


def test_sets_that_are_made_are_the_same(doors: Doors) -> None:
    made = [info.name for info in doors.run.splits() if info.auxiliary]
    assert made == [info.name for info in doors.detector.run.splits() if info.auxiliary]
    assert made
    for name in made:
        pd.testing.assert_frame_equal(
            values(doors.detector.run.read(name)), values(doors.run.read(name)), check_exact=True
        )


def test_scores_that_are_chosen_and_their_figures_are_the_same(doors: Doors) -> None:
    figures = pd.DataFrame([record.entry() for record in doors.evaluation.records])
    pd.testing.assert_frame_equal(doors.report.figures, figures)
    assert "chosen" in set(figures["score"])
    what = {"misclassification": "wrong predictions", "ood": "OOD samples"}
    for use in doors.report.evaluation.answer.uses:
        assert f"{what[use.task]} by {use.words}" in repr(doors.detector)


def test_decisions_are_the_same(doors: Doors) -> None:
    path = doors.run.path.parent / "scorer.gradscore"
    write_bundle(path, make_bundle(doors.run, trust_code=True))
    scorer = Scorer.load(path, trust_code=True, device="cpu")
    for part in ("test", "strange"):
        inputs = doors.samples[part][0]
        found = doors.detector.score([inputs] if isinstance(inputs, dict) else inputs)
        wanted = scorer({name: each.numpy() for name, each in inputs.items()} if isinstance(inputs, dict) else inputs)
        pd.testing.assert_frame_equal(found, wanted)


class Sorted(nn.Module):
    """Gives samples to its last layer in the order of their first number."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.last(x[order])[order.argsort()]


ENDS: dict[str, tuple[nn.Module, bool]] = {
    "a linear layer": (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), True),
    "what is made of a linear layer": (nn.Sequential(nn.Linear(6, 3), nn.Tanh()), False),
    "a convolution": (nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()), False),
    "a linear layer for samples in another order": (Sorted(), False),
}


@pytest.mark.parametrize(("model", "wanted"), ENDS.values(), ids=ENDS)
def test_penultimate_features_are_stored_where_a_linear_layer_makes_the_logits(model: nn.Module, wanted: bool) -> None:
    torch.manual_seed(0)
    table = gradscore.features(model.eval(), torch.randn(4, 6))
    assert any(name.startswith("penultimate_") for name in table) is wanted


def test_the_same_samples_set_thresholds_where_nobody_says_which(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    (tmp_path / "net.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.manual_seed(1)
    model = scope["image"]().eval()
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    given: dict[str, tuple[Tensor, Tensor]] = {}
    for part, count in {"val": 340, "test": 90, "ood": 40}.items():
        pixels = digits(random, count, part == "ood")
        labels = predictions(model, in_memory(pixels))
        labels[::4] = (labels[::4] + 1) % 3
        in_order = np.argsort(labels, kind="stable")
        for place in in_order:
            folder = tmp_path / part / (f"class{labels[place]}" if part != "ood" else "")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[place]).save(folder / f"{place:03}.png")
        given[part] = (in_memory(pixels[in_order]), torch.from_numpy(labels[in_order]))
    settings = yaml.safe_load(as_yaml(propose([tmp_path], base=tmp_path)))
    settings["model"] = {"source": "python:net.py:image", "checkpoint": "net.safetensors", "num_classes": 3}
    settings |= {"preprocessing": {"mean": [0.5], "std": [0.5], "channels": 1}, "meta": PENALTIES}
    settings["evaluate"] = {"protocols": ["auxiliary", "in_dist_only"]}
    (tmp_path / "gradscore.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(tmp_path / "gradscore.yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        extract(config, trust_code=True)
        run = RunFolder(config.run)
        fit_run(run)
        found = evaluate_run(run)
        detector = gradscore.Detector(model, preprocessing={"mean": [0.5], "std": [0.5]}, meta=PENALTIES)
        report = detector.fit(given["val"]).evaluate(given["test"], ood={"ood": given["ood"][0]})
    for split in ("in_dist.fit", "in_dist.calibration"):
        pd.testing.assert_frame_equal(values(detector.run.read(split)), values(run.read(split)), check_exact=True)
    assert len(run.read("in_dist.calibration")) > 40
    pd.testing.assert_frame_equal(report.figures, pd.DataFrame([record.entry() for record in found.records]))
    bundle = make_bundle(run, trust_code=True)
    thresholds = {name: each.threshold.value for name, each in bundle.detectors.items()}
    assert thresholds == {name: each.threshold.value for name, each in detector.bundle.detectors.items()}
