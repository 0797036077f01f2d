"""Covariate-shifted sets and duplicates, from extraction to the report."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from meta_models import WRONG, meta_model

from gradscore.evaluation import EvaluationReport, evaluate_run, fit_run
from gradscore.reporting import write_report
from gradscore.store import RunFolder

SHIFTED = [
    {"name": "blurred", "source": "corrupted:blur", "arguments": {"severity": 5}},
    {"name": "copies", "source": "sklearn:digits", "select": {"stop": 120}},
]


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> RunFolder:
    return RunFolder(make_run(shifted=SHIFTED, evaluate=False))


@pytest.fixture(scope="module")
def evaluation(run: RunFolder) -> EvaluationReport:
    return evaluate_run(run)


def test_a_shifted_set_is_labelled(run: RunFolder) -> None:
    test, shifted = run.read("in_dist.test"), run.read("shifted.blurred")
    assert (shifted["label"] == test["label"]).all()
    assert (shifted["content_hash"] != test["content_hash"]).all()


def test_its_figures_stand_by_themselves(evaluation: EvaluationReport) -> None:
    records = pd.DataFrame(evaluation.records)
    of_shifted = records[records["dataset"].isin(["blurred", "copies"])]
    assert set(of_shifted["task"]) == {"shifted"}
    assert {"auroc", "aurc", "accuracy", "brier"} <= set(of_shifted["metric"])
    assert set(records.loc[records["task"] == "shifted", "dataset"]) == {"blurred", "copies"}


def test_accuracy_is_that_of_the_feature_table(run: RunFolder, evaluation: EvaluationReport) -> None:
    records = pd.DataFrame(evaluation.records).set_index(["dataset", "metric"])
    found = records.loc[[("blurred", "accuracy")]].iloc[0]
    assert found["value"] == pytest.approx(run.read("shifted.blurred")["correct"].mean())
    assert found["low"] < found["value"] < found["high"]


def test_scores_are_those_of_the_misclassification_model(run: RunFolder, evaluation: EvaluationReport) -> None:
    model = meta_model(run, WRONG)
    found = evaluation.scores.query("task == 'shifted' and dataset == 'blurred'")["meta"]
    assert found.to_numpy() == pytest.approx(model.decision(run.read("shifted.blurred")))


def test_a_set_without_labels_is_said_to_have_none(make_run: Callable[..., Path], tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "bare.npz", images=images)
    run = RunFolder(make_run(shifted=[{"name": "bare", "source": f"npz:{tmp_path}/bare.npz"}], evaluate=False))
    assert "shifted.bare has no labels, so nothing is said of wrong predictions there" in evaluate_run(run).notices


def test_duplicates_are_counted_and_left_out(run: RunFolder, evaluation: EvaluationReport) -> None:
    assert any("120 samples are both in in_dist.fit and in shifted.copies" in line for line in evaluation.notices)
    assert fit_run(run).models[0].spec.duplicates == 120


def test_the_report_has_a_section(run: RunFolder, evaluation: EvaluationReport) -> None:
    text = write_report(run, evaluation).read_text()
    assert "Wrong predictions under covariate shift" in text
    assert "blurred" in text
