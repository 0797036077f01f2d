import html
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import cli
from score_names import score_names
from written_runs import rows_of, written_run

from gradscore.config import load_config
from gradscore.detector.detector_runs import Report
from gradscore.detector.detector_sets import Thumbnails
from gradscore.evaluation import EvaluationReport, evaluate_run
from gradscore.evaluation.score_tables import ScoreFile, score_columns
from gradscore.store import RunFolder, ShardRows

SIZE = 30
NAMES = ["logit_0", "logit_1", "uniform/fc.bias/l1", "uniform/fc.weight/l1"]


def write_run(
    path: Path,
    *,
    wrong_of_test: int,
    ood: tuple[str, ...] = ("far", "near"),
    copied: str = "",
    tested: str = "",
    distinct: dict[str, int] | None = None,
    classes: dict[str, int] | None = None,
    class_names: list[str] | None = None,
    unlabelled: dict[str, int] | None = None,
) -> Path:
    """A run whose split `copied` begins with copies, and whose split `tested` is made of test samples.

    Each split has so many distinct samples and classes, and the last so many of its samples have no label.
    """
    wrong = {"in_dist.fit": 5, "in_dist.test": wrong_of_test}

    def rows(split: str) -> ShardRows:
        generator = np.random.default_rng(list(split.encode()))
        far, labelled = split.startswith("ood"), (classes or {}).get(split, 2)
        labels, lasts = generator.integers(0, max(1, labelled), SIZE), SIZE - (unlabelled or {}).get(split, 0)
        places = np.arange(SIZE) % (distinct or {}).get(split, SIZE)
        source = "in_dist.test" if split == tested else split
        origins = ["in_dist.fit" if split == copied and place < 3 else source for place in places]
        return rows_of(
            split,
            NAMES,
            np.exp(generator.normal(3.0 * far, 1.0, (SIZE, len(NAMES)))),
            labels=np.where(np.arange(SIZE) < lasts, labels, -1) if labelled and not far else np.full(SIZE, -1),
            predictions=np.where(np.arange(SIZE) < wrong.get(split, 0), 1 - labels, labels),
            content_hashes=[f"{origin}-{place}" for origin, place in zip(origins, places, strict=True)],
        )

    sets = [{"name": name, "group": name} for name in ood]
    written_run(path, rows, ood=sets, class_names=class_names, meta={"cv_folds": 2, "Cs": [0.01, 1.0]})
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("evaluate") / "run", wrong_of_test=0)
    cli("fit-meta", run)
    return run


@dataclass
class Said:
    """What evaluate finds in a run, and what it says of it."""

    run: Path
    found: EvaluationReport
    plain: str
    quiet: str
    document: dict[str, Any]

    def page(self, name: str) -> str:
        return (self.run / "evaluation" / name).read_text()


@pytest.fixture(scope="module")
def said(fitted: Path) -> Said:
    found = evaluate_run(RunFolder(fitted))
    options = ([], ["-q"], ["--json"])
    results = [cli("evaluate", fitted, *each) for each in options]
    assert [each.exit_code for each in results] == [0] * len(options)
    plain, quiet, document = (str(each.stdout) for each in results)
    return Said(fitted, found, plain, quiet, json.loads(document))


def test_notes_that_are_not_warnings_are_counted_and_in_the_report(said: Said) -> None:
    rest = [each for each in said.found.notices if each.level == "note"]
    assert f"{len(rest)} more notes in the report" in said.plain
    assert all(html.escape(each) in said.page("report.html") for each in rest)


def test_one_class_is_said_and_null(said: Said) -> None:
    records = json.loads(said.page("metrics.json"))
    assert "no misclassified sample among 30 samples" in said.page("report.html")
    assert {record["value"] for record in records if record["task"] == "misclassification"} == {None}


def test_keeps_the_score_of_every_sample(said: Said) -> None:
    table = ScoreFile(said.run / "evaluation").table()
    blocks = table.groupby(["task", "protocol", "dataset"], sort=False).size()
    assert blocks["misclassification", "in_dist_only", "in_dist.test"] == SIZE
    assert blocks["ood", "leave_one_dataset_out", "far"] == 2 * SIZE
    assert score_columns(table) == ["chosen", "meta", "score_lr", *score_names("logits")]


def test_writes_a_report_without_the_images_it_cannot_find(said: Said) -> None:
    assert "report: " in said.plain
    assert "Images are missing. ood.far: the data are no longer those" in said.page("report.html")


def failing(*_: object) -> None:
    raise OSError(28, "No space left on device")


