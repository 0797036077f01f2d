"""Rows and columns of the tables of a report, from records written by hand."""

import pytest

from gradscore.evaluation import Answer, Records, verdict_rows
from gradscore.evaluation.answer import Use
from gradscore.evaluation.records import Record
from gradscore.evaluation.verdicts import verdicts
from gradscore.reporting.evaluation_report import SCORES_SHOWN, score_tables

GROUPS = {"near": ["a", "b"], "far": ["c"], "all": ["a", "b", "c"]}
AREAS = {
    "chosen": {"a": 0.9, "b": 0.7, "c": 0.8},
    "meta": {"a": 0.9, "b": 0.7, "c": 0.8},
    "energy": {"a": 0.8, "b": 0.9, "c": 0.9},
    "msp": {"a": 0.7, "b": 0.7, "c": 0.7},
}


def record(dataset, score, value, *, metric="auroc", task="ood", protocol="leave_one_dataset_out", **others):
    bounds = {"low": value - 0.02, "high": value + 0.02} | others
    return Record(
        task=task, protocol=protocol, dataset=dataset, score=score, metric=metric, value=value, n=500, n_positive=50,
        **bounds,
    )  # fmt: skip


def of_sets(areas, *, metric="auroc"):
    """Records of sets and of the means over groups of them."""
    sets = [record(name, score, area, metric=metric) for score, of in areas.items() for name, area in of.items()]
    means = [
        record(f"{group} (mean)", score, sum(of[name] for name in names) / len(names), metric=metric)
        for score, of in areas.items()
        for group, names in GROUPS.items()
    ]
    return [*sets, *means]


def gain(dataset, value):
    return record(dataset, "chosen", value, metric="auroc_gain_over_energy", p_value=0.001)


def chosen(score):
    return Answer(uses=[Use(task="ood", score=score, words=score)])


def test_scores_are_rows_by_their_mean_and_sets_are_columns():
    table, *_ = score_tables(Records(of_sets(AREAS)), chosen("meta"), GROUPS)
    assert [column.title for column in table.columns] == ["all, mean", "near, mean", "a", "b", "c"]
    assert [row.name for row in table.rows] == ["energy", "meta", "msp"]
    assert [cell.record.value for cell in table.rows[0].cells] == pytest.approx([2.6 / 3, 0.85, 0.8, 0.9, 0.9])


def test_the_chosen_score_and_the_best_of_each_set_are_marked():
    table, *_ = score_tables(Records(of_sets(AREAS)), chosen("meta"), GROUPS)
    best = {row.name: [place for place, cell in enumerate(row.cells) if cell.best] for row in table.rows}
    assert [row.name for row in table.rows if row.chosen] == ["meta"]
    assert best == {"energy": [0, 1, 3, 4], "meta": [2], "msp": []}


def test_where_each_set_has_another_choice_the_chosen_score_has_a_row_of_its_own():
    areas = AREAS | {"chosen": {"a": 0.9, "b": 0.9, "c": 0.9}}
    table, *_ = score_tables(Records(of_sets(areas)), chosen("meta"), GROUPS)
    assert [(row.name, row.chosen) for row in table.rows[:3]] == [("chosen", True), ("energy", False), ("meta", False)]


def test_the_lowest_missed_share_is_the_best():
    records = Records([*of_sets(AREAS), *of_sets(AREAS, metric="fpr95_id_positive")])
    missed = next(each for each in score_tables(records, chosen("meta"), GROUPS) if "missed" in each.title)
    assert [row.name for row in missed.rows] == ["msp", "meta", "energy"]
    assert [row.cells[0].best for row in missed.rows] == [True, False, False]


def test_all_but_the_best_scores_are_folded_and_the_chosen_one_never():
    names = ["energy", "msp", "entropy", "margin", "gen", "vim"]
    areas = {name: dict.fromkeys("abc", 0.9) for name in [*names, *(f"{name}@augmentations" for name in names)]}
    areas |= {"chosen": dict.fromkeys("abc", 0.6), "meta": dict.fromkeys("abc", 0.6)}
    table, *_ = score_tables(Records(of_sets(areas)), chosen("meta"), GROUPS)
    assert [row.name for row in table.rows][SCORES_SHOWN:] == ["meta"]
    assert len(table.rest) == 12 - SCORES_SHOWN


def test_a_set_on_which_the_chosen_score_loses_says_so_beside_a_better_mean():
    sets = {"a": 0.1, "b": -0.2, "c": 0.1}
    gains = [gain(name, value) for name, value in [*sets.items(), *((f"{group} (mean)", 0.05) for group in GROUPS)]]
    wrong = record("in_dist.test", "chosen", 0.9, task="misclassification", protocol="in_dist_only")
    records = [each for each in of_sets(AREAS) if each.score in ("chosen", "energy")]
    rows = verdict_rows(verdicts([wrong, *records, *gains], groups=GROUPS))
    outcomes = {name: verdict.outcome for name, verdict in rows.items()}
    assert list(outcomes) == ["a", "b", "c", "near, mean", "all, mean", "wrong predictions"]
    assert [outcomes[name] for name in ("a", "b", "c", "all, mean")] == ["better", "worse", "better", "mixed"]
