"""Extra columns on their way through a run and a bundle."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from columns_reference import COLUMNS, hand_made
from meta_models import OOD, WRONG, meta_model
from torch import Tensor, nn

from gradscore.config import Config
from gradscore.data import collate
from gradscore.deployment.bundle import write_bundle
from gradscore.deployment.bundling import make_bundle
from gradscore.deployment.scorer import Scorer
from gradscore.errors import StoreError
from gradscore.pipeline import extract, open_datasets
from gradscore.store import RunFolder


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> Path:
    return make_run(features={"columns": COLUMNS}, calibration=True, part_size=64)


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    path = run.parent / "columns.gradscore"
    write_bundle(path, make_bundle(RunFolder(run), alpha=0.1, with_weights=True, trust_code=True))
    return path


def test_a_run_has_them_beside_all_others(run: Path, small_run: Path) -> None:
    found, plain = (RunFolder(path).read("in_dist.test") for path in (run, small_run))
    pd.testing.assert_frame_equal(found[plain.columns], plain, rtol=1e-5, atol=1e-7)
    assert [name for name in found.columns if name not in set(plain.columns)] == [
        "uniform/0/output_gradient_norm",
        "uniform/3/output_gradient_norm",
        "forward/1/activation_rate",
        *[f"uniform/{name}/gradient_cosine" for name in ("0.weight", "0.bias", "3.weight", "3.bias")],
    ]


def test_fit_samples_are_left_out_of_their_means(run: Path) -> None:
    folder = RunFolder(run)
    dataset = open_datasets(folder.config)["in_dist.fit"]
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    model.load_state_dict(read_bundle_weights(folder))
    images = collate([dataset[place] for place in range(len(dataset))]).inputs
    fit = images.double()
    wanted = hand_made(model.double(), "uniform", fit, fit[:6], ["3.weight"])
    found = folder.read("in_dist.fit", ["uniform/3.weight/gradient_cosine"]).to_numpy()[:6, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_copies_of_fit_samples_are_left_out_of_the_means_as_these_are(run: Path, tmp_path: Path) -> None:
    """Samples 150 to 189 are tested and, the first 40 of them, fit as well; sample 150 fits twice."""
    from sklearn.datasets import load_digits

    images = (load_digits().images * (255 / 16)).round().astype(np.uint8)
    np.savez(tmp_path / "fit.npz", images=np.concatenate([images[:190], images[150:151]]))
    config = RunFolder(run).config.model_dump(mode="json")
    config["data"]["in_dist"]["fit"] = {"source": f"npz:{tmp_path / 'fit.npz'}"}
    folder = RunFolder(extract(Config.model_validate(config), out=tmp_path / "run", trust_code=True).run)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    model.load_state_dict(read_bundle_weights(folder))
    dataset = open_datasets(folder.config)["in_dist.fit"]
    fit = collate([dataset[place] for place in range(len(dataset))]).inputs.double()
    wanted = hand_made(model.double(), "uniform", fit, fit[150:156], ["3.weight"])
    for split, rows in {"in_dist.fit": slice(150, 156), "in_dist.test": slice(0, 6)}.items():
        found = folder.read(split, ["uniform/3.weight/gradient_cosine"]).to_numpy()[rows, 0]
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=split)


def read_bundle_weights(folder: RunFolder) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder.config.model.checkpoint)


def test_meta_models_see_them(run: Path) -> None:
    model = meta_model(run, OOD)
    assert {"uniform/0/output_gradient_norm", "forward/1/activation_rate"} < set(model.inputs.names)


def test_an_interrupted_run_goes_on_with_the_same_means(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = RunFolder(run).config
    lost = [copy / "features/in_dist.test/part-00001.parquet", copy / "mean_gradients.safetensors"]
    content = [path.read_bytes() for path in lost]
    _ = [path.unlink() for path in lost]
    summary = extract(config, out=copy, trust_code=True)
    assert [path.read_bytes() for path in lost] == content
    assert (summary.was_complete, extract(config, out=copy, trust_code=True).was_complete) == (False, True)


def test_changed_means_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "features/in_dist.test/part-00001.parquet").unlink()
    (copy / "mean_gradients.safetensors").write_bytes(b"something else")
    with pytest.raises(StoreError, match="other mean gradients than those the feature tables were made with"):
        extract(RunFolder(run).config, out=copy, trust_code=True)


def test_a_bundle_scores_as_the_run(run: Path, bundle: Path) -> None:
    dataset = open_datasets(RunFolder(run).config)["in_dist.test"]
    images = collate([dataset[place] for place in range(50)]).inputs
    scorer = Scorer.load(bundle, trust_code=True)
    frame = RunFolder(run).read("in_dist.test").iloc[:50]
    values = scorer._values(images)
    np.testing.assert_allclose(values, frame[scorer.bundle.columns].to_numpy(), rtol=1e-9, atol=1e-12)
    wanted = meta_model(run, WRONG).decision(frame)
    assert scorer(images)["score_wrong"].to_numpy() == pytest.approx(wanted, abs=1e-9)


def test_threads_take_turns(run: Path, bundle: Path) -> None:
    dataset = open_datasets(RunFolder(run).config)["in_dist.test"]
    images = collate([dataset[place] for place in range(40)]).inputs
    scorer = Scorer.load(bundle, trust_code=True)
    wanted = scorer(images)["score_ood"].tolist()
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        results[number] = scorer(images)["score_ood"].tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert list(results.values()) == [wanted] * 6
