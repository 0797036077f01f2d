"""Near-duplicates: what is nearly the same, and what becomes of those of a run."""

import io
import json
from functools import cache

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from run_inputs import INPUTS
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from written_runs import write_split

from gradscore.config import Config
from gradscore.data import FIT, TEST, open_splits, signature_of
from gradscore.evaluation import evaluate_run, fit_run, near_duplicates
from gradscore.evaluation.near_duplicates import NEIGHBOURS, chance, dimension, near_pairs, nearest
from gradscore.evaluation.near_duplicates import find_near_duplicates as search
from gradscore.evaluation.records import near_duplicate_records
from gradscore.reporting import write_report
from gradscore.store import RunFolder, RunWriter, ShardRows


def images(count, *, seed, side=32, channels=3):
    """Smooth random images: a few coarse cells, blown up."""
    cells = np.random.default_rng(seed).integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)
    made = [np.asarray(Image.fromarray(each).resize((side, side), Image.Resampling.BICUBIC)) for each in cells]
    return np.stack(made)[..., :channels]


def signatures(pixels):
    return np.stack([np.frombuffer(signature_of(each), dtype=np.uint8) for each in pixels]).astype(np.float32)


def jpeg(pixels, quality=75):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def one_value(pixels):
    changed = pixels.copy()
    changed[7, 9, 0] ^= 255
    return changed


EDITS = {
    "jpeg 90": lambda pixels: jpeg(pixels, 90),
    "jpeg 50": lambda pixels: jpeg(pixels, 50),
    "one pixel to the right": lambda pixels: np.pad(pixels, ((0, 0), (1, 0), (0, 0)), mode="edge")[:, :-1],
    "one pixel down": lambda pixels: np.pad(pixels, ((1, 0), (0, 0), (0, 0)), mode="edge")[:-1],
    "one value": one_value,
    "half the size": lambda pixels: np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)),
}
KNOWN, NEW = images(500, seed=1), images(200, seed=2)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_copies_are_found_and_nothing_else(edit):
    edited = signatures([edit(each) for each in KNOWN[:30]])
    found = list(near_pairs(np.concatenate([signatures(NEW), edited]), signatures(KNOWN)))
    assert [(shown, known) for shown, known, _ in found] == [(200 + place, place) for place in range(30)]


def test_all_versions_of_an_image_are_found():
    fit = np.concatenate([KNOWN, [jpeg(KNOWN[0], quality) for quality in (40, 60, 80)]])
    found = list(near_pairs(signatures([jpeg(KNOWN[0], 70)]), signatures(fit)))
    assert {known for _, known, _ in found} == {0, 500, 501, 502}


def test_a_clean_set_has_none():
    assert list(near_pairs(signatures(images(3000, seed=3)), signatures(KNOWN))) == []


def test_images_of_one_colour_are_no_near_duplicates():
    """40 colours, two images of each and of faint content of their own: near as they are, unlike with colour out."""
    colours = np.random.default_rng(4).integers(20, 236, (40, 1, 1, 3))
    pixels = [
        (colours[place % 40] + (content.astype(np.float64) - 128) * 0.1).astype(np.uint8)
        for place, content in enumerate(images(80, seed=5))
    ]
    fit = np.concatenate([KNOWN, pixels[:40]])
    assert list(near_pairs(signatures(pixels[40:]), signatures(fit))) == []


def test_where_everything_is_the_same_nothing_is_near():
    plain = signatures(np.full((30, 32, 32, 3), 7, dtype=np.uint8))
    assert list(near_pairs(plain[:5], plain)) == []


def test_neighbours_against_all_distances():
    shown, known = signatures(NEW), signatures(KNOWN)
    wanted = cdist(shown.astype(np.float64), known.astype(np.float64))
    places, distances = nearest(shown, known)
    np.testing.assert_allclose(distances, np.sort(wanted, axis=1)[:, :NEIGHBOURS], rtol=1e-5)
    np.testing.assert_array_equal(places[:, 0], wanted.argmin(axis=1))


def test_an_image_is_not_its_own_neighbour():
    known = signatures(KNOWN)
    wanted = cdist(known.astype(np.float64), known.astype(np.float64))
    np.fill_diagonal(wanted, np.inf)
    _, distances = nearest(known, known, own=np.arange(len(known)))
    np.testing.assert_allclose(distances, np.sort(wanted, axis=1)[:, :NEIGHBOURS], rtol=1e-5)


