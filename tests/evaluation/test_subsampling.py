"""Of large data sets samples drawn at random fit, all are reported, and the fit is that of a run that has no others."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradscore.evaluation import evaluate_run, fit_run, read_scores, subsampling
from gradscore.evaluation.protocols import SplitContent, make_specs
from gradscore.evaluation.subsampling import drawn, in_words, largest_share, rows_that_fit
from gradscore.store import RunFolder


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


def test_nothing_is_thinned_while_everything_fits():
    assert rows_that_fit({"in_dist.fit": 60_000, "in_dist.test": 10**6, "ood.a": 40_000}) == {}


def test_half_of_the_samples_are_ordinary_ones():
    found = rows_that_fit({"in_dist.fit": 400_000, "in_dist.bank": 150_000, "ood.a": 300_000, "ood.b": 1_000})
    kept = {name: int(mask.sum()) for name, mask in found.items()}
    assert kept == {"in_dist.fit": 50_000, "in_dist.bank": 100_000, "ood.a": 49_000}


def test_words_name_what_was_thinned():
    (sentence,) = in_words({"in_dist.fit": 400_000, "in_dist.test": 10**6, "ood.a": 100})
    assert "50000 of 400000 of in_dist.fit; all are reported" in sentence


@pytest.fixture
def copy(report_run: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(report_run.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_a_thinned_run_fits_on_fewer_and_reports_all(copy: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate_run(copy)
    before = read_scores(copy)
    monkeypatch.setattr(subsampling, "MOST_SAMPLES", 48)
    report = fit_run(copy)
    numbers = {fitted.spec.label: fitted.model.notes["n"] for fitted in report.models}
    assert numbers["misclassification/in_dist_only/all"] == 24
    assert numbers["ood/leave_one_dataset_out/files"] <= 24 + 24
    assert any("24 of 40 of in_dist.fit" in notice for notice in report.notices)
    evaluate_run(copy)
    after = read_scores(copy)
    keys = ["task", "protocol", "dataset", "sample_id"]
    pd.testing.assert_frame_equal(before[keys], after[keys])


def test_only_rows_that_may_fit_fit(copy: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsampling, "MOST_SAMPLES", 48)
    contents = [
        SplitContent(info, *(copy.read(info.name)[name] for name in ("content_hash", "correct")))
        for info in copy.splits()
    ]
    may_fit = rows_that_fit(copy.sizes)
    for spec in make_specs(contents, protocols=["known", "leave_one_dataset_out"], seed=0).specs:
        fitted = {split: mask & ~may_fit.get(split, np.ones_like(mask)) for split, mask in spec.fit.items()}
        assert not any(mask.any() for mask in fitted.values())
