from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import cli
from run_inputs import write_manifest
from score_files import write_scores

from gradscore.evaluation.score_tables import LEADING, made_of
from gradscore.store import RunFolder

N = 40


def write_run(path: Path, *, seed: int, noise: float) -> Path:
    write_manifest(path)
    positive = np.arange(N) % 2 == 0
    leading = dict.fromkeys(LEADING, 0) | {
        "task": "ood",
        "protocol": "known",
        "dataset": "[red]noise[/red]",
        "split": "in_dist.test",
        "content_hash": [str(place) for place in range(N)],
        "positive": positive,
    }
    scores = {"chosen": positive + noise * np.random.default_rng(seed).normal(size=N), "energy": np.arange(N)}
    write_scores(path / "evaluation", pd.DataFrame({**leading, **scores}), of=made_of(RunFolder(path)))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [str(write_run(tmp_path / name, seed=seed, noise=noise)) for seed, (name, noise) in enumerate(
        {"plain": 2.0, "better": 0.1}.items())]  # fmt: skip


def test_prints_the_change_its_interval_and_p(runs: list[str]) -> None:
    result = cli("compare", *runs)
    assert result.exit_code == 0
    assert "ood, known" in result.stdout
    assert "1.0000" in result.stdout
    assert " to +" in result.stdout
    assert "not corrected for the number of rows" in " ".join(result.stdout.split())


def test_runs_without_tables_are_compared_and_the_doubt_is_said(runs: list[str]) -> None:
    result = cli("compare", *runs)
    assert [line.partition(" cannot be told")[0] for line in result.stderr.splitlines()] == [
        f"warning: {run}: whether its labels are those of the network" for run in runs
    ]


def test_names_are_not_read_as_markup(runs: list[str]) -> None:
    assert "[red]noise[/red]" in cli("compare", *runs).stdout


def test_compares_another_score(runs: list[str]) -> None:
    assert "+0.0000" in cli("compare", *runs, "--score", "energy").stdout


def test_accuracies_of_two_networks_stand_first(tmp_path: Path) -> None:
    runs = []
    for name, wrong in {"good": 4, "worse": 10}.items():
        write_manifest(tmp_path / name)
        leading = dict.fromkeys(LEADING, 0) | {"split": "in_dist.test", "content_hash": [str(n) for n in range(N)]}
        tables = [
            pd.DataFrame(
                {
                    **leading,
                    "task": task,
                    "protocol": protocol,
                    "dataset": dataset,
                    "positive": positive,
                    "chosen": np.arange(N),
                }
            )
            for task, protocol, dataset, positive in (
                ("ood", "known", "noise", np.arange(N) % 2 == 0),
                ("misclassification", "in_dist_only", "in_dist.test", np.arange(N) < wrong),
                ("misclassification", "known", "in_dist.test", np.arange(N) < wrong),
            )
        ]
        write_scores(tmp_path / name / "evaluation", pd.concat(tables), of=made_of(RunFolder(tmp_path / name)))
        runs.append(str(tmp_path / name))
    lines = cli("compare", *runs).stdout.splitlines()
    place = next(place for place, line in enumerate(lines) if "accuracy of the network" in line)
    assert lines[place + 1].split() == ["in_dist.test", "(40)", "0.9000", "0.7500", "-0.1500", "-", "-"]
    assert "ood, known" in lines[place + 2]