HINDRANCES = {
    "a package is missing": (
        "gradscore.reporting.pages.find_spec",
        lambda name: None,
        0,
        "note: no report: it needs jinja2, matplotlib; run `pip install 'gradscore[report]'`",
    ),
    "no figure can be drawn": ("gradscore.reporting.pages.Plot.drawn", failing, 2, "No space left on device"),
}


@pytest.mark.parametrize(("place", "instead", "code", "message"), HINDRANCES.values(), ids=HINDRANCES)
def test_no_page_of_earlier_figures_stays_beside_newer_ones(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, instead, code: int, message: str
) -> None:
    run = shutil.copytree(said.run, tmp_path / "run")
    made = {"report.html", "metrics.json"}
    assert made <= {file.name for file in (run / "evaluation").iterdir()}
    monkeypatch.setattr(place, instead)
    result = cli("evaluate", run)
    assert (result.exit_code, message in result.output) == (code, True)
    assert made & {file.name for file in (run / "evaluation").iterdir()} == {"metrics.json"}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What is said of a run whose reported samples are copies, and whose samples to fit on lack a class."""
    run = write_run(
        tmp_path_factory.mktemp("spoilt") / "run",
        wrong_of_test=10,
        distinct={"in_dist.test": 5, "ood.far": 29, "ood.near": 5},
        copied="ood.near",
        classes={"in_dist.fit": 1},
    )
    commands = {"fitted": ["fit-meta", "-q"], "quiet": ["evaluate", "-q"]}
    said = {name: cli(*each, run).stdout for name, each in commands.items()}
    return SimpleNamespace(**said, page=(run / "evaluation" / "report.html").read_text())


def test_copies_among_reported_samples_are_said(spoilt: SimpleNamespace) -> None:
    for line in (
        "duplicates: in_dist.test: 25 of 30 samples are copies of others in it; they count as if they were",
        "duplicates: ood.far: 1 of 30 samples is a copy of another in it; each content counts once",
        "in_dist.test: only 5 different misclassified samples among 30 (10 with copies): take its figures as a hint",
    ):
        assert line in spoilt.page


def test_an_ood_set_of_in_distribution_samples_is_warned_of_before_the_result(spoilt: SimpleNamespace) -> None:
    message = "ood.near: 18 of 30 samples are copies of in-distribution samples"
    assert f"warning: {message}" in spoilt.quiet.partition("Chosen: ")[0]
    assert message in spoilt.page


def test_an_ood_set_of_test_samples_has_no_figures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=12, ood=("far", "near", "same"), tested="ood.same")
    for command in ("fit-meta", "evaluate"):
        result = cli(command, run)
        assert result.exit_code == 0, result.output
    assert "warning: ood.same: 30 of 30 samples are copies of in-distribution samples: its figures" in result.output
    page = (run / "evaluation" / "report.html").read_text()
    assert "duplicates: 30 samples are both in in_dist.test and in ood.same; left out of ood.same" in page
    assert 'id="ood-scores-near"' in page
    assert 'id="ood-scores-same"' not in page


def test_classes_that_are_not_fitted_on_are_warned_of(spoilt: SimpleNamespace) -> None:
    message = "in_dist.fit has no sample of class 1, which in_dist.test has: the figures mix"
    for said in (spoilt.fitted, spoilt.quiet):
        assert f"warning: {message}" in said
        assert said.count(message) == 1
    assert message in spoilt.page
    assert "Chosen: " in spoilt.quiet  # the verdict stays


def test_a_test_set_without_labels_is_called_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=5, classes={"in_dist.test": 0})
    result = cli("fit-meta", run, "-q")
    assert "warning: in_dist.test has no labels, so nothing is said of wrong predictions there" in result.stdout
    assert "no sample of" not in result.output
    assert cli("evaluate", run, "-q").exit_code in (0, 3)


def test_samples_without_a_label_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=5, unlabelled={"in_dist.fit": 4, "in_dist.test": 1, "ood.far": 9})
    fitted, evaluated = (cli(command, run, "-q").stdout for command in ("fit-meta", "evaluate"))
    said = (
        "warning: samples without a label say nothing of wrong predictions: 4 of 30 of in_dist.fit, 1 of 30 of "
        "in_dist.test; give their labels, if there are any\n"
    )
    assert (fitted.count(said), evaluated.count(said)) == (1, 1)


def test_samples_to_fit_on_without_labels_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=5, classes={"in_dist.fit": 0})
    result = cli("fit-meta", run, "-q")
    assert result.exit_code == 2
    assert "in_dist.fit: wanted labelled samples, and none of its 30 has a label; say where" in result.stderr


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=5, classes={"in_dist.test": 1}, class_names=["cat", "emu"])
    said = cli("fit-meta", run, "-q").stdout
    assert "warning: in_dist.test has no sample of class emu, which in_dist.fit has: " in said


def test_one_ood_set_is_reported_by_the_model_of_bundles(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=3, ood=("far",))
    cli("fit-meta", run)
    found = evaluate_run(RunFolder(run))
    assert "ood/leave_one_dataset_out/far: no other OOD set" in "\n".join(found.notices)
    assert found.verdicts[-1].protocol == "known"


def test_nothing_to_tell_from_the_rest_is_no_verdict(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", wrong_of_test=0, ood=())
    cli("fit-meta", run)
    result = cli("evaluate", run)
    assert result.exit_code == 3, result.output
    first = result.stdout.splitlines()[0]
    assert first.startswith("No verdict: 0 wrong predictions among 30 samples are too few; give about 970 labelled")
    page = (run / "evaluation" / "report.html").read_text()
    assert "No verdict: 0 wrong predictions among 30 samples are too few" in page
    assert "no misclassified sample among 30 samples" in page


def test_without_meta_models_is_an_error(tmp_path: Path) -> None:
    result = cli("evaluate", write_run(tmp_path / "run", wrong_of_test=1))
    assert result.exit_code == 2
    assert "fit-meta" in result.stderr
    assert not (tmp_path / "run" / "evaluation").exists()


def test_baselines_that_there_are_none_of_are_named_beside_the_verdict(said: Said) -> None:
    wanted = "not compared with knn, class_knn, nnguide, mahalanobis and 15 more, often the strongest"
    assert f"note: {wanted} baselines: they need what enters the linear layer that makes the logits" in said.plain
    assert said.document["not_compared"].startswith(wanted)
    assert f"Note: {wanted}" in said.page("report.html").partition("Every score")[0]


def test_without_the_strongest_baselines_better_is_provisional(said: Said) -> None:
    assert "better" in {each.outcome for each in replace(said.found, not_compared=None).verdicts}
    assert {each.outcome for each in said.found.verdicts} <= {"provisional", "undecided", "worse"}
    assert "provisionally better" in said.plain
    assert "better" not in said.plain.replace("provisionally better", "")


def test_every_door_says_the_answer_in_the_same_words(said: Said) -> None:
    found, program = said.found, said.document
    report = Report(RunFolder(said.run), found, Thumbnails(), kept=None)
    doors = [said.page("report.html"), str(report), report._repr_html_()]
    assert [line for line in found.answer.sentences if not all(line in door for door in doors)] == []
    assert said.quiet.splitlines() == found.answer.sentences
    assert said.plain.splitlines()[: len(found.answer.lines)] == found.answer.lines
    assert program["answer"]["sentences"] == found.answer.sentences
    assert [each["outcome"] for each in program["verdicts"]] == [each.outcome for each in found.verdicts]
    assert [len(each["sets"]) for each in program["verdicts"]] == [len(each.sets) for each in found.verdicts]


def test_every_set_is_a_row_of_the_first_screen(said: Said) -> None:
    lines = said.plain.splitlines()
    found = {each.what: each for group in said.found.verdicts for each in group.sets}
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip() and line.split()[0] in found}
    assert {name: (row[0], row[-2], row[-1]) for name, row in rows.items()} == {
        name: (f"{each.area.value:.3f}", each.best, each.outcome) for name, each in found.items()
    }
    assert len(lines) <= 25


SOURCES = {
    "no code": ({}, False),
    "a model": ({"model.source": "python:net.py:net"}, True),
    "a program": ({"model.source": "program:net.pt2"}, True),
    "an augmentation": ({"features.augmentations": "[mirror, 'python:augmentations.py:turned']"}, True),
    "samples": ({"data.in_dist.test.source": "python:data.py:test"}, True),
}


@pytest.mark.parametrize(("settings", "trusted"), SOURCES.values(), ids=SOURCES)
def test_advice_trusts_code_that_the_run_names(fitted: Path, monkeypatch, settings, trusted: bool) -> None:
    named = load_config(fitted / "config.yaml", [f"{key}={value}" for key, value in settings.items()])
    monkeypatch.setattr(RunFolder, "config", named)
    assert RunFolder(fitted).names_code == trusted


def test_a_baseline_that_was_removed_is_missed_and_fitted_again(fitted: Path, tmp_path: Path) -> None:
    run = shutil.copytree(fitted, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))
    shutil.rmtree(run / "meta" / "misclassification" / "in_dist_only" / "all" / "score_lr")
    result = cli("evaluate", run)
    assert result.exit_code == 2
    assert "misclassification/in_dist_only/all/score_lr: missing, though" in result.stderr
    assert not (run / "evaluation").exists()
    assert cli("fit-meta", run).exit_code == 0
    assert cli("evaluate", run).exit_code == 0
