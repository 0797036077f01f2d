"""A model is used only where its fit would be the same today; what decides that can change after the fit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from report_runs import settings

from gradscore.config import Config
from gradscore.deployment import make_bundle
from gradscore.errors import EvaluationError
from gradscore.evaluation import evaluate_run
from gradscore.reporting import write_report
from gradscore.store import RunFolder, RunWriter, changing

LABELS = [
    "misclassification/in_dist_only/all",
    "ood/known/all",
    "ood/leave_one_dataset_out/rotated",
    "ood/leave_one_dataset_out/files",
    "ood/in_dist_only/all",
]


def extracted_again(run: RunFolder, config: Config) -> RunFolder:
    """The run after extract has run again in it with settings that are none of its inputs; it computes nothing."""
    with RunWriter.opened(run.path, config=config, inputs=run.manifest.inputs):
        pass
    return RunFolder(run.path)


def with_settings(change: Callable[[dict], object]) -> Config:
    changed = settings(Path("images"))
    change(changed)
    return Config.model_validate(changed)


def test_the_same_settings_leave_models_as_they_are(report_copy: RunFolder) -> None:
    again = extracted_again(report_copy, with_settings(lambda _: None))
    assert evaluate_run(again).models == LABELS


CHANGES = {
    "auxiliary": (lambda settings: settings["data"]["ood"][0].update(auxiliary=True), r"common\.ood\.rotated"),
    "meta.seed": (lambda settings: settings["meta"].update(seed=3), r"in_dist_only/all: .*meta\.seed was 0, is now 3"),
    "meta.Cs": (lambda settings: settings["meta"].update(Cs=[0.1]), r"meta\.Cs was "),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_models_of_other_settings_are_refused(
    report_copy: RunFolder, change: Callable[[dict], object], message: str
) -> None:
    again = extracted_again(report_copy, with_settings(change))
    with pytest.raises(EvaluationError, match=rf"{message}.*run `gradscore fit-meta {again.path}` again"):
        evaluate_run(again)


def test_features_computed_anew_are_noticed(report_copy: RunFolder) -> None:
    part = report_copy.path / "features" / "in_dist.fit" / "part-00000.parquet"
    with changing(report_copy.path, ["features"]):
        pd.read_parquet(part).astype({"logit_0": "float32"}).astype({"logit_0": "float64"}).to_parquet(part)
    with pytest.raises(EvaluationError, match=r"features\.in_dist\.fit was .*, is now "):
        evaluate_run(report_copy)


def test_bundles_are_not_made_of_models_of_other_settings(small_run: Path, tmp_path: Path) -> None:
    shutil.copytree(small_run, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    config = run.config.model_copy(update={"meta": run.config.meta.model_copy(update={"seed": 1})})
    again = extracted_again(run, config)
    with pytest.raises(EvaluationError, match=r"meta\.seed was 0, is now 1"):
        make_bundle(again, alpha=0.1, trust_code=True, model_source=again.config.model.source)


def test_models_of_no_spec_are_not_in_the_report(report_copy: RunFolder) -> None:
    shutil.copytree(report_copy.meta_path / LABELS[2], report_copy.meta_path / "ood/leave_one_dataset_out/gone")
    (report_copy.meta_path / "ood/leave_one_dataset_out/gone/model.json").write_text("{}")
    page = write_report(report_copy, evaluate_run(report_copy)).read_text()
    assert "Weights for OOD samples" in page
