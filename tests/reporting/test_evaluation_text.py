from dataclasses import replace

import pytest

from gradscore.evaluation import Records
from gradscore.evaluation.records import Record, verdicts
from gradscore.reporting.evaluation_report import gains, headlines

TEST = "in_dist.test"


def record(metric="auroc", *, task="misclassification", protocol="in_dist_only", dataset=TEST, score="chosen",
           value=0.9, low=0.85, high=0.93, n=500, n_positive=50):  # fmt: skip
    return Record(
        task=task, protocol=protocol, dataset=dataset, score=score, metric=metric, value=value, low=low, high=high, n=n,
        n_positive=n_positive,
    )  # fmt: skip


def gain(over, *, low, high, p_value=0.5):
    score = "meta" if over == "score_lr" else "chosen"
    found = record(f"auroc_gain_over_{over}", score=score, value=(low + high) / 2, low=low, high=high)
    return replace(found, p_value=p_value)


def compared(*found):
    baselines = [record(score="msp", value=0.88), record(score="energy", value=0.8), record(score="score_lr")]
    return gains(verdicts([record(), *baselines, *found]))


BETTER, OPEN, WORSE = (f"The meta model is {said} the best baseline, msp." for said in (
    "better than", "not shown to be better than", "worse than"
))  # fmt: skip
OUTCOMES = {
    "above": ({"low": 0.01, "high": 0.03}, "better", BETTER),
    "zero inside": ({"low": -0.01, "high": 0.03}, "open", OPEN),
    "zero at the edge": ({"low": 0.0, "high": 0.03}, "open", OPEN),
    "below, by chance among two": ({"low": -0.03, "high": -0.001, "p_value": 0.03}, "open", OPEN),
    "below": ({"low": -0.03, "high": -0.01, "p_value": 0.02}, "worse", WORSE),
}


@pytest.mark.parametrize(("best", "kind", "text"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_best_baseline_decides(best, kind, text):
    (found,) = compared(gain("msp", **best), gain("energy", low=0.05, high=0.15))
    assert (found.label, found.kind) == ("Wrong predictions", kind)
    assert text in found.text


def test_the_comparison_names_rivals_and_intervals():
    (found,) = compared(gain("msp", low=-0.01, high=0.03), gain("score_lr", low=0.01, high=0.02))
    assert "AUROC gained over msp, the best baseline on these samples, +0.010 (-0.010 to +0.030)" in found.text
    assert "score_lr, a logistic regression on all scores without gradients, +0.015 (+0.010 to +0.020)" in found.text


def test_too_few_samples_give_no_verdict():
    assert gains(verdicts([record(value=None, low=None, high=None)])) == []


def test_the_headline_in_plain_words():
    (found,) = headlines(Records([record()]))
    assert (found.value, found.interval) == ("0.900", "AUROC (0.850 to 0.930)")
    assert "more suspicious 90.0 % of the time (50 wrong, 450 right)." in found.text


def test_few_mistakes_are_said_in_the_headline():
    (found,) = headlines(Records([record(n_positive=5)]))
    assert "Only 5 are wrong, so the interval is wide." in found.text


def test_leave_one_dataset_out_is_the_headline_for_ood():
    found = [
        record(task="ood", protocol=name, dataset="a") for name in ("known", "leave_one_dataset_out", "in_dist_only")
    ]
    (headline,) = headlines(Records(found))
    assert headline.title == "OOD: a"
    assert "fitted on the other OOD sets only" in headline.text


def test_groups_stand_for_their_sets():
    ood = {"task": "ood", "protocol": "leave_one_dataset_out"}
    sets = [record(**ood, dataset=name) for name in ("a", "b")]
    groups = [
        record(**ood, dataset="near (mean)"),
        record(**ood, dataset="near (pooled)", value=0.7, low=0.6, high=0.8),
    ]
    (headline,) = headlines(Records([*sets, *groups]))
    assert (headline.title, headline.interval) == ("Near OOD", "mean AUROC (0.850 to 0.930)")
    assert "Pooled over all samples: 0.700 (0.600 to 0.800)." in headline.text


def test_nothing_to_report_has_no_headline():
    assert list(headlines(Records([]))) == []
