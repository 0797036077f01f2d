"""Combined meta models in a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gradscore.evaluation.controls import permuted_labels
from gradscore.evaluation.run import evaluate_run
from gradscore.meta.models import MetaModel
from gradscore.reporting.evaluation import write_report
from gradscore.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> RunFolder:
    return RunFolder(make_run(meta={"ood": "combined"}, evaluate=False))


KINDS = {
    "ood": ("ood/known/all", "combined"),
    "wrong": ("misclassification/in_dist_only/all", "logistic"),
    "the logits alone": ("ood/known/all/logit_lr", "logistic"),
}


@pytest.mark.parametrize(("name", "kind"), KINDS.values(), ids=KINDS)
def test_only_models_fitted_on_ood_samples_are_combined(run: RunFolder, name: str, kind: str) -> None:
    assert MetaModel.load(run.meta_path / name).kind == kind


def test_it_is_reported_without_a_probability(run: RunFolder) -> None:
    evaluation = evaluate_run(run)
    model = MetaModel.load(run.meta_path / "ood/known/all")
    ood = evaluation.scores.query("task == 'ood' and split == 'in_dist.test'")
    assert ood["probability"].isna().all()
    assert ood["meta"].to_numpy() == pytest.approx(model.decision(run.read("in_dist.test")))
    assert "Weights, OOD, known" in write_report(run, evaluation).markdown.read_text()


def test_permuted_labels_find_nothing(run: RunFolder) -> None:
    assert [control.model for control in permuted_labels(run)][-1] == "ood/known/all"
