"""Whole jobs on a device: extract, fit, evaluate, bundle and all tools say what they say on the processor."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from commands import cli, printed
from sklearn.datasets import load_digits
from trusted import built

import gradscore
from gradscore.config import Config, dump_config
from gradscore.deployment import Scorer, make_bundle, write_bundle
from gradscore.reporting import Plot
from gradscore.store import RunFolder

EVERYTHING: dict[str, Any] = {
    "statistics": ["max", "std", "l1", "l0.5"],
    "losses": ["pseudo_label"],
    "augmentations": ["mirror", "shift:1,0"],
    "average_gradients": ["mirror"],
}
KEYS = ["task", "dataset", "protocol", "score", "metric"]
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-5}
"""What sums of float32 in another order may differ by, logarithms and ratios of small ones included."""

DIGITS = load_digits()
PIXELS = np.round(DIGITS.images * (255 / 16)).astype(np.uint8)


def alike(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same tables but for rounding; means of the last layer's gradient are rounding, and left out."""
    named = [name for name in expected if not str(name).endswith(("4.weight/mean", "3.weight/mean", "3.bias/mean"))]
    assert list(found) == list(expected)
    pd.testing.assert_frame_equal(found[named], expected[named], **CLOSE)


@dataclass
class Jobs:
    """Runs of one model, made on a device and on the processor."""

    device: str
    run: Path
    expected: Path

    def both(self, make: Callable[[Path], Any]) -> tuple[Any, Any]:
        return make(self.run), make(self.expected)


@pytest.fixture(scope="module")
def jobs(device: str, make_run: Callable[..., Path]) -> Jobs:
    made = [make_run(device=each, features=EVERYTHING, bank={"start": 500, "stop": 600}) for each in (device, "cpu")]
    return Jobs(device, *made)


@pytest.fixture(scope="module")
def bundles(jobs: Jobs) -> tuple[Path, Path]:
    def bundle(run: Path) -> Path:
        chosen = ("ood=meta", "wrong=meta")
        made = make_bundle(RunFolder(run), alpha=0.1, trust_code=True, scores=chosen, shifted_copies=10)
        write_bundle(run.parent / "scorer.gradscore", made)
        return run.parent / "scorer.gradscore"

    return jobs.both(bundle)


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("new") / "digits.npz"
    np.savez(path, images=PIXELS[500:620])
    return path


@pytest.mark.parametrize("split", ["in_dist.fit", "in_dist.test", "in_dist.calibration", "in_dist.bank", "ood.noise"])
def test_feature_tables(jobs: Jobs, split: str) -> None:
    alike(RunFolder(jobs.run).read(split), RunFolder(jobs.expected).read(split))


def test_the_manifest_says_where(jobs: Jobs) -> None:
    assert json.loads((jobs.run / "manifest.json").read_text())["inputs"]["extract"]["device"] == jobs.device


def test_the_evaluation(jobs: Jobs) -> None:
    def metrics(run: Path) -> pd.DataFrame:
        return pd.DataFrame(json.loads((run / "evaluation" / "metrics.json").read_text())).set_index(KEYS)

    found, expected = jobs.both(metrics)
    pd.testing.assert_frame_equal(found, expected, rtol=0, atol=5e-3)


def test_decisions(jobs: Jobs, bundles: tuple[Path, Path], npz: Path, tmp_path: Path) -> None:
    def scored(path: Path, device: str) -> pd.DataFrame:
        printed("score", path, npz, "--device", device, "--out", tmp_path / "scores.parquet", "--batch-size", 50)
        return pd.read_parquet(tmp_path / "scores.parquet")

    found, expected = scored(bundles[0], jobs.device), scored(bundles[1], "cpu")
    pd.testing.assert_frame_equal(found, expected, rtol=1e-2, atol=1e-3)


def test_a_bundle_of_the_processor_answers_there(jobs: Jobs, bundles: tuple[Path, Path]) -> None:
    scorer = Scorer.load(bundles[1], trust_code=True, device=jobs.device)
    assert next(scorer.model.parameters()).device.type == jobs.device
    expected = Scorer.load(bundles[1], trust_code=True, device="cpu")(PIXELS[700:720, None])
    pd.testing.assert_frame_equal(scorer(PIXELS[700:720, None]), expected, rtol=1e-2, atol=1e-3)


def test_explanations(jobs: Jobs, bundles: tuple[Path, Path], npz: Path) -> None:
    assert "layers" in printed("score", bundles[0], npz, "--device", jobs.device, "--explain", "--json")


def test_monitoring(jobs: Jobs, bundles: tuple[Path, Path], npz: Path) -> None:
    def watched(path: Path, device: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(
            printed(
                "monitor", path, npz, "--window", 60, "--device", device, "--json", "--out", path.parent / "watched"
            )
        )
        return said

    found, expected = watched(bundles[0], jobs.device), watched(bundles[1], "cpu")
    figures = [
        [[window[name] for name in ("accuracy", "rejected", "ood")] for window in each["windows"]]
        for each in (found, expected)
    ]
    np.testing.assert_allclose(*figures, atol=0.02)


def test_inspection(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "drawn", lambda _plot: b"")  # figures are numbers of the processor

    def figures(run: Path) -> pd.DataFrame:
        printed("inspect", run, "--samples", 12)
        return pd.read_parquet(run / "inspect" / "figures.parquet")

    found, expected = jobs.both(figures)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-5)


def test_projections(jobs: Jobs, tmp_path: Path) -> None:
    def projected(run: Path) -> np.ndarray:
        printed("project", run, "--dim", 64, "--out", tmp_path / run.parent.name)
        found = gradscore.load_projections(tmp_path / run.parent.name)
        return np.asarray(found.values * found.scale[:, None])  # noqa: PD011  # no table

    found, expected = jobs.both(projected)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_the_audit(jobs: Jobs) -> None:
    def audited(run: Path) -> pd.DataFrame:
        printed("audit", run)
        table = pd.read_parquet(run / "audit" / "in_dist.fit" / "audit.parquet")
        return table.sort_values("place", ignore_index=True)[["label", "suggested", "score", "suspected"]]

    found, expected = jobs.both(audited)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-5)


def test_the_doctor(jobs: Jobs) -> None:
    def findings(run: Path) -> str:
        (run.parent / "config.yaml").write_text(dump_config(RunFolder(run).config))
        said = cli("doctor", run.parent / "config.yaml", "--trust-code", "--json").stdout
        return said.replace(str(run.parent), "")

    found, expected = jobs.both(findings)
    assert found == expected


@pytest.fixture(scope="module")
def detectors(jobs: Jobs) -> tuple[gradscore.Detector, gradscore.Detector]:
    def fitted(run: Path) -> gradscore.Detector:
        config: Config = RunFolder(run).config
        device = config.extract.device
        model = built(config.model).to(device)
        detector = gradscore.Detector(model, meta={"Cs": [0.01], "cv_folds": 2})
        images = torch.tensor(DIGITS.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
        labels = torch.tensor(DIGITS.target)
        return detector.fit((images[:300].to(device), labels[:300].to(device)), bank=images[300:400])

    return jobs.both(fitted)


def test_a_detector(detectors: tuple[gradscore.Detector, gradscore.Detector]) -> None:
    images = torch.tensor(DIGITS.images[400:450], dtype=torch.float32).unsqueeze(1) / 8 - 1
    found, expected = (each.score(images) for each in detectors)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-2, atol=1e-3)
