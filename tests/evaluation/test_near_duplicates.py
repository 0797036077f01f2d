"""Near-duplicates of a run: found, named, written, and left out of the fits on request."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from run_inputs import INPUTS

from gradscore.baselines import Ordinary
from gradscore.config.schema import Config
from gradscore.data import FIT, TEST, open_splits
from gradscore.errors import EvaluationError
from gradscore.evaluation import evaluate_run, fit_run, near_duplicates
from gradscore.evaluation.near_duplicates import search
from gradscore.reporting import write_report
from gradscore.store.run_folder import RunFolder
from gradscore.store.run_writer import RunWriter
from gradscore.store.shards import ShardRows

FITTED, TESTED, PLANTED = 120, 60, 8
NAMES = ["logit_0", "logit_1", "uniform/fc.weight/l1"]


def pictures(count, *, seed):
    cells = np.random.default_rng(seed).integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(each).resize((32, 32), Image.Resampling.BICUBIC)) for each in cells])


def jpeg(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=75)
    return np.asarray(Image.open(buffer))


def write_run(folder, *, planted, setting="report", banked=None):
    """A run whose first test images are fit images: one copied to the byte, `planted` encoded anew.

    With `banked`, it has calibration samples and a bank, the first images of which are test and calibration images
    encoded anew, `banked` of each.
    """
    fit, test = pictures(FITTED, seed=1), pictures(TESTED, seed=2)
    test[:planted] = np.array([jpeg(each) for each in fit[:planted]], dtype=np.uint8).reshape(-1, 32, 32, 3)
    test[PLANTED] = fit[PLANTED]
    in_dist = {"fit": fit, "test": test}
    if banked is not None:
        calibration, bank = pictures(TESTED, seed=4), pictures(FITTED, seed=5)
        again = [jpeg(each) for each in (*test[-banked:], *calibration[:banked])] if banked else []
        bank[: len(again)] = np.array(again, dtype=np.uint8).reshape(-1, 32, 32, 3)
        in_dist |= {"calibration": calibration, "bank": bank}
    for name, images in {**in_dist, "ood": pictures(TESTED, seed=3)}.items():
        np.savez(folder / f"{name}.npz", images=images, labels=np.arange(len(images)) % 2)
    settings = {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 2},
        "data": {
            "in_dist": {name: {"source": f"npz:{folder / name}.npz"} for name in in_dist},
            "ood": [
                {"name": "strange", "source": f"npz:{folder / 'ood'}.npz"},
                {"name": "blurred", "source": "synthetic:blur"},
            ],
        },
        "meta": {"cv_folds": 2, "strengths": [0.01]},
        "evaluate": {"near_duplicates": setting, "protocols": ["in_dist_only"]},
        "run": str(folder / "run"),
    }
    config = Config.model_validate(settings)
    opened = open_splits(config.data, preprocessing=config.preprocessing, num_classes=2, seed=0)
    with RunWriter.opened(config.run, config=config, inputs=INPUTS) as writer:
        for split, dataset in opened.items():
            note = writer.write(split, 0, rows(split, list(dataset)))
            writer.finish_split(split, [note], samples=1, seconds=1.0)
        writer.finish(feature_count=1, notices=[])
    return RunFolder(config.run)


def rows(split, samples):
    labels = np.array([sample.label for sample in samples])
    generator = np.random.default_rng(list(split.encode()))
    return ShardRows(
        split=split,
        sample_ids=[sample.sample_id for sample in samples],
        labels=labels,
        predictions=np.where(np.arange(len(samples)) % 5 == 0, 1 - labels, labels) % 2,
        content_hashes=[sample.content_hash for sample in samples],
        names=NAMES,
        values=generator.lognormal(size=(len(samples), len(NAMES))),
        skipped=[],
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("planted"), planted=PLANTED)
    fit_run(run)
    return run


@pytest.fixture(scope="module")
def evaluation(planted):
    return evaluate_run(planted)


def test_they_are_found_with_the_names_of_both(planted):
    names = RunFolder(planted.path).read(TEST)["sample_id"]
    found = search(planted)
    assert [(pair.split, pair.sample_id, pair.fit_sample_id) for pair in found.pairs] == [
        (TEST, names[place], names[place]) for place in range(PLANTED)
    ]
    # One test image is a copy to the byte; sets made of images of the run are not searched.
    assert found.searched == {TEST: TESTED - 1, "ood.strange": TESTED}


def test_a_clean_run_has_none(tmp_path):
    found = search(write_run(tmp_path, planted=0))
    assert (found.pairs, found.in_words()) == ([], [])
    assert found.counts() == {TEST: 0, "ood.strange": 0}


def test_they_are_counted_in_words_and_in_metrics(evaluation):
    (line,) = [line for line in evaluation.notices if line.startswith("near-duplicates")]
    assert f"{PLANTED} of {TESTED - 1} images of in_dist.test are nearly images of in_dist.fit" in line
    assert "evaluate.near_duplicates=leave_out" in line
    entries = [each for each in json.loads(evaluation.path.read_text()) if each["score"] == "near_duplicates"]
    assert [(each["dataset"], each["value"], each["n"]) for each in entries] == [
        (TEST, PLANTED, TESTED - 1),
        ("ood.strange", 0, TESTED),
    ]


def test_they_are_named_in_a_table_and_in_both_pages(planted, evaluation):
    files = write_report(planted, evaluation)
    table = pd.read_csv(planted.evaluation_path / "near_duplicates.csv", dtype=str)
    assert table["sample_id"].tolist() == table["fit_sample_id"].tolist()
    assert len(table) == PLANTED
    first = table.iloc[0]
    assert f"| in_dist.test | {first['sample_id']} | {first['fit_sample_id']} |" in files.markdown.read_text()
    assert f"<td>in_dist.test</td><td>{first['sample_id']}</td>" in files.html.read_text()


LEFT_OUT = {"report": 1, "leave_out": 1 + PLANTED, "ignore": 1}


@pytest.mark.parametrize(("setting", "left_out"), LEFT_OUT.items(), ids=LEFT_OUT)
def test_on_request_their_fit_images_do_not_fit(tmp_path, setting, left_out):
    report = fit_run(write_run(tmp_path, planted=PLANTED, setting=setting))
    fitted = next(each for each in report.models if each.spec.task == "misclassification")
    assert fitted.spec.duplicates == left_out
    assert int(fitted.spec.fit[FIT].sum()) == FITTED - left_out
    assert any("left out of the fits" in line for line in report.notices) == (setting == "leave_out")


def test_scores_without_gradients_are_not_fitted_on_them_either(tmp_path, monkeypatch):
    run = write_run(tmp_path, planted=PLANTED, setting="leave_out")
    fitted = []

    def spied(**given):
        fitted.append(len(given["classes"]))
        return Ordinary(**given)

    monkeypatch.setattr("gradscore.evaluation.preparation.Ordinary", spied)
    fit_run(run)
    assert fitted == [FITTED - 1 - PLANTED]


def test_images_that_are_gone_are_said(tmp_path):
    run = write_run(tmp_path, planted=PLANTED)
    (tmp_path / "test.npz").unlink()
    (line,) = search(run).in_words()
    assert line.startswith("near-duplicates were not looked for: ")


def test_too_many_images_are_looked_through_on_request_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "MOST_IMAGES", FITTED + 2 * TESTED - 1)
    run = write_run(tmp_path, planted=PLANTED)
    expected = f"near-duplicates were not looked for: {FITTED + 2 * TESTED} images are more than"
    assert [notice.startswith(expected) for notice in search(run).in_words()] == [True]
    asked = run.with_settings(["evaluate.near_duplicates=leave_out"], sections=["evaluate"])
    assert len(search(asked).pairs) == PLANTED


def test_images_that_are_gone_cannot_be_left_out(tmp_path):
    run = write_run(tmp_path, planted=PLANTED, setting="leave_out")
    (tmp_path / "test.npz").unlink()
    with pytest.raises(EvaluationError, match=r"near_duplicates is leave_out, and the images cannot be read again"):
        fit_run(run)


def test_changed_images_are_said(tmp_path):
    run = write_run(tmp_path, planted=0)
    np.savez(tmp_path / "fit.npz", images=pictures(FITTED, seed=9), labels=np.zeros(FITTED, dtype=np.int64))
    (line,) = search(run).in_words()
    assert "is no longer what the features were extracted from" in line


def test_images_nearly_in_the_bank_are_a_leak(tmp_path):
    run = write_run(tmp_path, planted=0, banked=3)
    bank = run.read("in_dist.bank")["sample_id"]
    found = search(run)
    assert found.pairs == []
    assert [(pair.split, pair.bank_sample_id) for pair in found.in_bank] == [
        *((TEST, bank[place]) for place in range(3)),
        *(("in_dist.calibration", bank[place]) for place in range(3, 6)),
    ]
    test, calibration = found.in_words()
    assert f"3 of {TESTED} images of in_dist.test are nearly images of in_dist.bank" in test
    assert test.endswith("a leak, since they are compared with the bank: take them out of the bank")
    assert f"3 of {TESTED} images of in_dist.calibration are nearly images of in_dist.bank" in calibration
    fit_run(run)
    evaluation = evaluate_run(run)
    assert {test, calibration} <= set(evaluation.notices)
    table = pd.read_csv(run.evaluation_path / "near_duplicates_bank.csv", dtype=str)
    assert table["bank_sample_id"].tolist() == bank[:6].tolist()


def test_a_clean_bank_has_no_leak(tmp_path):
    found = search(write_run(tmp_path, planted=0, banked=0))
    assert (found.in_bank, found.in_words()) == ([], [])


def test_a_bank_that_is_gone_is_said(tmp_path):
    run = write_run(tmp_path, planted=0, banked=0)
    (tmp_path / "bank.npz").unlink()
    (line,) = search(run).in_words()
    assert line.startswith("near-duplicates were not looked for: ")
