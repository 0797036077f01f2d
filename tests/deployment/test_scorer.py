"""Scores of new samples against the run's own feature table, whatever the way they come in."""

import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from meta_models import OOD, WRONG, meta_model
from PIL import Image
from sklearn.datasets import load_digits

from gradscore import Detector
from gradscore.data import Batch, collate
from gradscore.deployment.scorer import Scorer
from gradscore.errors import BundleError, DataError, ModelError
from gradscore.extractor import Extractor
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder


@pytest.fixture(scope="module")
def scorer(small_bundle: Path) -> Scorer:
    return Scorer.load(small_bundle, trust_code=True)


@pytest.fixture(scope="module")
def batch(small_run: Path) -> Batch:
    dataset = open_datasets(RunFolder(small_run).config)["in_dist.test"]
    return collate([dataset[place] for place in range(50)])


@pytest.fixture(scope="module")
def table(scorer: Scorer, batch: Batch) -> pd.DataFrame:
    return scorer(batch.inputs, sample_ids=batch.ids)


PLACES = {"wrong": WRONG, "ood": OOD}


@pytest.fixture(params=["highest", "medium"])
def host_precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the process that scores has set for its own products."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("host_precision")
def test_scores_through_a_bundle_are_those_of_the_run_bit_for_bit(small_run, small_bundle, batch) -> None:
    frame = RunFolder(small_run).read("in_dist.test").iloc[:50]
    found = Scorer.load(small_bundle, trust_code=True, device="cpu")(batch.inputs)
    wanted = {name: meta_model(small_run, place).decision(frame) for name, place in PLACES.items()}
    assert found["prediction"].tolist() == frame["prediction"].tolist()
    assert {name: found[f"score_{name}"].to_numpy().tobytes() for name in PLACES} == {
        name: scores.tobytes() for name, scores in wanted.items()
    }


@pytest.mark.parametrize("detector", PLACES)
def test_p_values_by_counting(small_run, table, detector: str) -> None:
    frame = RunFolder(small_run).read("in_dist.calibration")
    right = frame[frame["correct"].to_numpy(dtype=bool)]
    calibration = meta_model(small_run, PLACES[detector]).decision(right)
    scores = table[f"score_{detector}"].to_numpy()
    counted = [(1 + int((calibration >= score - 1e-9).sum())) / (1 + len(calibration)) for score in scores]
    assert table[f"p_value_{detector}"].tolist() == pytest.approx(counted)


def test_decisions_follow_from_p_values(table) -> None:
    fires = {name: table[f"p_value_{name}"] <= 0.05 for name in PLACES}
    assert (table["decision"] == "reject").tolist() == (fires["wrong"] | fires["ood"]).tolist()
    assert table["reason"].str.contains("wrong").tolist() == fires["wrong"].tolist()
    assert table["reason"].str.contains("distribution").tolist() == fires["ood"].tolist()
    assert (table["decision"] == "reject").any()
    assert not table["error"].any()


def test_probabilities(scorer, table) -> None:
    notes = scorer.bundle.detectors["wrong"].model.notes
    assert 0 < notes["slope"] < 1
    wrong = 1 / (1 + np.exp(-(notes["slope"] * table["score_wrong"] + notes["shift"])))
    assert table["probability_wrong"].tolist() == pytest.approx(wrong.tolist())
    assert table["probability_ood"].tolist() == pytest.approx((1 / (1 + np.exp(-table["score_ood"]))).tolist())


def test_raw_pixels_are_preprocessed(scorer, batch, table) -> None:
    raw = ((batch.inputs * 0.5 + 0.5) * 255).round().to(torch.uint8)
    pd.testing.assert_frame_equal(scorer(raw, sample_ids=batch.ids), table)


