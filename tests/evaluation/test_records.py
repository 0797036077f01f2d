import numpy as np
import pandas as pd
import pytest
from delong_reference import interval_of
from score_files import scored_sets_of
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from gradscore import baselines
from gradscore.errors import ConfigError
from gradscore.evaluation import records
from gradscore.evaluation.intervals import paired_delong
from gradscore.evaluation.records import CLASSIFIER, group_records
from gradscore.evaluation.score_tables import LEADING, SCORE_LR

BASELINES = ["chosen", "score_lr", "msp"]


def block(*, task="ood", protocol="leave_one_dataset_out", dataset="a", positives=40, shift=1.0, seed=0, distinct=None):
    generator = np.random.default_rng(seed)
    negatives = np.random.default_rng(99).normal(size=(60, len(BASELINES)))  # the same in every set
    truth = np.arange(60 + positives) >= 60
    values = np.concatenate([negatives, generator.normal(shift, 1.0, (positives, len(BASELINES)))])
    content = [f"{dataset} {place if distinct is None else place % distinct}" for place in range(60 + positives)]
    leading = {"task": task, "protocol": protocol, "dataset": dataset, "content_hash": content, "positive": truth}
    probability = 1 / (1 + np.exp(-values[:, 0])) if task == "misclassification" else np.nan
    return pd.DataFrame({**leading, "probability": probability, **dict(zip(BASELINES, values.T, strict=True))})


def wrong(**changes):
    return block(task="misclassification", protocol="in_dist_only", dataset="in_dist.test", **changes)


def score_records(table):
    return list(records.score_records(scored_sets_of(table)))


def remarks(table, found):
    return records.remarks(scored_sets_of(table), found)


def by_key(found):
    return {(each.dataset, each.score, each.metric): each for each in found}


WRONG = wrong()
OF_WRONG = by_key(score_records(WRONG))
OOD = pd.concat([block(seed=1), block(dataset="b", positives=20, seed=2)], ignore_index=True)
GROUPS = {"near": ["a", "b"], "other": ["a", "missing"]}
OF_GROUPS = by_key(group_records(list(scored_sets_of(OOD)), GROUPS, score_records(OOD)))


def test_figures_equal_scikit_learn():
    truth = WRONG["positive"]
    area, precision = (OF_WRONG["in_dist.test", "msp", name].value for name in ("auroc", "aupr_out"))
    assert area == pytest.approx(roc_auc_score(truth, WRONG["msp"]))
    assert precision == pytest.approx(average_precision_score(truth, WRONG["msp"]))
    assert OF_WRONG["in_dist.test", "chosen", "brier"].value == pytest.approx(
        brier_score_loss(truth, WRONG["probability"])
    )


def test_records_say_what_they_are_about():
    record = OF_WRONG["in_dist.test", "chosen", "auroc"]
    assert (record.task, record.protocol, record.n, record.n_positive) == (
        "misclassification", "in_dist_only", 100, 40
    )  # fmt: skip


def test_misclassification_has_every_figure():
    assert [metric for _, score, metric in OF_WRONG if score == "chosen"] == [
        "auroc", "aupr_in", "aupr_out", "fpr95_ood_positive", "fpr95_id_positive", "aurc", "brier", "ece",
        "auroc_gain_over_score_lr", "auroc_gain_over_msp",
    ]  # fmt: skip


def test_every_value_lies_in_its_interval():
    with_one = [record for record in OF_WRONG.values() if record.low is not None]
    assert all(record.low <= record.value <= record.high for record in with_one)


def test_only_the_calibration_error_has_no_interval():
    assert {record.metric for record in OF_WRONG.values() if record.low is None} == {"ece"}


def test_the_interval_of_an_auroc_is_delongs():
    expected = interval_of(WRONG["msp"], WRONG["positive"])
    record = OF_WRONG["in_dist.test", "msp", "auroc"]
    assert (record.low, record.high) == (expected.low, expected.high)


def test_gains_are_paired_tests():
    expected = paired_delong(WRONG["chosen"], WRONG["msp"], WRONG["positive"])
    record = OF_WRONG["in_dist.test", "chosen", "auroc_gain_over_msp"]
    assert (record.value, record.p_value) == (expected.difference, expected.p_value)