@cache
def evenly(m):
    """Distances to the neighbours of 20,000 points that lie evenly in m dimensions without an edge."""
    points = np.random.default_rng(m).random((20000, m))
    return cKDTree(points, boxsize=1.0).query(points, k=NEIGHBOURS + 1)[0][:, 1:]


@pytest.mark.parametrize("m", [2, 3, 6])
def test_the_dimension_is_that_of_the_data(m):
    assert dimension(evenly(m)) == pytest.approx(m, rel=0.03)


@pytest.mark.parametrize("level", [0.3, 0.01])
@pytest.mark.parametrize("m", [2, 5])
def test_false_alarms_are_as_many_as_said(m, level):
    flagged = int((chance(evenly(m), m)[:, 0] < level).sum())
    expected = 20000 * level
    assert flagged == pytest.approx(expected, abs=6 * expected**0.5)


def test_chance_by_hand():
    distances = np.r_[1.0, np.full(8, 2.0), 2.0][None]
    assert chance(distances, 2.0)[0, 0] == pytest.approx(1 - 0.75**9, rel=1e-12)


def test_signatures_are_means_of_cells():
    pixels = np.random.default_rng(0).integers(0, 256, (32, 24, 1), dtype=np.uint8)
    wanted = pixels.mean(axis=2).reshape(8, 4, 8, 3).mean(axis=(1, 3))
    found = np.frombuffer(signature_of(pixels), dtype=np.uint8).reshape(8, 8, 3).astype(np.float64)
    np.testing.assert_allclose(found, np.repeat(wanted[..., None], 3, axis=2), atol=1.01)


FITTED, TESTED, PLANTED = 120, 60, 8
NAMES = ["logit_0", "logit_1", "uniform/fc.weight/l1"]


def write_run(folder, *, planted, setting="report", banked=None):
    """A run whose first test images are fit images: one copied to the byte, `planted` encoded anew.

    With `banked`, it has calibration samples and a bank, the first images of which are test and calibration images
    encoded anew, `banked` of each.
    """
    fit, test = images(FITTED, seed=1), images(TESTED, seed=2)
    test[:planted] = np.array([jpeg(each) for each in fit[:planted]], dtype=np.uint8).reshape(-1, 32, 32, 3)
    test[PLANTED] = fit[PLANTED]
    in_dist = {"fit": fit, "test": test}
    if banked is not None:
        calibration, bank = images(TESTED, seed=4), images(FITTED, seed=5)
        bank[: 2 * banked] = [jpeg(each) for each in (*test[-banked:], *calibration[:banked])]
        in_dist |= {"calibration": calibration, "bank": bank}
    for name, pixels in {**in_dist, "ood": images(TESTED, seed=3)}.items():
        np.savez(folder / f"{name}.npz", images=pixels, labels=np.arange(len(pixels)) % 2)
    settings = {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 2},
        "data": {
            "auxiliary": [],
            "in_dist": {name: {"source": f"npz:{folder / name}.npz"} for name in in_dist},
            "ood": [
                {"name": "strange", "source": f"npz:{folder / 'ood'}.npz"},
                {"name": "blurred", "source": "synthetic:blur"},
            ],
        },
        "meta": {"cv_folds": 2, "Cs": [0.01]},
        "evaluate": {"near_duplicates": setting, "protocols": ["in_dist_only"]},
        "run": str(folder / "run"),
    }
    config = Config.model_validate(settings)
    opened = open_splits(config.data, preprocessing=config.preprocessing, num_classes=2, seed=0)
    with RunWriter.opened(config.run, config=config, inputs=INPUTS) as writer:
        for split, dataset in opened.items():
            write_split(writer, rows(split, list(dataset)))
        writer.finish(feature_count=1, notices=[])
    return RunFolder(config.run)


