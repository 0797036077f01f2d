"""Short examples of the manual, those that take a model and loaders for granted with a small network for digits."""

import re
import sys
from contextlib import chdir
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch
from both_ways import reference_of
from manual_pages import code_of, run_page
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradscore
from gradscore.system import import_torchvision

import_torchvision()  # before transformers looks for it

pytestmark = pytest.mark.slow

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


def test_first_lines() -> None:
    given = {"fit_loader": loader(400, 800), "train_loader": loader(0, 400), "new_loader": loader(800, 850)}
    table = run_page("index.md", gradscore=gradscore, model=trained(), **given)["table"]
    assert {"prediction", "probability_wrong", "p_value_wrong", "probability_ood", "p_value_ood"} <= {*table.columns}
    assert set(table["decision"]) <= {"accept", "reject"}
    assert (table["prediction"] == LABELS[800:850].numpy()).mean() > 0.8


@pytest.fixture(scope="module")
def audited() -> dict:
    samples = loader(0, 400, classes=2)
    samples.dataset.tensors[1][:2] = 1 - samples.dataset.tensors[1][:2]
    return run_page("audit.md", gradscore=gradscore, model=trained(classes=2), loader=samples)


def test_flipped_labels_come_first(audited: dict) -> None:
    table = audited["found"].table
    reasons = dict(zip(table["place"], table["reason"], strict=True))
    assert set(table["place"][:2]) == {0, 1}
    assert table["suspected"][:2].all()
    assert audited["found"].suspected < 8
    assert "the network predicts cat" in reasons[0]
    assert "the network predicts dog" in reasons[1]


def test_what_ray_is_to_construct(monkeypatch: pytest.MonkeyPatch, small_bundle: Path) -> None:
    """With a stand-in for Ray, which is no part of the environment."""
    ray = MagicMock()
    monkeypatch.setitem(sys.modules, "ray", ray)
    run_page("scaling.md")
    (made,) = ray.data.read_images.return_value.map_batches.call_args.args
    batch = {"image": load_digits().images[:3].astype(np.uint8)[..., None], "path": np.array(["a", "b", "c"])}
    wanted = gradscore.Scorer.load(small_bundle, trust_code=True)(list(batch["image"]), sample_ids=["a", "b", "c"])
    pd.testing.assert_frame_equal(made(small_bundle)(batch), wanted)


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?(?=\s|$)", text)]


def test_what_a_language_model_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("language-models.md")
    printed, shown = capsys.readouterr().out, code_of("language-models.md", "text")
    assert printed.split()[:3] == shown.split()[:3] == ["sample_id", "loss", "loss/model/l2"]
    np.testing.assert_allclose(numbers(printed), numbers(shown), rtol=5e-3)


@pytest.fixture(scope="module")
def projected(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("projections")
    with chdir(folder):
        return run_page("projections.md") | {"folder": folder}


def test_no_query_is_its_own_nearest(projected: dict) -> None:
    assert projected["nearest"].places.shape == (5, 3)
    assert not (projected["nearest"].places == np.arange(5)[:, None]).any()
    assert projected["products"].shape == (5, 300)


def test_products_are_about_the_exact_ones(projected: dict) -> None:
    model = projected["model"]
    losses = nn.functional.cross_entropy(model(projected["images"]), projected["labels"], reduction="none")
    gradients = reference_of(dict(model.named_parameters()), losses, torch.ones_like(losses)).values()
    whole = torch.cat([each.flatten(1) for each in gradients], 1).numpy()
    norms = np.linalg.norm(whole, axis=1)
    errors = (projected["products"] - whole[:5] @ whole.T) / norms / norms[:5, None]
    assert np.sqrt((errors**2).mean()) < 1.5 / np.sqrt(4096)  # one over the root of dim, where g h is small


def test_folder_is_read_again(projected: dict) -> None:
    read = gradscore.load_projections(projected["folder"] / "projected")
    assert np.array_equal(read.values, projected["bank"].values)
