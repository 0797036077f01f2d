"""What a scorer says of a sample does not depend on how many others come with it, for networks of every modality."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gradscore
from gradscore.data import FIT
from gradscore.system import each_input, import_torchvision, rows_of, sample_count

import_torchvision()  # so that importing transformers does not fail for what torchvision lacks
transformers = importlib.import_module("transformers")

SETTINGS: dict[str, Any] = {"meta": {"Cs": [0.1], "boosts": [1.0], "cv_folds": 2}, "alpha": 0.2}
SIZES = [1, 7, 64]


class Attention(nn.Module):
    """The rows of an image attend to each other; a key bias changes nothing, since softmax takes it out again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, 20), nn.Parameter(torch.randn(9, 20) / 4)
        self.query, self.key, self.value = (nn.Linear(20, 20) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(20), nn.Linear(20, 8)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.embed(nn.functional.pad(images.squeeze(1), (0, 0, 0, 1))) + self.place
        seen = torch.softmax(self.query(rows) @ self.key(rows).mT / 4, dim=-1) @ self.value(rows)
        return self.head(self.norm(rows + seen).mean(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 8)
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.LayerNorm(24), nn.Linear(24, 8))


class Bert(nn.Module):
    """Texts as BERT takes them."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
            num_labels=8,
        )
        self.bert = transformers.BertForSequenceClassification(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.bert(input_ids=input_ids).logits


def images() -> Tensor:
    return torch.from_numpy(load_digits().images[:650]).float().unsqueeze(1) / 8 - 1


def numbers() -> Tensor:
    return images().flatten(1)


def tokens() -> dict[str, Tensor]:
    """Whole numbers: where the digits have ink, and how much."""
    ink = images().flatten(1)
    return {"input_ids": ink.argsort(dim=1, descending=True, stable=True)[:, :12]}


MODALITIES = {
    "images": (convolutions, images),
    "attention on images": (Attention, images),
    "texts": (Bert, tokens),
    "tables": (perceptron, numbers),
}


def trained(build: Callable[[], nn.Module], samples: Any, labels: Tensor) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(25):
            optimizer.zero_grad()
            outputs = model(samples) if isinstance(samples, Tensor) else model(**samples)
            nn.functional.cross_entropy(outputs, labels).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module", params=MODALITIES.values(), ids=MODALITIES)
def fitted(request: pytest.FixtureRequest) -> tuple[gradscore.Detector, Any]:
    """A detector, and samples that it has not seen."""
    build, make = request.param
    labels = torch.from_numpy(load_digits().target[:650])
    known = labels < 8
    samples, strange = (each_input(make(), lambda each, mask=mask: each[mask]) for mask in (known, ~known))
    labels = labels[known]
    model = trained(build, rows_of(samples, slice(200)), labels[:200])
    fit = (rows_of(samples, slice(200, 450)), labels[200:450])
    detector = gradscore.Detector(model, **SETTINGS).fit(
        [fit], ood={"strange": [rows_of(strange, slice(70))]}, auxiliary=[]
    )
    return detector, rows_of(samples, slice(450, None))


def scored(detector: gradscore.Detector, samples: Any, size: int) -> pd.DataFrame:
    starts = range(0, sample_count(samples), size)
    tables = [detector.scorer(rows_of(samples, slice(start, start + size))) for start in starts]
    return pd.concat(tables, ignore_index=True)


def test_scores_do_not_depend_on_the_size_of_a_batch(fitted) -> None:
    one, seven, many = (scored(*fitted, size) for size in SIZES)
    numbers = [name for name in many if name.startswith(("probability_", "score_"))]
    assert len(numbers) == 4
    moved = np.maximum((one[numbers] - many[numbers]).abs().max(), (seven[numbers] - many[numbers]).abs().max())
    assert (moved / many[numbers].std()).max() < 1e-3
    decided = [table["decision"].tolist() for table in (one, seven, many)]
    assert decided[0] == decided[1] == decided[2]


def test_inputs_do_not_depend_on_the_size_of_a_batch(fitted) -> None:
    """Whatever models weigh, in 99 of 100 samples; a ratio may be nearly zero in one."""
    detector, samples = fitted
    inputs = detector.bundle.detectors["wrong"].model.inputs
    one, seven, many = (
        inputs.scaled(gradscore.features(detector.scorer.model, [samples], batch_size=size)[inputs.columns])
        for size in SIZES
    )
    moved = np.quantile(np.maximum(np.abs(one - many), np.abs(seven - many)), 0.99, axis=0)
    assert {name: gap for name, gap in zip(inputs.names, moved, strict=True) if gap > 1e-3} == {}


ZERO = {
    "images": {"6.weight", "6.bias"},
    "attention on images": {"key.bias", "head.weight", "head.bias"},
    "texts": {"bert.bert.encoder.layer.0.attention.self.key.bias", "bert.classifier.weight", "bert.classifier.bias"},
    "tables": {"3.weight", "3.bias"},
}
"""Parameters with a gradient, or a mean of it, that is zero on paper: attention takes key biases out again, and what
reaches the logits adds up to zero."""


def test_gradients_that_are_zero_on_paper_are_left_out(fitted, request) -> None:
    inputs = fitted[0].bundle.detectors["wrong"].model.inputs
    means = {
        f"{loss}/{name}/mean:l1" for loss in ("pseudo_label", "uniform") for name in ZERO[request.node.callspec.id]
    }
    assert means <= set(inputs.left_out)
    assert not means & set(inputs.names)
    assert not [name for name in inputs.names if "key.bias/" in name]


def test_a_user_is_told_once_how_many(fitted) -> None:
    detector, _ = fitted
    left_out = detector.bundle.detectors["wrong"].model.inputs.left_out
    said = [notice for notice in detector.notices if "inputs enter no model" in notice]
    assert len(said) == 1
    assert said[0].startswith(f"{len(left_out)} of ")


def test_values_that_were_computed_twice_are_those_of_the_table(fitted) -> None:
    detector, _ = fitted
    once, again = detector.run.recomputed(FIT)
    table = detector.run.read(FIT).set_index("sample_id").loc[once["sample_id"]].reset_index()
    pd.testing.assert_frame_equal(once, table[once.columns])
    assert len(once) == 16
    logits = [name for name in once if name.startswith("logit_")]
    np.testing.assert_allclose(again[logits], once[logits], atol=1e-4)