WAYS = {
    "a numpy array": lambda scorer, images: scorer(images.numpy()),
    "needing gradients": lambda scorer, images: scorer(images.clone().requires_grad_()),
    "under no_grad": torch.no_grad()(lambda scorer, images: scorer(images)),
    "in inference mode": torch.inference_mode()(lambda scorer, images: scorer(images.clone())),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_call_gives_the_same(scorer, batch, table, way) -> None:
    assert way(scorer, batch.inputs)["score_ood"].tolist() == table["score_ood"].tolist()


def test_threads_take_turns(scorer, batch, table) -> None:
    results: dict[int, list[float]] = {}
    parts = [slice(0, 7), slice(7, 20), slice(20, 21), slice(21, 50)] * 3

    def work(number: int, part: slice) -> None:
        results[number] = scorer(batch.inputs[part])["score_wrong"].tolist()

    threads = [threading.Thread(target=work, args=(number, part)) for number, part in enumerate(parts)]
    _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
    wanted = [table["score_wrong"].tolist()[part] for part in parts]
    assert [results[number] for number in range(len(parts))] == [pytest.approx(each, abs=1e-3) for each in wanted]


def test_a_pass_of_another_thread_is_no_change_of_the_model(small_bundle, batch, monkeypatch) -> None:
    """One thread waits within its pass, where the model has hooks, until another has begun."""
    scorer = Scorer.load(small_bundle, trust_code=True)
    tests, self_test, values = [], Scorer._self_test, Extractor.values
    within, begun = threading.Event(), threading.Event()

    def waiting(self: Extractor, inputs: torch.Tensor) -> np.ndarray:
        scorer.model.register_buffer("seen", torch.zeros(1), persistent=False)
        within.set()
        begun.wait(10)
        del scorer.model.seen
        return values(self, inputs)

    monkeypatch.setattr(Scorer, "_self_test", lambda self: (tests.append(1), self_test(self))[1])
    monkeypatch.setattr(Extractor, "values", waiting)
    first, second = (threading.Thread(target=scorer, args=(batch.inputs[:count],)) for count in (2, 3))
    first.start()
    assert within.wait(60)
    second.start()
    second.join(0.5)  # time to look at the model, if it does not wait for its turn
    anew = threading.Thread(target=scorer.look_anew)
    anew.start()
    anew.join(0.2)
    assert anew.is_alive()  # it forgets what the first batch was, which the pass compares with
    begun.set()
    _ = [thread.join() for thread in (first, second, anew)]
    assert tests == []


def test_a_model_that_was_changed_and_put_back_is_scored_as_before(small_bundle, batch) -> None:
    """In later batches too, of which the second, fourth, eighth ... is compared with what the model gave before."""
    scorer = Scorer.load(small_bundle, trust_code=True)
    wanted = scorer(batch.inputs[:20])["score_ood"].tolist()
    hook = scorer.model.register_forward_hook(lambda _model, _inputs, output: output * 0.5)
    with pytest.raises(BundleError, match="logits"):
        scorer(batch.inputs[:20])
    hook.remove()
    assert [scorer(batch.inputs[:20])["score_ood"].tolist() for _ in range(8)] == [wanted] * 8


def test_drivers_are_named(scorer, batch) -> None:
    found = scorer(batch.inputs[:4], explain=2)
    assert list(found.columns) == scorer.columns(explain=2)
    assert all(len(entry.split("; ")) == 2 for entry in found["drivers_ood"])


@pytest.mark.parametrize("count", ["a", -1, 1.5, True, None])
def test_no_number_of_drivers_is_refused(scorer, batch, count) -> None:
    with pytest.raises(DataError, match=f"explain: wanted how many drivers to name, 0 or more, got {count!r}"):
        scorer(batch.inputs[:4], explain=count)


def test_values_that_are_not_finite_give_an_error_row(scorer, batch, table) -> None:
    images = batch.inputs[:5].clone()
    images[[1, 3]] = torch.nan
    found = scorer(images, sample_ids=list("abcde"), explain=1)
    assert found["sample_id"].tolist() == list("abcde")
    assert found["decision"].eq("error").tolist() == [False, True, False, True, False]
    assert found["score_ood"].isna().tolist() == [False, True, False, True, False]
    assert found["score_ood"][[0, 2, 4]].tolist() == pytest.approx(table["score_ood"][[0, 2, 4]].tolist(), abs=1e-6)
    assert "not finite" in found["error"][1]


def test_no_image_gives_no_row(scorer) -> None:
    found = scorer(torch.empty(0, 1, 8, 8))
    assert (len(found), list(found.columns)) == (0, scorer.columns())


def test_another_alpha_moves_the_thresholds(small_bundle, scorer) -> None:
    strict = Scorer.load(small_bundle, trust_code=True, alpha=0.4)
    assert strict.bundle.detectors["ood"].threshold.value < scorer.bundle.detectors["ood"].threshold.value
    assert 0.2 <= strict.bundle.detectors["ood"].threshold.alpha <= 0.4


GIVEN = {
    "paths": lambda folder: [folder / "0.png", folder / "1.png"],
    "a folder": lambda folder: str(folder),
    "PIL images": lambda folder: [Image.open(folder / "0.png"), Image.open(folder / "1.png")],
    "pixels": lambda folder: [
        np.asarray(Image.open(folder / "0.png")),
        np.asarray(Image.open(folder / "1.png"))[..., None],
    ],
    "an array (N, H, W)": lambda folder: np.stack(
        [np.asarray(Image.open(folder / f"{place}.png")) for place in range(2)]
    ),
    "an array (N, H, W, C)": lambda folder: np.stack(
        [np.asarray(Image.open(folder / f"{place}.png"))[..., None] for place in range(2)]
    ),
}


@pytest.fixture
def two_images(tmp_path):
    """Two digits as files, and as raw pixels (N, C, H, W)."""
    pixels = np.round(load_digits().images[:2, None] * (255 / 16)).astype(np.uint8)
    for place, image in enumerate(pixels[:, 0]):
        Image.fromarray(image).save(tmp_path / f"{place}.png")
    return tmp_path, pixels


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_images_as_people_have_them(scorer, two_images, given) -> None:
    folder, pixels = two_images
    found, wanted = scorer(given(folder), explain=1), scorer(pixels, explain=1)
    pd.testing.assert_frame_equal(found.drop(columns="sample_id"), wanted.drop(columns="sample_id"))


def test_three_axes_of_bytes_are_one_image_to_a_network_for_colours(scorer, monkeypatch) -> None:
    """An image (C, H, W) that is given by mistake is no row of three grey ones."""
    given = np.zeros((3, 8, 8), np.uint8)
    assert len(scorer(given)) == 3
    monkeypatch.setattr(scorer, "input_shape", (3, 8, 8))
    (error,) = scorer(given)["error"]
    assert error


def test_one_image(scorer, two_images) -> None:
    folder, pixels = two_images
    wanted = scorer(pixels[:1])["score_ood"].tolist()
    image = Image.open(folder / "0.png")
    found = [scorer(each)["score_ood"].tolist() for each in (folder / "0.png", image, np.asarray(image))]
    assert found == [wanted] * 3


def test_names_of_images(scorer, two_images) -> None:
    folder, _ = two_images
    assert scorer([folder / "1.png"])["sample_id"].tolist() == [str(folder / "1.png")]
    assert scorer([folder / "1.png"], sample_ids=["one"])["sample_id"].tolist() == ["one"]
    assert scorer([folder / "1.png"], sample_ids=range(7, 8))["sample_id"].tolist() == ["7"]
    again = scorer([folder / "1.png", folder / "0.png"], sample_ids=["a", "a"])
    assert again["sample_id"].tolist() == ["a", "a"]
    wanted = [scorer([folder / name])["score_ood"].item() for name in ("1.png", "0.png")]
    np.testing.assert_allclose(again["score_ood"], wanted)


def closed(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image


def cut_off(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()[:70]))


NO_IMAGES = {
    **{mode: (lambda _, mode=mode: Image.new(mode, (8, 8)), f"got Pillow mode {mode}") for mode in ("F", "I", "LAB")},
    **{mode: (lambda _, mode=mode: Image.new(mode, (8, 8)), f"got Pillow mode {mode}") for mode in ("La", "RGBa")},
    "closed": (closed, "images[1]: "),
    "cut off": (cut_off, "images[1]: cannot be decoded: "),
    "nothing": (lambda _: None, "wanted a path, a PIL image, or pixels (H, W) or (H, W, C) uint8, got NoneType"),
    "floats": (lambda _: np.zeros((8, 8)), "got float64 (8, 8)"),
}


@pytest.mark.parametrize(("made", "said"), NO_IMAGES.values(), ids=NO_IMAGES)
def test_one_of_several_that_is_no_image_has_a_row_with_its_error(scorer, two_images, made, said: str) -> None:
    folder, pixels = two_images
    first, last = (Image.open(folder / f"{place}.png") for place in range(2))
    found, wanted = scorer([first, made(folder / "0.png"), last]), scorer(pixels)
    assert (found["decision"][1], found["sample_id"].tolist()) == ("error", ["0", "1", "2"])
    assert said in found["error"][1]
    scored = found.iloc[[0, 2]].drop(columns="sample_id").reset_index(drop=True)
    pd.testing.assert_frame_equal(scored, wanted.drop(columns="sample_id"), check_dtype=False)
    with pytest.raises(DataError, match=re.escape(said.replace("[1]", "[0]"))):
        scorer([made(folder / "0.png")])


BAD_CALLS = {
    "three axes": (
        lambda scorer: scorer(torch.zeros(1, 8, 8)),
        DataError,
        r"wanted shape \(N, C, H, W\), got \(1, 8, 8\)",
    ),
    "another thing": (lambda scorer: scorer([3]), DataError, r"images\[0\]: wanted a path, a PIL image, or pixels"),
    "pixels that are floats": (lambda scorer: scorer([np.zeros((8, 8))]), DataError, r"got float64 \(8, 8\)"),
    "ids of paths": (lambda scorer: scorer([np.zeros((8, 8), np.uint8)], sample_ids=[]), DataError, "wanted 1 names"),
    "integers": (lambda scorer: scorer(torch.zeros(1, 1, 8, 8, dtype=torch.int64)), DataError, "wanted floats"),
    "ids": (lambda scorer: scorer(torch.zeros(2, 1, 8, 8), sample_ids=["a"]), DataError, "wanted 2 names"),
    "size": (lambda scorer: scorer(torch.zeros(2, 1, 9, 9)), DataError, r"got \(1, 9, 9\): .*cannot take"),
    "nothing to judge": (lambda scorer: scorer.judge(None), DataError, "samples: wanted one array, .* got NoneType"),
    "a list to judge": (lambda scorer: scorer.judge([1.0]), DataError, "samples: wanted one array, .* got list"),
    "a sparse tensor": (
        lambda scorer: scorer(torch.zeros(3, *scorer.input_shape).to_sparse()),
        DataError,
        "samples: wanted dense real numbers, got a tensor of torch.sparse_coo, torch.float32; give its to_dense",
    ),
    "an array of text": (lambda scorer: scorer(np.array(["a"])), DataError, "samples: wanted .* numbers, got .* <U1"),
    "no samples by name": (
        lambda scorer: scorer({"x": 1.0}, raw=True),
        DataError,
        r"raw: wanted a batch of inputs 'x', \(N, ...\), got one of shape \(\)$",
    ),
    "names that are none": (
        lambda scorer: scorer(torch.zeros(1, 1, 8, 8), sample_ids=3),
        DataError,
        "sample_ids: wanted 1 names, one for each sample, got int",
    ),
    "one text for all names": (
        lambda scorer: scorer(torch.zeros(3, 1, 8, 8), sample_ids="abc"),
        DataError,
        "sample_ids: wanted 3 names, one for each sample, got str",
    ),
    "a name that is missing": (
        lambda scorer: scorer(torch.zeros(3, 1, 8, 8), sample_ids=["a", None, "b"]),
        DataError,
        "sample_ids: wanted 3 names, one for each sample, got None at position 1",
    ),
    "keyword lists": (
        lambda scorer: scorer({"x": [1.0]}),
        DataError,
        "wanted .* tensor or an array of numbers, got list",
    ),
    "keyword inputs": (
        lambda scorer: scorer({"x": torch.zeros(1)}),
        DataError,
        "wanted one array, got keyword inputs x",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_batches(scorer, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(scorer)


LACKING = {
    "a mapping": ({"x": torch.zeros(1, 4)}, r"wanted keyword inputs x, mask, got keyword inputs x; mask is lacking$"),
    "one array": (torch.zeros(1, 4), r"got one array; give a mapping of them, and in a file \.npz an array under each"),
}


@pytest.mark.parametrize(("given", "message"), LACKING.values(), ids=LACKING)
def test_a_keyword_input_that_is_lacking_is_named(scorer, monkeypatch, given, message: str) -> None:
    monkeypatch.setattr(scorer.form, "example", {name: torch.zeros(1, 4) for name in ("x", "mask")})
    with pytest.raises(DataError, match=message):
        scorer(given)


def other_weights(model: torch.nn.Module) -> torch.nn.Module:
    model[0].weight.data[0, 0, 0, 0] += 1e-6
    return model


def other_code(model: torch.nn.Module) -> torch.nn.Module:
    model[1] = torch.nn.Tanh()
    return model


BAD_MODELS = {
    "other weights": (other_weights, "made for weights of hash"),
    "the same weights in other code": (other_code, "self-test: logits differ"),
}


@pytest.mark.parametrize(("change", "message"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_a_model_that_is_not_that_of_the_bundle(small_bundle, change, message: str) -> None:
    found = Scorer.load(small_bundle, trust_code=True)
    with pytest.raises(BundleError, match=message):
        Scorer(found.bundle, change(found._extractor.model).eval())


def test_a_model_that_is_wrapped(small_bundle) -> None:
    found = Scorer.load(small_bundle, trust_code=True)
    with pytest.raises(ModelError, match="wrapped in DataParallel"):
        Scorer(found.bundle, torch.nn.DataParallel(found._extractor.model).eval())


def test_weights_elsewhere(small_run, small_bundle) -> None:
    found = Scorer.load(small_bundle, trust_code=True, weights=small_run.parent / "net.safetensors")
    assert found.bundle.weights_sha256 == RunFolder(small_run).manifest.inputs.model.weights_sha256


def test_a_model_that_went_on_is_noticed(small_bundle) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    images = torch.zeros(3, *scorer.input_shape)
    before = scorer(images)
    scorer.model.train()
    with pytest.raises(ModelError, match="training mode"):
        scorer(images)
    scorer.model.eval()
    weight = next(scorer.model.parameters())
    with torch.no_grad():
        weight.mul_(-1)
    with pytest.raises(BundleError, match="made for weights of hash"):
        scorer(images)
    with torch.no_grad():
        weight.mul_(-1)
    weight.requires_grad_(False)
    with pytest.raises(BundleError, match=r"requires_grad was True .* is False now.*set it back"):
        scorer(images)
    weight.requires_grad_(True)
    hook = scorer.model.register_forward_hook(lambda _module, _inputs, logits: 3 * logits)
    for _ in "12":
        with pytest.raises(BundleError, match="logits"):
            scorer(images)
    hook.remove()
    assert scorer(images).equals(before)


CHANGES_BESIDE_WEIGHTS = {
    "a number": lambda model: setattr(model[0], "dilation", (2, 2)),
    "a layer": lambda model: model.__setitem__(1, torch.nn.Tanh().eval()),
    "a function": lambda model: setattr(model, "forward", lambda images: 2 * type(model).forward(model, images)),
}


@pytest.mark.parametrize("change", CHANGES_BESIDE_WEIGHTS.values(), ids=CHANGES_BESIDE_WEIGHTS)
def test_what_is_changed_beside_weights_is_noticed(small_bundle, change) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    images = torch.zeros(3, *scorer.input_shape)
    scorer(images)
    change(scorer.model)
    for _ in "12":
        with pytest.raises((BundleError, ModelError), match=r"logits|cannot take"):
            scorer(images)


def test_parameters_that_give_way_to_others_of_the_same_values_are_taken(small_bundle) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    images = torch.zeros(3, *scorer.input_shape)
    before = scorer(images)
    copies = {name: each.clone() for name, each in scorer.model.state_dict().items()}
    scorer.model.load_state_dict(copies, assign=True)
    assert scorer(images).equals(before)
    with torch.no_grad():
        next(scorer.model.parameters()).mul_(-1)
    with pytest.raises(BundleError, match="made for weights of hash"):
        scorer(images)


def test_a_hook_of_all_modules_is_noticed(small_bundle) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    images = torch.zeros(3, *scorer.input_shape)
    before = scorer(images)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: tuple(3 * each + 1 for each in inputs) if module is scorer.model else None
    )
    try:
        with pytest.raises(BundleError, match="logits"):
            scorer(images)
    finally:
        hook.remove()
    assert scorer(images).equals(before)


def test_images_of_another_size_that_the_network_takes_are_warned_of() -> None:
    """Its thresholds are those of the size that it was calibrated with."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    ).eval()
    images = torch.randn(200, 1, 8, 8)
    labels = model(images).argmax(1)
    labels[::5] = 1 - labels[::5]
    detector = Detector(model, meta={"Cs": [0.1], "cv_folds": 2}).fit(
        (images, labels), ood={"far": 5 * images[:60] + 3}, auxiliary=[]
    )
    with pytest.warns(UserWarning, match=r"of shape \(1, 9, 9\) .* made with \(1, 8, 8\): scores .* change"):
        found = detector.score(torch.randn(3, 1, 9, 9))
    assert len(found) == 3


def test_one_of_several_paths_that_is_not_there_has_its_error(small_bundle, tmp_path) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    Image.new("L", (8, 8), 90).save(tmp_path / "0.png")
    found = scorer([tmp_path / "0.png", tmp_path / "gone.png"])
    assert found["error"].str.contains("gone.png").tolist() == [False, True]
    assert found["decision"].iloc[1] == "error"
    with pytest.raises(DataError, match=r"gone\.png"):
        scorer(tmp_path / "gone.png")


@pytest.mark.slow
def test_a_scorer_loads_neither_the_evaluation_nor_what_fits_models() -> None:
    code = "import sys, gradscore; gradscore.Scorer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {".".join(name.split(".")[:2]) for name in done.stdout.split()}
    assert "gradscore.deployment" in loaded
    assert not loaded & {"gradscore.evaluation", "gradscore.reporting", "sklearn", "sklearn.base"}
