"""Examples that take a model and loaders for granted, run with a small network for scikit-learn's digits."""

import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch
from manual_pages import code_of
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradscore

PIXELS, LABELS = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
IMAGES = (PIXELS.float() / 16).reshape(-1, 1, 8, 8)


def loader(start: int, stop: int, *, classes: int = 10) -> DataLoader:
    images, labels = IMAGES[start:stop], LABELS[start:stop]
    known = labels < classes
    return DataLoader(TensorDataset(images[known], labels[known]), batch_size=64)


def trained(*, classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    images, labels = loader(0, 400, classes=classes).dataset.tensors
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def run(page: str, **names: object) -> dict:
    names["gradscore"] = gradscore
    exec(compile(code_of(page), page, "exec"), names)
    return names


def test_first_lines() -> None:
    given = {"fit_loader": loader(400, 800), "train_loader": loader(0, 400), "new_loader": loader(800, 850)}
    table = run("index.md", model=trained(), **given)["table"]
    assert {"prediction", "probability_wrong", "p_value_wrong", "probability_ood", "p_value_ood"} <= {*table.columns}
    assert set(table["decision"]) <= {"accept", "reject"}
    assert (table["prediction"] == LABELS[800:850].numpy()).mean() > 0.8


@pytest.fixture(scope="module")
def audited() -> dict:
    samples = loader(0, 400, classes=2)
    samples.dataset.tensors[1][:2] = 1 - samples.dataset.tensors[1][:2]
    return run("audit.md", model=trained(classes=2), loader=samples)


def test_flipped_labels_come_first(audited: dict) -> None:
    table = audited["found"].table
    reasons = dict(zip(table["place"], table["reason"], strict=True))
    assert set(table["place"][:2]) == {0, 1}
    assert table["suspected"][:2].all()
    assert audited["found"].suspected < 8
    assert "the network predicts cat" in reasons[0]
    assert "the network predicts dog" in reasons[1]


def test_what_ray_is_to_construct(monkeypatch: pytest.MonkeyPatch, small_bundle: Path) -> None:
    """With a stand-in for Ray, which not every machine has; `make ray-test` has Ray itself do the same."""
    ray = MagicMock()
    monkeypatch.setitem(sys.modules, "ray", ray)
    run("scaling.md")
    (made,) = ray.data.read_images.return_value.map_batches.call_args.args
    batch = {"image": load_digits().images[:3].astype(np.uint8)[..., None], "path": np.array(["a", "b", "c"])}
    wanted = gradscore.Scorer.load(small_bundle, trust_code=True)(list(batch["image"]), sample_ids=["a", "b", "c"])
    pd.testing.assert_frame_equal(made(small_bundle)(batch), wanted)
