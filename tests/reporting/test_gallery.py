"""The nearest samples of the bank, against distances by hand."""

from pathlib import Path

import numpy as np
import pytest
from commands import cli
from net_configs import digits, net_config

from gradscore.columns import penultimate_columns
from gradscore.evaluation import EvaluationReport, evaluate_run, fit_run, read_scores
from gradscore.meta import MetaInputs
from gradscore.pipeline import extract
from gradscore.reporting.gallery import PER_SAMPLE, NearestOfBank
from gradscore.store import RunFolder

NET = """
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
"""


def finished(folder: Path, *, bank: bool) -> RunFolder:
    config = net_config(
        folder,
        NET,
        in_dist={"fit": digits(0, 60), "test": digits(60, 120)} | ({"bank": digits(120, 300)} if bank else {}),
        ood=[{"name": "noise", "source": "synthetic:gaussian_noise", "select": {"stop": 30}}],
        preprocessing={"channels": 1},
        features={"losses": ["uniform"], "statistics": ["l1"], "penultimate": True},
        meta={"Cs": [0.01], "cv_folds": 2},
        evaluate={"protocols": ["in_dist_only"]},
    )
    extract(config, trust_code=True)
    run = RunFolder(folder / "run")
    fit_run(run)
    assert cli("evaluate", run.path).exit_code == 3  # right by chance: no verdict
    return run


@pytest.fixture(scope="module", params=[True, False], ids=["bank", "no bank"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("near"), bank=request.param)


def unit(run: RunFolder, split: str) -> np.ndarray:
    frame = run.read(split)
    values = frame[penultimate_columns(frame.columns)].to_numpy()
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)


def test_they_are_those_with_the_smallest_distances(run: RunFolder) -> None:
    split = "in_dist.bank" if "in_dist.bank" in run.sizes else "in_dist.fit"
    table = read_scores(run)
    rows = table[table["dataset"] == "noise"].groupby("split").head(4)
    found = NearestOfBank(run, MetaInputs.load(run.inputs_path)).of(rows)
    bank, names = unit(run, split), run.read(split, ["sample_id", "label"])
    for (_, row), neighbours in zip(rows.iterrows(), found, strict=True):
        frame = run.read(row["split"])
        place = frame.index[frame["sample_id"] == row["sample_id"]][0]
        distances = np.linalg.norm(bank - unit(run, row["split"])[place], axis=1)
        nearest = np.sort(distances)[:PER_SAMPLE]
        np.testing.assert_allclose(neighbours["distance"], nearest, atol=1e-3)
        for each in neighbours.itertuples():
            member = names.index[names["sample_id"] == each.sample_id][0]
            assert distances[member] == pytest.approx(each.distance, abs=1e-3)
            assert (each.split, each.label) == (split, names["label"][member])


def test_the_page_shows_them(run: RunFolder) -> None:
    page = (run.evaluation_path / "report.html").read_text()
    assert "the nearest samples of the bank" in page
    assert page.count('<div class="near">') == page.count('<div class="thumb">')


def test_a_verdict_on_scores_without_a_bank_says_so(run: RunFolder) -> None:
    said = (evaluate_run(run).not_compared or "").partition(",")[0]
    assert said == ("" if "in_dist.bank" in run.sizes else "without a bank of training samples (data.in_dist.bank")


def test_without_features_there_are_none(report_run: RunFolder, report_evaluation: EvaluationReport) -> None:
    nearest = NearestOfBank(report_run, MetaInputs.load(report_run.inputs_path))
    assert [len(each) for each in nearest.of(report_evaluation.scores.head(2))] == [0, 0]
    assert not nearest.has_bank
