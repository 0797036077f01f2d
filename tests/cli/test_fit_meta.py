from pathlib import Path

import numpy as np
import pytest
from commands import cli
from meta_models import OOD, meta_model
from written_runs import rows_of, written_run

from gradscore.meta import group_of
from gradscore.store import ShardRows

NAMES = ["logit_0", "logit_1", "uniform/fc.bias/l1", "uniform/fc.weight/l1", "uniform/fc.weight/l2"]
SIZE = 40


def write_run(path: Path, *, ood: tuple[str, ...] = ("far", "near"), wrong: int = 5) -> Path:
    def rows(split: str) -> ShardRows:
        generator = np.random.default_rng(list(split.encode()))
        labels = generator.integers(0, 2, SIZE)
        predictions = np.where(np.arange(SIZE) < wrong, 1 - labels, labels)
        far = split.startswith("ood")
        values = np.exp(generator.normal(3.0 * far, 1.0, (SIZE, len(NAMES))))
        return rows_of(split, NAMES, values, labels=np.full(SIZE, -1) if far else labels, predictions=predictions)

    written_run(path, rows, ood=[{"name": name} for name in ood], meta={"cv_folds": 2, "Cs": [0.01, 1.0]})
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("fitted") / "run")
    cli("fit-meta", run)
    return run


def test_says_how_many_models(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = cli("fit-meta", run)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"5 meta models: {run / 'meta'}")


def test_writes_every_model_and_a_regression_without_gradients_beside_those_of_two_classes(fitted: Path) -> None:
    models = {path.parent.relative_to(fitted / "meta").as_posix() for path in fitted.glob("meta/*/*/*/model.json")}
    of_two = {
        "misclassification/in_dist_only/all",
        "ood/known/all",
        "ood/leave_one_dataset_out/far",
        "ood/leave_one_dataset_out/near",
    }
    assert models == of_two | {"ood/in_dist_only/all"}
    beside = {
        path.parents[1].relative_to(fitted / "meta").as_posix()
        for path in fitted.glob("meta/*/*/*/score_lr/model.json")
    }
    assert beside == of_two


def test_the_regression_beside_it_sees_no_gradients(fitted: Path) -> None:
    model = meta_model(fitted, f"{OOD}/score_lr")
    weights = zip(model.inputs.names, model.arrays["coefficients"], strict=True)
    assert {group_of(name) for name, weight in weights if weight} == {"logits"}


def test_says_what_it_skips(tmp_path: Path) -> None:
    result = cli("fit-meta", write_run(tmp_path / "run", ood=("far",), wrong=0))
    assert result.exit_code == 0
    assert "skipped: misclassification/in_dist_only/all: no misclassified sample" in result.stdout
    assert "skipped: ood/leave_one_dataset_out/far: no other OOD set" in result.stdout
    assert result.stderr.startswith("fitting meta models\n")


def test_nothing_to_fit_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ood=(), wrong=0)
    result = cli("fit-meta", run, "--set", "evaluate.protocols=[known]")
    assert result.exit_code == 2
    assert "no meta model can be fitted" in result.stderr