def rows(split, samples):
    labels = np.array([sample.label for sample in samples])
    generator = np.random.default_rng(list(split.encode()))
    return ShardRows(
        split=split,
        sample_ids=[sample.id for sample in samples],
        labels=labels,
        predictions=np.where(np.arange(len(samples)) % 5 == 0, 1 - labels, labels) % 2,
        content_hashes=[sample.content_hash for sample in samples],
        names=NAMES,
        values=generator.lognormal(size=(len(samples), len(NAMES))),
        skipped=[],
        signatures=[sample.signature for sample in samples],
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
    assert [(pair.split, pair.sample_id, pair.near_sample_id) for pair in found.pairs] == [
        (TEST, names[place], names[place]) for place in range(PLANTED)
    ]
    # One test image is a copy to the byte; sets made of images of the run are not searched.
    assert found.searched == {(FIT, TEST): TESTED - 1, (FIT, "ood.strange"): TESTED}


def test_a_clean_run_has_none(tmp_path):
    found = search(write_run(tmp_path, planted=0))
    assert (found.pairs, found.sentences()) == ([], [])
    assert [record.value for record in near_duplicate_records(found)] == [0.0, 0.0]


def test_they_are_counted_in_words_and_in_metrics(evaluation):
    (line,) = [line for line in evaluation.notices if line.startswith("near-duplicates")]
    assert f"{PLANTED} of {TESTED - 1} images of in_dist.test are nearly images of in_dist.fit" in line
    assert line.endswith("they flatter the figures: take them out of in_dist.fit")
    entries = [each for each in json.loads(evaluation.path.read_text()) if each["score"] == "near_duplicates"]
    assert [(each["dataset"], each["value"], each["n"]) for each in entries] == [
        (TEST, PLANTED, TESTED - 1),
        ("ood.strange", 0, TESTED),
    ]


def test_they_are_named_in_a_table_and_on_the_page(planted, evaluation):
    page = write_report(planted, evaluation)
    table = pd.read_csv(planted.evaluation_path / "near_duplicates.csv", dtype=str)
    assert table["sample_id"].tolist() == table["near_sample_id"].tolist()
    assert len(table) == PLANTED
    first = table.iloc[0]
    assert f"<td>in_dist.test</td><td>{first['sample_id']}</td>" in page.read_text()


def test_the_images_need_not_be_there_any_more(tmp_path):
    run = write_run(tmp_path, planted=PLANTED)
    for path in tmp_path.glob("*.npz"):
        path.unlink()
    assert len(search(run).pairs) == PLANTED


def test_among_too_many_images_none_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "MOST_IMAGES", FITTED + 2 * TESTED - 1)
    run = write_run(tmp_path, planted=PLANTED)
    expected = f"near-duplicates were not looked for: {FITTED + 2 * TESTED} images are more than"
    assert [notice.startswith(expected) for notice in search(run).sentences()] == [True]


NO_IMAGES = {"ignore": [], "report": ["near-duplicates were not looked for: the images of in_dist.fit are no pixels"]}


@pytest.mark.parametrize(("setting", "wanted"), NO_IMAGES.items(), ids=NO_IMAGES)
def test_images_that_are_no_pixels_are_said(tmp_path, monkeypatch, setting, wanted):
    monkeypatch.setattr(RunFolder, "signatures", lambda _, __: None)
    run = write_run(tmp_path, planted=0, setting=setting)
    run.manifest.splits[FIT].hides_images = True
    found = search(run).sentences()
    assert [line.startswith(start) for line, start in zip(found, wanted, strict=True)] == [True] * len(wanted)


def test_images_nearly_in_the_bank_are_a_leak(tmp_path):
    run = write_run(tmp_path, planted=0, banked=3)
    bank = run.read("in_dist.bank")["sample_id"]
    found = search(run)
    assert found.in_fit == []
    assert [(pair.split, pair.near_sample_id) for pair in found.pairs] == [
        *((TEST, bank[place]) for place in range(3)),
        *(("in_dist.calibration", bank[place]) for place in range(3, 6)),
    ]
    test, calibration = found.sentences()
    assert f"3 of {TESTED} images of in_dist.test are nearly images of in_dist.bank" in test
    assert test.endswith("a leak, since they are compared with the bank: take them out of the bank")
    assert f"3 of {TESTED} images of in_dist.calibration are nearly images of in_dist.bank" in calibration
    fit_run(run)
    evaluation = evaluate_run(run)
    assert {test, calibration} <= set(evaluation.notices)
    table = pd.read_csv(run.evaluation_path / "near_duplicates.csv", dtype=str)
    assert table[["near_split", "near_sample_id"]].to_numpy().tolist() == [["in_dist.bank", name] for name in bank[:6]]
