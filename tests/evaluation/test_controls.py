from dataclasses import replace

import numpy as np
import pytest
from run_inputs import INPUTS
from typer.testing import CliRunner

from gradscore.config import Config
from gradscore.data import FIT, TEST
from gradscore.evaluation import fit_run, fits
from gradscore.evaluation.fits import Control, content_numbers, control_notices, permuted_labels
from gradscore.evaluation.intervals import Interval
from gradscore.store import RunFolder, RunWriter, ShardRows
from gradscore_cli.main import app

SIZE, WRONG = 300, 75
NAMES = ["logit_0", "logit_1", *(f"uniform/layer{place}.weight/l1" for place in range(40))]


def rows(split, *, copies):
    """Samples whose features say nothing; the first `copies` of the tested ones are the first of the fit."""
    names = [f"{FIT if place < copies else split}-{place}" for place in range(SIZE)]
    values = np.array([np.random.default_rng(list(name.encode())).lognormal(size=len(NAMES)) for name in names])
    labels = np.zeros(SIZE, dtype=np.int64)
    return ShardRows(
        split=split,
        sample_ids=[str(place) for place in range(SIZE)],
        labels=labels,
        predictions=np.where(np.arange(SIZE) % 4 == 0, 1, 0),
        content_hashes=names,
        names=NAMES,
        values=values,
        skipped=[],
    )


def write_run(path, *, copies=0):
    source = {"source": "sklearn:digits"}
    settings = {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 2},
        "data": {"auxiliary": [], "in_dist": {"fit": source, "test": source}},
        "meta": {"cv_folds": 2, "Cs": [0.001, 1.0]},
        "run": "run",
    }
    with RunWriter.opened(path, config=Config.model_validate(settings), inputs=INPUTS) as writer:
        for split in (FIT, TEST):
            note = writer.write(split, 0, rows(split, copies=copies if split == TEST else 0))
            writer.finish_split(split, [note], samples=1, seconds=1.0)
        writer.finish(feature_count=40, notices=[])
    return RunFolder(path)


@pytest.fixture
def without_removal(monkeypatch):
    """Copies of reported samples stay in the fits."""
    planned = fits.specs_of

    def all_fit(run, **options):
        found = planned(run, **options)
        return replace(found, specs=[replace(spec, fit={FIT: np.ones(SIZE, dtype=bool)}) for spec in found.specs])

    monkeypatch.setattr(fits, "specs_of", all_fit)


def control(*, value, low, high, copies=0):
    return Control(
        model="ood/known/all", dataset="a", area=Interval(value=value, low=low, high=high), n=80, copies=copies
    )


def test_permuted_labels_are_not_found(report_run):
    found = permuted_labels(report_run)
    assert [f"{each.model} {each.dataset}" for each in found] == [
        "misclassification/in_dist_only/all in_dist.test",
        "ood/known/all rotated",
        "ood/known/all files",
        "ood/leave_one_dataset_out/rotated rotated",
        "ood/leave_one_dataset_out/files files",
    ]
    assert all(each.passed for each in found)


def test_the_seed_decides(report_run):
    assert permuted_labels(report_run) == permuted_labels(report_run)


@pytest.mark.parametrize("copies", [0, 200], ids=["clean", "copies"])
def test_nothing_is_found_where_copies_are_removed(tmp_path, copies):
    (found,) = permuted_labels(write_run(tmp_path, copies=copies))
    assert (found.copies, found.n, found.passed) == (0, SIZE, True)
    assert found.area.low < 0.5 < found.area.high


@pytest.mark.usefixtures("without_removal")
def test_a_leak_is_found(tmp_path):
    (found,) = permuted_labels(write_run(tmp_path, copies=200))
    assert (found.copies, found.passed) == (200, False)
    assert found.area.low > 0.5
    assert found.area.value > 0.6


@pytest.mark.usefixtures("without_removal")
def test_without_removal_a_clean_run_passes(tmp_path):
    (found,) = permuted_labels(write_run(tmp_path))
    assert (found.copies, found.passed) == (0, True)


def test_a_leak_ends_with_exit_code_1(tmp_path, request):
    run = write_run(tmp_path, copies=200)
    fit_run(run)
    request.getfixturevalue("without_removal")
    result = CliRunner().invoke(app, ["evaluate", str(run.path), "--permuted-labels"])
    assert result.exit_code == 1
    assert "permuted labels: FAILED" in result.stdout
    assert "200 of 300 reported images are copies of images that fit" in " ".join(result.stdout.split())
    assert "FAILED" in (run.evaluation_path / "report.html").read_text()


def test_numbers_of_contents_are_even_and_unlike_under_another_seed():
    names = [str(place) for place in range(4000)]
    one, other = (content_numbers(names, seed=seed) for seed in (0, 1))
    # Standard errors: of a mean of uniform numbers 1/sqrt(12 n) = 0.0046, of a correlation 1/sqrt(n) = 0.016.
    assert one.mean() == pytest.approx(0.5, abs=0.02)
    assert np.corrcoef(one, other)[0, 1] == pytest.approx(0.0, abs=0.06)
    assert content_numbers(names[::-1], seed=0)[::-1].tolist() == one.tolist()


def test_all_is_well_control_notices():
    (line,) = control_notices([control(value=0.48, low=0.4, high=0.56), control(value=0.51, low=0.45, high=0.57)])
    assert "passed, nothing is found in 2 controls" in line
    assert "the AUROC farthest from 0.5 is 0.480 (0.400 to 0.560" in line


FAILURES = {"above": (0.6, 0.8, 0), "below": (0.2, 0.4, 0), "copies that do not show": (0.4, 0.6, 1)}


@pytest.mark.parametrize(("low", "high", "copies"), FAILURES.values(), ids=FAILURES)
def test_a_failed_control_control_notices(low, high, copies):
    bad = control(value=(low + high) / 2, low=low, high=high, copies=copies)
    (line,) = control_notices([bad, control(value=0.5, low=0.4, high=0.6)])
    assert "FAILED, ood/known/all finds labels that mean nothing in a" in line
    assert f"{copies} of 80 reported images are copies" in line
