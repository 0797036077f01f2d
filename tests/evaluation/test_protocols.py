import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gradscore.data import CALIBRATION, FIT, TEST, SplitInfo, open_source
from gradscore.evaluation import EvaluationReport, evaluate_run, fit_run, protocols, read_scores
from gradscore.evaluation.protocols import (
    SplitContent,
    drawn,
    first_half,
    largest_share,
    make_specs,
    rows_that_fit,
    subsampling_notices,
)
from gradscore.store import RunFolder

ALL = ["known", "leave_one_dataset_out", "in_dist_only"]


def split(name, *, hashes=None, correct=None, auxiliary=False, size=20):
    hashes = hashes or [f"{name}-{place}" for place in range(len(correct or range(size)))]
    group = name.partition(".")[0]
    kind = name if group == "in_dist" else group
    info = SplitInfo(name, kind, auxiliary=auxiliary)
    truth = [None] * len(hashes) if kind == "ood" else (correct or [True, False] * (len(hashes) // 2))
    return SplitContent(info, pd.Series(hashes), pd.Series(truth, dtype="boolean"))


def in_dist(**changes):
    return [changes.get("fit", split(FIT)), changes.get("test", split(TEST))]


WHOLE = [*in_dist(), split("ood.a"), split("ood.b"), split("ood.noise", auxiliary=True)]
PLANS = {spec.label: spec for spec in make_specs(WHOLE, protocols=ALL).specs}
HALF = first_half(WHOLE[2].content_hash)


def content(splits, rows):
    """The content hashes of the chosen rows."""
    hashes = {each.info.name: each.content_hash for each in splits}
    return {value for name, mask in rows.items() for value in hashes[name][mask]}


def reported_content(splits, spec):
    return set().union(*(content(splits, rows) for rows in spec.reported.values()))


def test_all_models_are_planned():
    assert list(PLANS) == [
        "misclassification/in_dist_only/all",
        "ood/known/all",
        "ood/leave_one_dataset_out/a",
        "ood/leave_one_dataset_out/b",
        "ood/in_dist_only/all",
    ]


@pytest.mark.parametrize("spec", PLANS.values(), ids=PLANS)
def test_nothing_reported_is_fitted_on(spec):
    assert not content(WHOLE, spec.fit) & reported_content(WHOLE, spec)


@pytest.mark.parametrize("spec", PLANS.values(), ids=PLANS)
def test_only_the_test_split_and_ood_sets_that_are_not_auxiliary_are_reported(spec):
    assert {name for rows in spec.reported.values() for name in rows} <= {TEST, "ood.a", "ood.b"}


FITTED_SPLITS = {
    "misclassification/in_dist_only/all": {FIT},
    "ood/known/all": {FIT, "ood.a", "ood.b", "ood.noise"},
    "ood/leave_one_dataset_out/a": {FIT, "ood.b", "ood.noise"},
    "ood/leave_one_dataset_out/b": {FIT, "ood.a", "ood.noise"},
    "ood/in_dist_only/all": {FIT},
}


@pytest.mark.parametrize(("label", "expected"), FITTED_SPLITS.items(), ids=FITTED_SPLITS)
def test_splits_that_fit(label, expected):
    assert set(PLANS[label].fit) == expected


def test_known_fits_one_half_and_reports_the_other():
    spec = PLANS["ood/known/all"]
    assert 0 < HALF.sum() < 20
    np.testing.assert_array_equal(spec.fit["ood.a"], HALF)
    np.testing.assert_array_equal(spec.reported["a"]["ood.a"], ~HALF)
    assert spec.fit["ood.noise"].all()


def test_expected_are_the_sets_of_the_user_in_models_for_everything():
    """Not synthetic ones, nor where a set is left out to see how well others stand for it."""
    sets = [*WHOLE, split("ood.given", auxiliary=True), replace(split("ood.made", auxiliary=True), synthetic=True)]
    found = make_specs(sets, protocols=[*ALL, "auxiliary"]).specs
    assert {spec.label: spec.expected for spec in found if spec.expected} == {
        "ood/known/all": ["ood.a", "ood.b", "ood.noise", "ood.given"],
        "ood/auxiliary/all": ["ood.noise", "ood.given"],
    }


def test_in_dist_only_fits_correct_samples_alone():
    assert PLANS["ood/in_dist_only/all"].fit[FIT].tolist() == [True, False] * 10


def test_halves_keep_copies_together():
    hashes = pd.Series([f"{place % 50}" for place in range(100)])
    half = first_half(hashes)
    assert (half[:50] == half[50:]).all()


def test_positives_are_wrong_or_ood_samples():
    assert PLANS["misclassification/in_dist_only/all"].positive[TEST].tolist() == [False, True] * 10
    assert PLANS["ood/known/all"].positive["ood.a"].all()
    assert not PLANS["ood/known/all"].positive[TEST].any()


COPIES = [
    *in_dist(fit=split(FIT, hashes=["x", "x", "y", "z", "c0", "w"])),
    split("ood.a", hashes=["a0", "y", "a1", "a2"]),
    split("ood.b", hashes=["b0", "a1", "b1", "b2"]),
]
COPIES[1] = split(TEST, hashes=["x", "t0", "t1", "t2"])
COPY_PLANS = {spec.label: spec for spec in make_specs(COPIES, protocols=ALL).specs}


@pytest.mark.parametrize("spec", COPY_PLANS.values(), ids=COPY_PLANS)
def test_copies_of_reported_samples_are_not_fitted_on(spec):
    assert not content(COPIES, spec.fit) & reported_content(COPIES, spec)


def test_ood_samples_that_are_test_samples_are_not_reported():
    splits = [
        *in_dist(test=split(TEST, hashes=["t0", "t1"])),
        split("ood.a", hashes=["a0", "t0", "a1", f"{FIT}-0", "t1"]),
    ]
    specs = make_specs(splits, protocols=["in_dist_only"]).specs
    assert specs[1].reported["a"]["ood.a"].tolist() == [True, False, True, True, False]
    assert specs[1].reported["a"][TEST].all()


def test_of_copies_in_an_ood_set_one_is_reported():
    """Fifty of one sample are no fifty samples: an interval of them would be of no width."""
    splits = [*in_dist(test=split(TEST, hashes=["t0", "t0"])), split("ood.a", hashes=["a0", "a1", "a0", "a0", "a2"])]
    specs = make_specs(splits, protocols=["in_dist_only"]).specs
    assert specs[1].reported["a"]["ood.a"].tolist() == [True, True, False, False, True]
    assert specs[1].reported["a"][TEST].all()  # rows of a few categories come again as often in use


def test_ood_samples_that_are_test_samples_are_in_no_half():
    hashes = [f"{place}" for place in range(20)]
    splits = [*in_dist(test=split(TEST, hashes=hashes[:10])), split("ood.a", hashes=hashes)]
    (spec,) = (each for each in make_specs(splits, protocols=["known"]).specs if each.protocol == "known")
    assert not spec.reported["a"]["ood.a"][:10].any()
    np.testing.assert_array_equal(spec.reported["a"]["ood.a"][10:], ~first_half(pd.Series(hashes[10:])))


def test_copies_are_counted():
    assert COPY_PLANS["misclassification/in_dist_only/all"].duplicates == 2
    # "x" twice and "y" of in_dist.fit, "a1" of the other OOD set
    assert COPY_PLANS["ood/leave_one_dataset_out/a"].duplicates == 4


def test_copies_of_calibrating_and_shifted_samples_are_not_fitted_on():
    splits = [
        *in_dist(fit=split(FIT, hashes=["c", "s", "x", "y"])),
        split(CALIBRATION, hashes=["c", "c1"]),
        split("shifted.blur", hashes=["s", "s1"]),
        split("ood.a"),
    ]
    for_wrong = make_specs(splits, protocols=ALL).specs[0]
    assert for_wrong.fit[FIT].tolist() == [False, False, True, True]
    assert for_wrong.duplicates == 2


def test_ood_samples_that_are_in_distribution_too_are_not_fitted_on():
    splits = [*in_dist(fit=split(FIT, hashes=["x", "y"])), split("ood.a", hashes=["x", "a"]), split("ood.b")]
    specs = {spec.label: spec for spec in make_specs(splits, protocols=[*ALL, "auxiliary"]).specs}
    assert specs["ood/leave_one_dataset_out/b"].fit["ood.a"].tolist() == [False, True]


SHIFTED = [
    *WHOLE,
    split("shifted.blur", correct=[True, False, None, None]),
    split("shifted.none", correct=[None, None]),
]


def test_shifted_sets_go_with_the_misclassification_model_alone():
    specs = make_specs(SHIFTED, protocols=ALL).specs
    assert [list(spec.shifted) for spec in specs] == [["blur"], [], [], [], []]
    assert specs[0].shifted["blur"]["shifted.blur"].tolist() == [True, True, False, False]
    assert specs[0].positive["shifted.blur"].tolist() == [False, True, False, False]


def test_shifted_sets_are_in_no_fit_and_no_ood_figure():
    specs = make_specs(SHIFTED, protocols=ALL).specs
    reported = {name for spec in specs for rows in spec.reported.values() for name in rows}
    assert not any(name.startswith("shifted.") for name in reported | {name for spec in specs for name in spec.fit})


def test_images_in_two_splits_are_listed():
    found = make_specs(COPIES, protocols=ALL).overlaps
    assert [(each.first.name, each.second.name, each.samples) for each in found] == [
        (FIT, TEST, 1),
        (FIT, "ood.a", 1),
        ("ood.a", "ood.b", 1),
    ]


UNLABELLED = SplitContent(SplitInfo(FIT, FIT), pd.Series(["0", "1"]), pd.Series([None, None], dtype="boolean"))
SKIPPED = {
    "no misclassified": ([*in_dist(fit=split(FIT, correct=[True] * 20))], "no misclassified sample"),
    "no correct": ([*in_dist(fit=split(FIT, correct=[False] * 20))], "no correctly classified sample"),
    "no labels": ([*in_dist(fit=UNLABELLED)], "no misclassified sample"),
    "no OOD set": (in_dist(), "no OOD set to report on"),
    "only auxiliary": ([*in_dist(), split("ood.n", auxiliary=True)], "none that is not auxiliary"),
    "one OOD set": ([*in_dist(), split("ood.a")], "leave_one_dataset_out/a: no other OOD set"),
    "nothing correct for in_dist_only": (
        [*in_dist(fit=split(FIT, correct=[False] * 20)), split("ood.a")],
        "in_dist_only/all: wanted at least 2 correctly classified",
    ),
    "only copies to fit on": (
        [*in_dist(fit=split(FIT, hashes=["x", "y"])), split("ood.a", hashes=["x", "y"]), split("ood.b")],
        "leave_one_dataset_out/a: 0 in-distribution and 20 OOD samples",
    ),
}


@pytest.mark.parametrize(("splits", "message"), SKIPPED.values(), ids=SKIPPED)
def test_what_cannot_be_fitted_is_skipped_in_words(splits, message):
    assert message in "; ".join(make_specs(splits, protocols=ALL).skipped)


def test_an_auxiliary_set_is_enough_for_leave_one_dataset_out():
    splits = [*in_dist(), split("ood.a"), split("ood.noise", auxiliary=True)]
    assert "ood/leave_one_dataset_out/a" in {spec.label for spec in make_specs(splits, protocols=ALL).specs}


def test_only_the_protocols_wanted_are_planned():
    labels = [spec.label for spec in make_specs(WHOLE, protocols=["known"]).specs]
    assert labels == ["misclassification/in_dist_only/all", "ood/known/all"]


OTHERS = "vectors, tokens and text"
KINDS_OF_SAMPLES = {
    "images": ("images", np.zeros((4, 4, 1), np.uint8)),
    "vectors": (OTHERS, np.zeros(4, np.float32)),
    "tokens": (OTHERS, {"input_ids": np.arange(4)}),
    "text": (OTHERS, "four words of text"),
}


@pytest.mark.parametrize(("kind", "sample"), KINDS_OF_SAMPLES.values(), ids=KINDS_OF_SAMPLES)
def test_an_auxiliary_set_is_advised_that_can_be_made_of_such_samples(kind, sample):
    skipped = " ".join(make_specs(in_dist(), protocols=["auxiliary"]).skipped)
    (name,) = re.findall(rf"synthetic:(\w+) for {kind}", skipped)
    base = SimpleNamespace(sample=lambda index: sample, labels=[0, 1], ids=["a", "b"])
    made = open_source(f"synthetic:{name}", {}, base=base)
    assert made.sample(0) is not None


FOR_USE = {
    "with test samples": [*in_dist(), split("ood.n", auxiliary=True)],
    "without": [split(FIT), split("ood.n", auxiliary=True)],
}


@pytest.mark.parametrize("splits", FOR_USE.values(), ids=FOR_USE)
def test_without_ood_sets_to_report_on_models_are_fitted_for_use(splits):
    specs = {spec.label: spec for spec in make_specs(splits, protocols=[*ALL, "auxiliary"]).specs}
    assert set(specs) == {"misclassification/in_dist_only/all", "ood/auxiliary/all", "ood/in_dist_only/all"}
    assert not specs["ood/auxiliary/all"].reported
    assert specs["ood/auxiliary/all"].fit["ood.n"].all()


def test_without_ood_sets_to_report_on_copies_of_test_samples_do_not_fit():
    splits = [*in_dist(fit=split(FIT, hashes=["x", "y", "z", "u"])), split("ood.n", auxiliary=True)]
    splits = [*splits[:1], split(TEST, hashes=["x", "v"]), *splits[2:]]
    spec = next(spec for spec in make_specs(splits, protocols=["auxiliary"]).specs if spec.task == "ood")
    assert spec.fit[FIT].tolist() == [False, True, True, True]


@pytest.mark.parametrize(("count", "most"), [(10, 10), (10, 3), (7, 1), (100_003, 50_000)])
def test_so_many_are_drawn_and_the_same_every_time(count, most):
    assert drawn(count, most).sum() == most
    np.testing.assert_array_equal(drawn(count, most), drawn(count, most))


@pytest.mark.parametrize("turns", [2, 4, 10])
def test_data_stored_in_turns_of_classes_keep_all_of_them(turns):
    kept = np.bincount((np.arange(200_000) % turns)[drawn(200_000, 50_000)], minlength=turns)
    assert kept.min() > 0.9 * 50_000 / turns


@pytest.mark.parametrize(
    ("sizes", "total", "share"),
    [([10, 100, 300], 210, 100), ([5, 5, 5], 100, 5), ([1000], 60, 60), ([9, 9, 9], 9, 3), ([2, 50, 80], 60, 29)],
)
def test_the_share_is_the_largest_that_fits(sizes, total, share):
    assert min(largest_share(sizes, total=total), max(sizes)) == share
    assert sum(min(size, share) for size in sizes) <= total


def test_nothing_is_subsampled_while_everything_fits():
    assert rows_that_fit({"in_dist.fit": 60_000, "in_dist.test": 10**6, "ood.a": 40_000}) == {}


def test_half_of_the_samples_are_in_dist_ones():
    found = rows_that_fit({"in_dist.fit": 400_000, "in_dist.bank": 150_000, "ood.a": 300_000, "ood.b": 1_000})
    kept = {name: int(mask.sum()) for name, mask in found.items()}
    assert kept == {"in_dist.fit": 50_000, "in_dist.bank": 100_000, "ood.a": 49_000}


def test_words_name_what_was_subsampled():
    (sentence,) = subsampling_notices({"in_dist.fit": 400_000, "in_dist.test": 10**6, "ood.a": 100})
    assert "50000 of 400000 of in_dist.fit; all are reported" in sentence


def test_a_subsampled_run_fits_on_fewer_and_reports_all(
    report_evaluation: EvaluationReport, report_copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "MOST_SAMPLES", 48)
    report = fit_run(report_copy)
    numbers = {fitted.spec.label: fitted.model.notes["n"] for fitted in report.models}
    assert numbers["misclassification/in_dist_only/all"] == 24
    assert numbers["ood/leave_one_dataset_out/files"] <= 24 + 24
    assert any("24 of 40 of in_dist.fit" in notice for notice in report.notices)
    evaluate_run(report_copy)
    after = read_scores(report_copy)
    keys = ["task", "protocol", "dataset", "sample_id"]
    pd.testing.assert_frame_equal(report_evaluation.scores[keys], after[keys])


def test_only_rows_that_may_fit_fit(report_copy: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "MOST_SAMPLES", 48)
    contents = [
        SplitContent(info, *(report_copy.read(info.name)[name] for name in ("content_hash", "correct")))
        for info in report_copy.splits()
    ]
    may_fit = rows_that_fit(report_copy.sizes)
    for spec in make_specs(contents, protocols=["known", "leave_one_dataset_out"]).specs:
        fitted = {split: mask & ~may_fit.get(split, np.ones_like(mask)) for split, mask in spec.fit.items()}
        assert not any(mask.any() for mask in fitted.values())