def test_one_ranking_gains_nothing_for_certain():
    gain = "auroc_gain_over_msp"
    alike = OOD.assign(msp=np.exp(OOD["chosen"]))
    of_sets = score_records(alike)
    of_groups = by_key(group_records(list(scored_sets_of(alike)), GROUPS, of_sets))
    for found in (by_key(of_sets)["a", "chosen", gain], of_groups["near (mean)", "chosen", gain]):
        assert (found.value, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_few_samples_may_be_ranked_alike_by_chance():
    few = block(seed=1)[52:68].assign(msp=lambda table: table["chosen"])
    gain = by_key(score_records(few))["a", "chosen", "auroc_gain_over_msp"]
    assert gain.low < gain.value == 0 < gain.high


def test_two_perfect_rankings_may_differ_in_other_samples():
    apart = OOD.assign(chosen=OOD["chosen"] + 100 * OOD["positive"], msp=OOD["msp"] + 100 * OOD["positive"])
    gain = by_key(score_records(apart))["a", "chosen", "auroc_gain_over_msp"]
    assert gain.low < gain.value == 0 < gain.high


ENTRY = ["task", "dataset", "protocol", "score", "metric", "value", "low", "high", "n", "n_positive"]
ENTRIES = {
    "figure": (OF_WRONG["in_dist.test", "chosen", "auroc"], ENTRY),
    "gain": (OF_WRONG["in_dist.test", "chosen", "auroc_gain_over_msp"], [*ENTRY[:8], "p_value", *ENTRY[8:]]),
    "gain of None": (by_key(score_records(wrong(positives=1)))["in_dist.test", "chosen", "auroc_gain_over_msp"],
                     [*ENTRY[:8], "p_value", *ENTRY[8:]]),
}  # fmt: skip


@pytest.mark.parametrize(("record", "names"), ENTRIES.values(), ids=ENTRIES.keys())
def test_only_gains_have_a_p_value_in_files(record, names):
    assert list(record.entry()) == names


def test_one_class_gives_values_of_none():
    found = score_records(wrong(positives=0))
    assert {record.value for record in found} == {None}
    assert {record.low for record in found} == {None}


def test_a_score_that_a_data_set_lacks_has_no_record():
    assert not any(score == "score_lr" for _, score, _ in by_key(score_records(OOD.assign(score_lr=np.nan))))


def test_the_mean_of_a_group_weighs_sets_alike():
    areas = [roc_auc_score(each["positive"], each["chosen"]) for _, each in OOD.groupby("dataset")]
    assert OF_GROUPS["near (mean)", "chosen", "auroc"].value == pytest.approx(np.mean(areas))


def test_groups_count_in_distribution_samples_once():
    record = OF_GROUPS["near (mean)", "chosen", "auroc"]
    assert (record.n, record.n_positive) == (120, 60)


def test_groups_have_gains():
    record = OF_GROUPS["near (mean)", "chosen", "auroc_gain_over_msp"]
    gaps = [OF_GROUPS["near (mean)", name, "auroc"].value for name in ("chosen", "msp")]
    assert record.value == pytest.approx(gaps[0] - gaps[1])
    assert record.low < record.value < record.high


def test_a_group_that_lacks_a_set_is_left_out():
    assert not any(dataset.startswith("other") for dataset, _, _ in OF_GROUPS)


REMARKS = {
    "one class": (wrong(positives=0), "no misclassified sample among 60 samples"),
    "few": (wrong(positives=7), "only 7 misclassified samples among 67"),
    "one": (wrong(positives=1), "only 1 misclassified sample among 61"),
    "copies": (
        wrong(distinct=10),
        "only 10 different misclassified samples among 100 (40 with copies): take its figures",
    ),
    "inverted": (
        block(shift=-2.0),
        "ood, leave_one_dataset_out, a: ranked below the rest (AUROC below 0.5) by chosen (0.",
    ),
    "an inverted baseline": (block(shift=-2.0), "ood, a: ranked below the rest (AUROC below 0.5) by "),
}


@pytest.mark.parametrize(("table", "message"), REMARKS.values(), ids=REMARKS.keys())
def test_remarks(table, message):
    assert message in "\n".join(remarks(table, score_records(table)))


def test_what_protocols_have_in_common_is_said_once():
    table = pd.concat([block(shift=-2.0, positives=7), block(shift=-2.0, positives=7, protocol="auxiliary")])
    found = remarks(table, score_records(table))
    assert [line.partition(":")[0] for line in found] == [
        "ood, a", "ood, a", "ood, leave_one_dataset_out, a", "ood, auxiliary, a",
    ]  # fmt: skip


def test_nothing_to_remark():
    assert remarks(WRONG, list(OF_WRONG.values())) == []


@pytest.mark.parametrize("name", [*LEADING, "chosen", "meta", SCORE_LR, CLASSIFIER])
def test_a_score_cannot_be_called_like_what_stands_beside_it(name):
    with pytest.raises(ConfigError, match=f"baseline '{name}': this name means something else already"):
        baselines.BASELINES.add(name, baselines.BASELINES["msp"])
