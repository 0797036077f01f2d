"""Reports do not depend on how much of a run is held at a time, and nothing is left of what they are made of."""

import errno
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from score_files import scored_sets_of

from gradscore.errors import OutputError
from gradscore.evaluation import EvaluationReport, ScoreFile, evaluate_run, fit_run, score_tables
from gradscore.evaluation.metrics import aurc, double_scoring, rarer_of
from gradscore.evaluation.records import score_records
from gradscore.evaluation.score_tables import LEADING, writing_scores
from gradscore.meta import MetaInputs, MetaModel, ScoreChoice, chosen_model
from gradscore.store import RunFolder


def test_small_parts_give_the_figures_and_scores_of_whole_tables_and_leave_nothing_else(
    report_evaluation: EvaluationReport, report_copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(report_copy.path.rglob("*"))
    for name in ("ROWS_AT_A_TIME", "ROWS_OF_A_GROUP", "SAMPLES_KEPT"):
        monkeypatch.setattr(score_tables, name, 13)
    parts = evaluate_run(report_copy)
    assert parts.records == report_evaluation.records
    assert parts.notices == report_evaluation.notices
    pd.testing.assert_frame_equal(parts.scores, report_evaluation.scores, check_exact=True)
    assert sorted(report_copy.path.rglob("*")) == before


def test_a_disk_without_space_is_named(report_copy: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_where: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(score_tables, "TemporaryFile", full)
    with pytest.raises(OutputError, match=rf"^{re.escape(str(report_copy.path))}: .*free some space"):
        evaluate_run(report_copy)


def test_figures_are_those_of_the_written_table_in_its_order(report_copy: RunFolder) -> None:
    report_copy = report_copy.with_settings(["evaluate.protocols=[known,in_dist_only]"], sections=["evaluate"])
    fit_run(report_copy)
    report = evaluate_run(report_copy)
    of_table = list(score_records(scored_sets_of(report.scores)))
    assert report.records[: len(of_table)] == of_table


def test_joint_records_are_of_both_chosen_scores(report_run: RunFolder) -> None:
    """Those of wrong predictions are computed anew, for all rows."""
    report = evaluate_run(report_run)
    place = ["split", "sample_id"]
    of_set = report.scores.query("task == 'ood' and dataset == 'files'").groupby("protocol")
    samples = of_set.get_group("leave_one_dataset_out").set_index(place)
    features = pd.concat([report_run.read(split) for split in samples.index.unique("split")]).set_index(place)
    folder = report_run.meta_path / "misclassification/in_dist_only/all"
    model = MetaModel.load(folder, MetaInputs.load(report_run.inputs_path))
    by_wrong = chosen_model(folder, model, ScoreChoice.of_notes(model.notes))
    in_dist = ~samples["positive"].to_numpy()
    good = in_dist & (samples["label"] == samples["prediction"]).to_numpy()
    scores = by_wrong.decision(features.loc[samples.index].reset_index()), samples["chosen"].to_numpy()
    found = {each.metric: each for each in report.records if each.task == "joint" and each.dataset == "files"}
    double = double_scoring(*scores, good, in_dist)
    order = rarer_of(*scores, good)
    assert double is not None
    assert {name: each.value for name, each in found.items()} == {
        "aurc": aurc(order, ~good),
        "ds_aurc": double.aurc,
        "ds_f1": double.f1,
    }
    assert (found["aurc"].n, found["aurc"].n_positive) == (len(samples), (~good).sum())
    assert {each.dataset for each in report.records if each.task == "joint"} == {"files", "rotated"}


def part(dataset: str, start: int, count: int) -> pd.DataFrame:
    places = np.arange(start, start + count)
    leading = {name: ["ood"] * count for name in LEADING}
    numbers = {"label": places, "prediction": places, "positive": places % 2 == 0, "probability": places / 100}
    return pd.DataFrame({**leading, "dataset": dataset, **numbers, "chosen": np.sin(places)})


PARTS = [part("a", 0, 5), part("a", 5, 6), part("b", 20, 4).assign(knn=1.0)]


def write(folder: Path, parts: list[pd.DataFrame]) -> None:
    with writing_scores(folder, ["chosen", "knn"], of={}) as add:
        for each in parts:
            add(each)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write(tmp_path, PARTS)
    return tmp_path


def test_the_table_is_its_parts_one_after_the_other(written: Path) -> None:
    expected = pd.concat(PARTS, ignore_index=True)
    pd.testing.assert_frame_equal(ScoreFile(written).table(), expected, check_dtype=False)
    assert [(block.dataset, block.names) for block in scored_sets_of(ScoreFile(written).table())] == [
        ("a", ["chosen"]),
        ("b", ["chosen", "knn"]),
    ]


def test_some_columns_of_one_data_set(written: Path) -> None:
    found = ScoreFile(written).columns("ood", "ood", "a", ["positive", "chosen", "unknown"])
    pd.testing.assert_frame_equal(found, pd.concat(PARTS[:2], ignore_index=True)[["positive", "chosen"]])


@pytest.mark.parametrize("places", [[10, 0, 7], [3, 3], []], ids=["in their order", "twice", "none"])
def test_some_rows_of_one_data_set(written: Path, places: list[int]) -> None:
    found = ScoreFile(written).rows("ood", "ood", "a", np.array(places, dtype=np.int64))
    np.testing.assert_array_equal(found["label"], places)


def test_a_table_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowException):
        write(tmp_path, [PARTS[0], PARTS[1].assign(chosen="no number")])
    assert not list(tmp_path.iterdir())
