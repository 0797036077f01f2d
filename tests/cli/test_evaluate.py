import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gradscore.config import Config
from gradscore.parts import Rows
from gradscore.store import RunFolder, RunWriter
from gradscore_cli.main import app

SIZE = 30
NAMES = ["logit_0", "logit_1", "uniform/fc.bias/l1", "uniform/fc.weight/l1"]


def make_rows(split: str, *, wrong: int) -> Rows:
    generator = np.random.default_rng(list(split.encode()))
    ood = split.startswith("ood")
    labels = generator.integers(0, 2, SIZE)
    return Rows(
        split=split,
        sample_ids=[str(place) for place in range(SIZE)],
        labels=np.full(SIZE, -1) if ood else labels,
        predictions=np.where(np.arange(SIZE) < wrong, 1 - labels, labels),
        content_hashes=[f"{split}-{place}" for place in range(SIZE)],
        names=NAMES,
        values=np.exp(generator.normal(3.0 * ood, 1.0, (SIZE, len(NAMES)))),
        skipped=[],
    )


def write_run(path: Path, *, wrong_of_test: int) -> Path:
    settings = {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 2},
        "data": {
            "in_dist": {"fit": {"source": "sklearn:digits"}, "test": {"source": "sklearn:digits"}},
            "ood": [{"name": "far", "source": "sklearn:digits"}],
        },
        "meta": {"cv_folds": 2, "strengths": [0.01, 1.0]},
        "run": "run",
    }
    wrong = {"in_dist.fit": 5, "in_dist.test": wrong_of_test, "ood.far": 0}
    with RunWriter.opened(path, config=Config.model_validate(settings), inputs={"model": {}, "data": {}}) as writer:
        for info in RunFolder(path).splits():
            note = writer.write(info.name, 0, make_rows(info.name, wrong=wrong[info.name]))
            writer.finish_split(info.name, [note])
        writer.finish(feature_count=2, notices=[])
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("evaluate") / "run", wrong_of_test=0)
    CliRunner().invoke(app, ["fit-meta", str(run)])
    return run


def test_prints_scores_and_protocols(fitted: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(fitted)])
    assert result.exit_code == 0
    assert "ood, known" in result.stdout
    assert "ood, in_dist_only" in result.stdout
    assert "max_logit" in result.stdout


def test_one_class_is_said_and_null(fitted: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(fitted)])
    records = json.loads((fitted / "evaluation" / "metrics.json").read_text())
    assert "no misclassified sample among 30 samples" in result.stdout
    assert {record["value"] for record in records if record["task"] == "misclassification"} == {None}


def test_what_could_not_be_fitted_is_said(fitted: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(fitted)])
    assert "note: ood/leave_one_out/far: no other OOD set" in result.stdout


def test_without_meta_models_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(write_run(tmp_path / "run", wrong_of_test=1))])
    assert result.exit_code == 2
    assert "fit-meta" in result.stderr
    assert not (tmp_path / "run" / "evaluation").exists()
