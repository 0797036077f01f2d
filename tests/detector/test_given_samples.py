"""What a detector takes, what it refuses, and what it leaves as it was."""

import copy
import html
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradscore
from gradscore.data import Batch, OodConfig, Preprocessing, PreprocessingConfig, content_hash, lots, samples_of
from gradscore.data.sources.synthetic import auto_kinds
from gradscore.detector.detector_sets import FitSamples, Levels, Thumbnails
from gradscore.errors import (
    BundleError,
    ConfigError,
    CoupledSamplesError,
    DataError,
    DoubtfulLabelsError,
    EvaluationError,
    GradscoreError,
    ModelError,
    OutputError,
    StoreError,
)
from gradscore.losses import LOSSES, Loss, OfLogits
from gradscore.pipeline import NO_BANK
from gradscore.store import RunFolder
from gradscore.system import Inputs, sample_count

SETTINGS: dict[str, Any] = {
    "features": {"statistics": ["max", "l2"], "losses": ["uniform"]},
    "meta": {"Cs": [0.01], "boosts": [10.0], "cv_folds": 2},
}
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 4, generator=GENERATOR)
Y = (X[:, 0] + torch.randn(300, generator=GENERATOR) > 0).long()
FAR = 6 * torch.randn(60, 4, generator=GENERATOR)


def net() -> nn.Module:
    """Trained a little on samples of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs = torch.randn(1000, 4)
        labels = (inputs[:, 0] + torch.randn(1000) > 0).long()
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for _ in range(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        optimizer.zero_grad()
    return model.eval()


class CoupledFarAway(nn.Module):
    """Centres batches in which a number is large: samples depend on each other only there."""

    def __init__(self) -> None:
        super().__init__()
        self.core = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.core(x - x.mean(0) if x.abs().amax() > 8 else x)


def test_every_call_looks_whether_samples_depend_on_each_other() -> None:
    detector = gradscore.Detector(CoupledFarAway().eval(), **SETTINGS).fit((X, Y), ood={"near": FAR / 4}, auxiliary=[])
    for _ in range(5):
        detector.score(X)
    with pytest.raises(CoupledSamplesError):
        detector.score(FAR)


class Tempered(nn.Module):
    """Divides the logits by a learned number, so that no linear layer makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.temperature = net(), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.core(x) / self.temperature


def make(model: nn.Module | None = None, **options: Any) -> gradscore.Detector:
    return gradscore.Detector(model or net(), **{**SETTINGS, **options})


@pytest.fixture(scope="module")
def fitted() -> gradscore.Detector:
    """Of vectors, with an OOD set, and a share of the samples held out."""
    return make().fit(TensorDataset(X, Y), ood={"far": FAR})


def test_a_share_of_the_samples_sets_thresholds_by_lot(fitted) -> None:
    fit, held = fitted.run.read("in_dist.fit"), fitted.run.read("in_dist.calibration")
    is_held = lots(0).random(300) >= 0.75
    found = [np.sort(each["sample_id"].astype(int)) for each in (fit, held)]
    np.testing.assert_array_equal(found[0], np.flatnonzero(~is_held))
    np.testing.assert_array_equal(found[1], np.flatnonzero(is_held))
    right = held["correct"].to_numpy(dtype=bool)
    assert {each.threshold.n for each in fitted.bundle.detectors.values()} == {right.sum()}


def test_what_comes_again_among_the_samples_sets_thresholds_as_often() -> None:
    """Copies on one side alone would be rejected more often than promised, or never counted."""
    again = X.clone()
    again[::10] = X[0]
    detector = make().fit((again, Y), ood={"far": FAR}, auxiliary=[])
    held = detector.run.read("in_dist.calibration")
    assert 0 < held["content_hash"].duplicated(keep=False).mean() < 0.25


def test_few_wrong_predictions_are_said_to_be_few() -> None:
    model = net()
    labels = model(X).argmax(1)
    labels[:6] = 1 - labels[:6]
    notices = [str(each) for each in make(model).fit((X, labels), ood={"far": FAR}, auxiliary=[]).notices]
    assert any("few wrong predictions in in_dist.fit to learn from (" in each for each in notices)


def test_thresholds_set_by_some_classes_are_told_of(fitted) -> None:
    held = Y[200:] == 0
    some = make().fit((X[:200], Y[:200]), calibration=(X[200:][held], Y[200:][held]), ood={"far": FAR}, auxiliary=[])
    said = [
        [
            "in_dist.calibration has no sample of class 1, which in_dist.fit has: thresholds hold" in each
            for each in of.notices
        ]
        for of in (some, fitted)
    ]
    assert [any(each) for each in said] == [True, False]


def test_few_samples_are_said_to_be_few() -> None:
    detector = make(alpha=0.2).fit((X[:60], Y[:60]), holdout=0.5, ood={"far": FAR}, auxiliary=[])
    assert any("samples in in_dist.fit are few" in str(each) for each in detector.notices)


def test_scores_come_in_order_whatever_the_samples_come_in(fitted) -> None:
    whole = fitted.score(X)
    assert whole["sample_id"].tolist() == [str(place) for place in range(300)]
    assert whole["prediction"].tolist() == fitted.model(X).argmax(1).tolist()
    for_loader = fitted.score(DataLoader(TensorDataset(X, Y), batch_size=7))
    pd.testing.assert_frame_equal(for_loader, whole)
    with pytest.raises(ConfigError):
        fitted.score(DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True))


@pytest.mark.parametrize("fits", [True, False], ids=["fit", "evaluate"])
def test_classes_of_minus_one_and_one_are_refused(fitted, fits: bool) -> None:
    with pytest.raises(DataError, match="its labels are -1 and 1, and -1 stands for no label; give 0 and 1"):
        make().fit((X, 2 * Y - 1), ood={"far": FAR}) if fits else fitted.evaluate((X, 2 * Y - 1))


class Words(nn.Module):
    """A classifier of token ids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.last = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(x).mean(1))


def test_a_sample_that_the_model_cannot_take_costs_no_other() -> None:
    x = torch.randint(0, 20, (430, 6), generator=torch.Generator().manual_seed(0))
    model = Words().eval()
    labels = model(x).argmax(1)
    labels[::4] = 1 - labels[::4]
    scorer = gradscore.Detector(model).fit((x[:400], labels[:400])).scorer
    unknown = x[400:].clone()
    unknown[[4, 9], 2] = 1000
    found, wanted = (scorer(each.numpy(), raw=True).set_index("sample_id") for each in (unknown, x[400:]))
    assert found.index[found["decision"] == "error"].tolist() == ["4", "9"]
    assert found["error"][["4", "9"]].str.contains("a whole number is beyond the rows of an embedding").all()
    rest = wanted.index.difference(["4", "9"])
    np.testing.assert_allclose(found["score_wrong"][rest], wanted["score_wrong"][rest], atol=1e-5)
    assert found["decision"][rest].equals(wanted["decision"][rest])
    with pytest.raises(ModelError, match="beyond the rows of an embedding"):
        scorer(unknown[[4, 9]].numpy(), raw=True)


def test_far_samples_are_told_from_others(fitted) -> None:
    generator = torch.Generator().manual_seed(1)
    in_dist = fitted.score(torch.randn(100, 4, generator=generator))
    far = fitted.score(6 * torch.randn(100, 4, generator=generator))
    assert (in_dist["decision"] == "accept").mean() > 0.8
    assert far["score_ood"].median() > in_dist["score_ood"].quantile(0.9)


def test_drivers_explain_scores(fitted) -> None:
    table = fitted.score(X[:3], explain=2)
    assert {"because_wrong", "drivers_wrong", "because_ood", "drivers_ood"} < set(table.columns)


def test_labels_in_another_order_are_refused_with_the_map() -> None:
    model = net()
    labels = model(X).argmax(1)
    labels[::10] = 1 - labels[::10]
    with pytest.raises(DoubtfulLabelsError, match=r"classes in another order: .* change labels by \{0: 1, 1: 0\};"):
        make(model).fit((X, 1 - labels), ood={"far": FAR})


def test_labels_that_are_more_often_right_in_another_order_are_warned_of() -> None:
    """Of three classes two change places: a third of the labels agree, and 0.6 would, which is not twice as many."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(700, 4, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 3).eval()
    truth = model(inputs).argmax(1)
    wrong = torch.randint(3, (700,), generator=generator)
    labels = torch.where(torch.rand(700, generator=generator) < 0.4, truth, wrong)
    with pytest.warns(
        UserWarning,
        match=r"would be 0\.\d+ with the classes in another order: labels are probably in another order .*; "
        r"give them in its order"
        r".*; call gradscore\.check_model\(model, batch, labels=labels\)$",
    ) as said:
        detector = make(model).fit((inputs, torch.tensor([1, 0, 2])[labels]), ood={"far": FAR}, auxiliary=[])
    assert said[0].filename == __file__
    assert detector.notices[0] == str(said[0].message)
    in_order = make(model).fit((inputs, labels), ood={"far": FAR}, auxiliary=[])
    assert not [line for line in in_order.notices if "order" in line]


def test_too_few_samples_are_refused_with_how_many_there_should_be() -> None:
    with pytest.raises(EvaluationError, match=r"fit\(\) got 60 samples .*with about 305 like these"):
        make().fit((X[:60], Y[:60]), ood={"far": FAR}, auxiliary=[])


def test_a_network_that_predicts_one_class_asks_for_no_samples() -> None:
    model = net()
    model[-1].bias.data[1] += 1000
    wanted = (
        r"needs at least .*\. But accuracy is 0\.\d+ on in_dist.fit, as the network predicts class 1 for every sample"
    )
    for count in (40, 100):
        with pytest.raises(EvaluationError, match=wanted) as said:
            make(model).fit((X[:count], Y[:count]), ood={"far": FAR}, auxiliary=[])
        assert "like these" not in str(said.value)


def test_the_advice_on_how_many_samples_works_when_followed() -> None:
    with pytest.raises(EvaluationError, match=r"fit\(\) got 10 samples .*with about \d+ like these") as said:
        make().fit((X[:10], Y[:10]), ood={"far": FAR}, auxiliary=[])
    enough = int(re.findall(r"with about (\d+)", str(said.value))[0])
    assert enough <= 300
    make().fit((X[:enough], Y[:enough]), ood={"far": FAR}, auxiliary=[])


def test_a_fit_on_some_classes_alone_is_said_and_its_report_says_so_too(fitted) -> None:
    of_one = X[Y == 0], Y[Y == 0]
    first, rest = (tuple(each[part] for each in of_one) for part in (slice(100), slice(100, None)))
    on_one = make().fit(first, calibration=(X + 1e-3, Y), ood={"far": FAR})
    (said,) = (each for each in on_one.notices if "which the model knows" in each)
    assert said.startswith("in_dist.fit has no sample of class 1, which the model knows")
    assert said in on_one.evaluate(rest, ood={"other": FAR + 1e-3}).notices
    assert not [each for each in fitted.notices if "which the model knows" in each]


def test_a_function_in_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="losses: wanted text, a list of text, one function or None"):
        make(losses=[lambda logits: logits.sum(1)])


def spread(logits: Tensor) -> Tensor:
    return logits.square().sum(1)


def test_a_loss_without_gradients_is_warned_of(fitted, monkeypatch) -> None:
    monkeypatch.setattr(LOSSES, "_entries", {**LOSSES._entries})  # else messages of other tests suggest it

    def nothing(logits: Tensor) -> Tensor:
        return 0 * logits.sum(1)

    found = make(losses=nothing).fit((X, Y), ood={"far": FAR}, auxiliary=[]).notices
    said = [str(each) for each in found if each.level == "caution"]
    wanted = r"loss 'nothing': its gradients are zero for all \d+ samples of in_dist\.fit"
    assert [bool(re.match(wanted, line)) for line in said if "nothing" in line] == [True]
    assert not any("zero for all" in line for line in fitted.notices)


def test_a_loss_of_ones_own_is_asked_for_where_it_is_not_known(tmp_path, monkeypatch) -> None:
    detector = make(features={"statistics": ["l2"]}, losses=spread, scores="meta")
    path = detector.fit((X, Y), ood={"far": FAR}, auxiliary=[]).save(tmp_path / "a.gradscore")
    assert not any("zero for all" in line for line in detector.notices)
    monkeypatch.delitem(LOSSES._entries, "spread")
    with pytest.raises(BundleError, match=r"LOSSES\.add\('spread', Loss\(head=OfLogits\(function\)\)\)"):
        gradscore.Detector.load(path, model=detector.model)
    LOSSES.add("spread", Loss(head=OfLogits(lambda logits: 1e3 * logits.square().sum(1))))
    with pytest.raises(BundleError, match=r"features of loss 'spread' differ .* register the function .* as loss"):
        gradscore.Detector.load(path, model=detector.model)


@pytest.fixture(scope="module")
def report(fitted) -> gradscore.Report:
    generator = torch.Generator().manual_seed(2)
    test = torch.randn(200, 4, generator=generator)
    labels = (test[:, 0] + torch.randn(200, generator=generator) > 0).long()
    sets = {"farther": 8 * torch.randn(80, 4, generator=generator), "moved": test + 9}
    return fitted.evaluate((test, labels), ood=sets, shifted={"noisy": (test + 0.3, labels)}, groups={"farther": "far"})


def test_the_verdict_is_a_table(report) -> None:
    assert report.verdict["what"].tolist() == ["wrong predictions", "far", "all"]
    assert set(report.verdict["protocol"]) == {"in_dist_only", "auxiliary"}
    assert report.verdict["auroc"].between(0, 1).all()


def test_figures_and_scores_are_those_of_the_run_folder(report) -> None:
    written = pd.read_csv(report.run.evaluation_path / "metrics.csv")
    assert report.figures["value"].to_numpy(dtype=float) == pytest.approx(written["value"].to_numpy(), nan_ok=True)
    assert {"farther", "moved", "in_dist.test", "noisy"} <= set(report.scores["dataset"])


def test_a_report_shows_itself(report) -> None:
    page, text = report._repr_html_(), repr(report)
    assert "<script" not in page
    told = [*report.evaluation.answer.sentences, *report.notices]
    assert len(told) > 2
    assert [line for line in told if line not in text or html.escape(line) not in page] == []
    assert text.startswith(report.answer[0])
    following = (
        'Next: detector.save("scorer.gradscore")  # for Python; Detector(..., recipe=...) for gradscore score too'
    )
    assert report.answer[-1] == following
    assert report.evaluation.without_gradients.startswith("With losses=[], a detector goes without them")
    assert not re.search("--set|--score|gradscore bundle", page)


def test_models_that_cannot_be_fitted_are_said_in_words_of_python() -> None:
    """Each is reported once with why, and no folder that is gone with the detector."""
    detector = gradscore.Detector(net(), losses=[], meta=SETTINGS["meta"]).fit(TensorDataset(X, Y))
    notices = detector.evaluate(TensorDataset(X[:100] + 0.1, Y[:100]), ood={"far": FAR}).notices
    assert [each for each in notices if "fit-meta" in each or "/run" in each] == []
    assert [each.partition(": ")[0] for each in notices if "ood/in_dist_only/all" in each] == ["ood/in_dist_only/all"]


def test_a_detector_says_what_it_is_fitted_on(fitted, tmp_path) -> None:
    counts = {info.name: len(fitted.run.read(info.name, ["label"])) for info in fitted.run.splits()}
    by = "; wrong predictions by .+; OOD samples by .+"
    fit, held = counts["in_dist.fit"], counts["in_dist.calibration"]
    told = f"fitted on {fit} samples, calibrated on {held}; OOD sets far \\({counts['ood.far']}\\)"
    assert re.fullmatch(f"Detector\\(Sequential, alpha=0.05\\): {told}{by}", repr(fitted))
    assert repr(make()) == "Detector(Sequential, alpha=0.05): not fitted"
    loaded = gradscore.Detector.load(fitted.save(tmp_path / "b"), model=fitted.model)
    threshold = next(iter(loaded.bundle.detectors.values())).threshold
    told = f"of a bundle, calibrated on {threshold.n} samples"
    assert re.fullmatch(f"Detector\\(Sequential, alpha=0.05\\): {told}{by}", repr(loaded))


def test_labels_in_another_order_get_no_verdict(fitted) -> None:
    generator = torch.Generator().manual_seed(3)
    test = 3 * torch.randn(200, 4, generator=generator)
    report = fitted.evaluate((test, 1 - fitted.model(test).argmax(1)), ood={"farther": 2 * FAR})
    assert report.verdict.empty
    assert repr(report).startswith("No verdict")
    assert "No verdict" in report._repr_html_()
    assert "accuracy" in report.notices[0]


def test_a_report_is_saved_as_one_page(report, tmp_path) -> None:
    path = report.save(tmp_path / "report.html")
    assert path.read_bytes() == (report.run.evaluation_path / "report.html").read_bytes()
    assert "wrong predictions" in path.read_text().lower()
    with pytest.raises(OutputError, match=r"x\.pdf: a report is a page, wanted a name that ends in \.html, got \.pdf"):
        report.save(tmp_path / "x.pdf")


def test_what_was_fitted_is_evaluated_not_fitted_anew(fitted, report) -> None:
    files = [path.relative_to(fitted.run.path) for path in (fitted.run.meta_path / "ood").rglob("*") if path.is_file()]
    assert files
    assert {(fitted.run.path / name).read_bytes() == (report.run.path / name).read_bytes() for name in files} == {True}


def test_other_protocols_are_fitted_for_a_report() -> None:
    evaluate = {"protocols": ["known", "leave_one_dataset_out", "auxiliary"]}
    detector = make(evaluate=evaluate).fit((X, Y), ood={"far": FAR})
    report = detector.evaluate((X[:100] + 0.01, Y[:100]), ood={"farther": 2 * FAR})
    assert {"known", "leave_one_dataset_out", "auxiliary"} == set(report.figures.query("task == 'ood'")["protocol"])
    told = "half of each OOD set of this report was fitted on, so its OOD model is not the one that score() uses"
    assert any(each.startswith(told) for each in report.notices)


def test_reported_samples_that_fit_are_told_of_first(fitted, report) -> None:
    fit = {sample for sample in fitted.run.read("in_dist.fit")["sample_id"] if int(sample) < 150}
    found = fitted.evaluate((X[:150], Y[:150]), ood={"farther": 2 * FAR})
    assert found.notices[0] == (
        f"{len(fit)} reported samples were among those that fit; the models of this report were fitted anew without "
        "them and are not those that score() uses"
    )
    assert not any("among those that fit" in line for line in report.notices)


def test_reported_samples_that_are_all_of_the_fit_are_named(fitted) -> None:
    fit = len(fitted.run.read("in_dist.fit"))
    with pytest.raises(
        EvaluationError, match=f"evaluate: {fit} of 300 reported samples were among those that fit, .*give"
    ):
        fitted.evaluate((X, Y))


def test_a_saved_detector_needs_its_model_again(fitted, tmp_path) -> None:
    path = fitted.save(tmp_path / "x.gradscore")
    loaded = gradscore.Detector.load(path, model=fitted.model)
    pd.testing.assert_frame_equal(loaded.score(X), fitted.score(X))
    with pytest.raises(ModelError, match=r"Detector.load\(path, model=model\).*recipe="):
        gradscore.Detector.load(path)
    with pytest.raises(ModelError, match="model=model"):
        gradscore.Scorer.load(path)
    other = net()
    nn.init.zeros_(other[0].weight)
    with pytest.raises(BundleError, match="made for weights of hash"):
        gradscore.Detector.load(path, model=other)
    with pytest.raises(EvaluationError, match="loaded from a bundle"):
        loaded.evaluate((X, Y))


def test_weights_that_changed_since_the_fit_are_refused(tmp_path) -> None:
    """By `evaluate` as by `score`: not as a run folder that cannot go on, which nobody has chosen."""
    detector = make().fit((X, Y), auxiliary=[])
    nn.init.zeros_(detector.model[0].weight)
    path = tmp_path / "x.gradscore"
    uses = [
        lambda: detector.score(X),
        lambda: detector.evaluate((X, Y)),
        lambda: detector.save(path, with_weights=True),
    ]
    for use in uses:
        with pytest.raises(BundleError, match=r"made for weights of hash .*fit again\)$"):
            use()
    assert not path.exists()
    assert detector.save(path) == path  # it names the weights that it was made for


@pytest.mark.parametrize("factor", [255.0, 1 / 255])
def test_samples_on_another_scale_are_told_once(factor: float, tmp_path) -> None:
    """Pixels from 0 to 255 where the network takes 0 to 1: a ReLU network's logits grow with them, and look sure."""
    saved = make().fit((X, Y), ood={"far": FAR}, auxiliary=[]).save(tmp_path / "x.gradscore")
    detector = gradscore.Detector.load(saved, model=net())
    detector.score(X)
    detector.score(FAR)
    detector.score(torch.cat([X[:9] * factor, X[:10]]))  # a few of them say nothing of the others
    with pytest.warns(UserWarning, match=r"samples: values up to .*, and up to .* where the bundle was made") as told:
        detector.score(X * factor)
    assert len(told) == 1
    detector.score(X * factor)


def test_a_recipe_that_builds_another_model_is_refused(tmp_path) -> None:
    (tmp_path / "other.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Linear(3, 2)\n")
    detector = make(recipe=f"python:{tmp_path}/other.py:build").fit((X, Y), auxiliary=[])
    with pytest.raises(ModelError, match="does not build this model"):
        detector.save(tmp_path / "x.gradscore")
    assert not (tmp_path / "x.gradscore").exists()


def test_a_run_folder_can_be_kept_and_a_fit_without_any_ood_set_says_so(fitted, tmp_path) -> None:
    detector = make().fit((X, Y), run=tmp_path / "run", auxiliary=[])
    assert (tmp_path / "run" / "manifest.json").is_file()
    assert detector.run.path == tmp_path / "run"
    assert {info.name for info in RunFolder(tmp_path / "run").splits()} == {"in_dist.fit", "in_dist.calibration"}
    assert any("seen in-distribution samples alone" in line for line in detector.notices)
    assert not any("seen in-distribution samples alone" in line for line in fitted.notices)
    with pytest.raises(StoreError, match="wanted an empty or new folder"):
        make().fit((X, Y), run=tmp_path / "run")


def test_temporary_run_folders_go_with_the_detector() -> None:
    detector = make().fit((X, Y), auxiliary=[])
    folder = detector.run.path
    assert folder.is_dir()
    del detector
    assert not folder.exists()


def test_the_model_stays_as_it_was() -> None:
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make(model).fit((X, Y), ood={"far": FAR}, auxiliary=[]).score(X)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any([*module._forward_hooks, *module._forward_pre_hooks] for module in model.modules())
    assert not model.training


def test_tokens_are_scored_as_they_are() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(30, 2)).eval()
    tokens = torch.randint(0, 20, (200, 5), generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="accuracy is 0.56 on in_dist.fit, which is chance"):
        detector = make(model, alpha=0.2).fit((tokens, tokens[:, 0] % 2), auxiliary=[])
    table = detector.score(tokens[:10])
    assert table["prediction"].tolist() == model(tokens[:10]).argmax(1).tolist()
    pd.testing.assert_frame_equal(detector.scorer(tokens[:10].double()), table)
    for fractions in (tokens[:10] + 0.9, tokens[:10] * float("nan")):
        with pytest.raises(DataError, match=r"wanted whole numbers, .* got fractions or NaN \(torch.float32\)"):
            detector.scorer(fractions)
    assert detector.bundle.self_test.images.dtype == np.int64


def test_doubles_are_scored_as_doubles() -> None:
    detector = make(net().double(), alpha=0.2).fit((X, Y), auxiliary=[])
    logits = detector.run.read("in_dist.fit")["logit_0"].to_numpy()
    assert not np.array_equal(logits, logits.astype(np.float32))


REFUSED: dict[str, tuple[Callable[[], Any], type[GradscoreError], str]] = {
    "unlabelled": (lambda: make().fit(X), DataError, "data: wanted labelled samples"),
    "an iterator used twice": (
        lambda: (lambda loader: make().fit(loader, bank=loader))(iter([(X, Y)])),
        DataError,
        "bank: wanted samples, got none .an iterator can be read only once",
    ),
    "a bank of other shapes": (
        lambda: make().fit((X, Y), bank=X[:, :3]),
        DataError,
        r"bank: its samples have shape \(3,\), those the detector is fitted on \(4,\)",
    ),
    "a number that is none": (
        lambda: make().fit((X, Y), ood={"far": torch.cat([FAR, torch.full_like(FAR[:1], torch.nan)])}),
        DataError,
        rf"^ood far: sample {len(FAR)} holds numbers that are not finite",
    ),
    "an infinite number": (
        lambda: make().fit((torch.cat([torch.full_like(X[:1], torch.inf), X[1:]]), Y)),
        DataError,
        "^data: sample 0 holds numbers that are not finite",
    ),
    "frozen": (lambda: make(net().requires_grad_(False)), ModelError, "frozen"),
    "wrapped": (
        lambda: make(nn.DataParallel(net()).eval()),
        ModelError,
        "wrapped in DataParallel, .*: pass model.module",
    ),
    "a strange name": (lambda: make().fit((X, Y), ood={"a/b": FAR}), ConfigError, "data.ood.0.name"),
    "auxiliary sets of vectors": (
        lambda: make().fit((X, Y), auxiliary=["jigsaw"]),
        DataError,
        r"jigsaw is for images, and these are float32",
    ),
    "OOD sets without names": (
        lambda: make().fit((X, Y), ood=[FAR]),
        ConfigError,
        "ood: wanted a dict with names as keys or None, got .*list",
    ),
    "a share in words": (lambda: make().fit((X, Y), holdout="x"), ConfigError, "holdout: wanted a number .*got 'x'"),
    "a rate in words": (lambda: make(alpha="0.1"), ConfigError, "alpha: wanted a number between 0 and 1, got '0.1'"),
    "a list of settings": (
        lambda: make(meta=[1]),
        ConfigError,
        "meta: wanted a dict with names as keys .*list",
    ),
    "one auxiliary set": (lambda: make().fit((X, Y), auxiliary="fog"), ConfigError, "no synthetic set 'fog'"),
    "not fitted": (lambda: make().score(X), EvaluationError, "not fitted"),
}


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy], ids=["pickle", "copy"])
def test_a_fitted_detector_says_how_it_is_kept(fitted: gradscore.Detector, copied) -> None:
    with pytest.raises(BundleError, match=r"cannot be pickled or copied: save it to a bundle, which .* Detector\.load"):
        copied(fitted)


@pytest.mark.parametrize("number", [np.float32, np.float16])
def test_a_rate_may_be_a_number_of_numpy(number) -> None:
    assert repr(make(alpha=number(0.1))).startswith("Detector(Sequential, alpha=0.1)")


@pytest.mark.parametrize(("act", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_refused_in_words(act, error, message) -> None:
    with pytest.raises(error, match=message):
        act()


class Sorted(nn.Module):
    """Gives samples to its layers in the order of their first number, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.core = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = x[:, 0].argsort()
        return self.core(x[order])[order.argsort()]


@pytest.mark.parametrize("kind", [Tempered, Sorted])
def test_a_bank_is_left_out_where_no_linear_layer_makes_the_logits(kind: type[nn.Module]) -> None:
    """It is said once, and scores are those without a bank."""
    model = kind().eval()
    sets: dict[str, Any] = {"ood": {"far": FAR}, "auxiliary": []}
    with_bank, without = (make(model).fit((X, Y), **sets, **each) for each in ({"bank": (X, Y)}, {}))
    assert [each for each in with_bank.notices if each == NO_BANK] == [NO_BANK]
    assert NO_BANK not in without.notices
    assert with_bank.run.config.data.in_dist.bank is None
    pd.testing.assert_frame_equal(with_bank.score(X), without.score(X))


class TwoHeads(nn.Module):
    """Has another linear layer behind the one that makes the logits."""

    def __init__(self, *, returned: bool) -> None:
        super().__init__()
        self.core, self.aside, self.returned = net(), nn.Linear(8, 2), returned

    def forward(self, x: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        hidden = self.core[:2](x)
        logits = self.core[2](hidden)
        return {"main": logits, "aside": self.aside(hidden)} if self.returned else logits


HEADS: dict[str, tuple[bool, dict[str, Any]]] = {"unused": (False, {}), "returned": (True, {"output": "main"})}


@pytest.mark.parametrize(("returned", "options"), HEADS.values(), ids=HEADS)
def test_a_bank_counts_where_any_linear_layer_makes_the_logits(returned: bool, options: dict[str, Any]) -> None:
    sets: dict[str, Any] = {"bank": (X, Y), "ood": {"far": FAR}, "auxiliary": []}
    detector = make(TwoHeads(returned=returned).eval(), **options).fit((X, Y), **sets)
    assert NO_BANK not in detector.notices
    assert detector.run.config.features.penultimate == "core.2"
    table = detector.run.read("in_dist.fit")
    hidden = net()[:2](torch.as_tensor(X))[table["sample_id"].astype(int).tolist()].detach().double().numpy()
    np.testing.assert_allclose(table.filter(regex="^penultimate_").to_numpy(), hidden, rtol=1e-6)
    alone = make().fit((X, Y), **sets)
    names = ["penultimate_0", "penultimate_7"]
    assert alone.run.config.features.penultimate is True
    pd.testing.assert_frame_equal(
        alone.run.read("in_dist.fit", columns=names), detector.run.read("in_dist.fit", columns=names)
    )


@pytest.mark.parametrize("kind", [Tempered, Sorted])
def test_a_layer_that_is_named_and_does_not_make_the_logits_is_refused(kind: type[nn.Module]) -> None:
    detector = make(kind().eval(), features={"penultimate": "core.2"})
    with pytest.raises(ModelError, match=r"not what layer 'core\.2' makes .*set it to false, without a bank"):
        detector.fit((X, Y), bank=(X, Y))


def test_settings_of_extract_that_a_program_decides_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"extract\.workers: .*wanted batch_size, part_size or seed"):
        make(extract={"workers": 2})


RAW: dict[str, tuple[Any, list[Any]]] = {
    "float64": (np.arange(8.0).reshape(2, 4) / 3, list(np.arange(8.0).reshape(2, 4) / 3)),
    "whole numbers": (np.arange(8).reshape(2, 4), list(np.arange(8).reshape(2, 4))),
    "keyword inputs": (
        [{"b": torch.ones(2, 3).long(), "a": torch.zeros(2, 1).double()}],
        [{"a": np.zeros(1), "b": np.ones(3, dtype=np.int64)}] * 2,
    ),
}


@pytest.mark.parametrize(("data", "samples"), RAW.values(), ids=RAW)
def test_samples_are_called_by_the_content_they_have_in_files(data: Any, samples: list[Any]) -> None:
    (batch,) = samples_of(data, name="data", dtype=torch.float32)
    assert batch.content_hashes == [content_hash(sample) for sample in samples]


def test_pixels_are_taken_with_the_channels_last_as_well() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 6, 8), dtype=np.uint8))
    preprocess = Preprocessing(PreprocessingConfig(mean=[0.5] * 3, std=[0.5] * 3))
    first, last = (
        next(iter(samples_of(each, name="data", dtype=torch.float32, preprocess=preprocess)))
        for each in (pixels, pixels.permute(0, 2, 3, 1))
    )
    assert first.raw is not None
    assert last.raw is not None
    assert torch.equal(last.inputs, first.inputs)
    assert torch.equal(last.raw, first.raw)
    assert (last.content_hashes, last.signatures) == (first.content_hashes, first.signatures)
    assert torch.equal(first.inputs, pixels / 127.5 - 1)


def test_names_of_sets_that_were_fitted_on_are_taken(fitted) -> None:
    with pytest.raises(ConfigError, match=r"^ood: 'far' is an OOD set that `fit` had; .* under another name$"):
        fitted.evaluate((X, Y), ood={"far": FAR})


def test_groups_name_sets_that_there_are(fitted) -> None:
    with pytest.raises(ConfigError, match="no OOD set 'b'"):
        fitted.evaluate((X, Y), ood={"a": FAR}, groups={"b": "near"})


def test_progress_is_told_and_shown(capfd) -> None:
    told: list[str] = []
    make(progress=lambda split, _done, _total: told.append(split)).fit((X, Y), ood={"far": FAR}, auxiliary=[])
    assert set(told) >= {"in_dist.fit", "in_dist.calibration", "ood.far"}
    make(progress=True).fit((X, Y), auxiliary=[]).score(X)
    assert capfd.readouterr().out == ""


IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
OF_NUMBERS = (
    *("swapped_fields", "permuted_columns", "feature_mixture"),
    *("feature_extrapolation", "far_extrapolation", "extrapolated_fields"),
)
KINDS = {
    "images": (IMAGES, ("rotate90", "mixup", "cutmix", "jigsaw", "permuted_pixels")),
    "not square": (IMAGES[..., :5], ("mixup", "cutmix", "jigsaw", "permuted_pixels")),
    "vectors": (IMAGES[:, 0, 0], OF_NUMBERS),
    "numbers and codes": ({"num": IMAGES[:, 0, 0, :3], "cat": torch.ones(6, 2).long()}, OF_NUMBERS),
    "vectors too short": (IMAGES[:, 0, 0, :3], ()),
    "tokens": (
        (IMAGES[:, 0, 0] * 9).long(),
        ("shuffled_tokens", "swapped_fields", "random_tokens", "some_random_tokens"),
    ),
    "tokens and a mask": ({"ids": (IMAGES[:, 0, 0] * 9).long(), "mask": torch.ones(6, 8)}, ("swapped_fields",)),
}


@pytest.mark.parametrize(("inputs", "kinds"), KINDS.values(), ids=KINDS)
def test_which_auxiliary_sets_are_made(inputs, kinds) -> None:
    kept = FitSamples()
    kept.add(batch(inputs))
    assert auto_kinds(kept.sample(0)) == kinds


def made_by(kind: str) -> OodConfig:
    return OodConfig(name=kind, source=f"synthetic:{kind}", auxiliary=True)


def batch(images: Inputs) -> Batch:
    size = sample_count(images)
    names = [str(place) for place in range(size)]
    return Batch(names, images, torch.arange(size) % 2, ["0" * 16] * size, split="in_dist.test")


def test_pixels_of_preprocessed_images_are_found_again() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
    pixels[0, 0, 0], pixels[0, 0, 1] = 0, 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    levels = Levels.of(images)
    assert all(np.array_equal(levels.pixels(image), wanted) for image, wanted in zip(images, pixels, strict=True))
    assert torch.allclose(levels.image(pixels[1], torch.float32), images[1], atol=1e-6)


def test_permuted_pixels_are_the_pixels_of_the_sample() -> None:
    kept = FitSamples()
    kept.add(batch(IMAGES))
    made = torch.cat(list(kept.made(made_by("permuted_pixels"), seed=0)))
    assert torch.allclose(made.flatten(2).sort().values, IMAGES.flatten(2).sort().values, atol=1 / 255)
    assert not torch.allclose(made, IMAGES, atol=0.1)


def test_no_more_samples_are_kept_than_memory_is_taken_for() -> None:
    kept = FitSamples(limit=4 * IMAGES[0].nbytes)
    kept.add(batch(IMAGES))
    kept.add(batch(IMAGES))
    assert len(kept.ids) == 4


def test_thumbnails_are_small_and_few() -> None:
    large = torch.rand(5, 3, 200, 100)
    kept = Thumbnails(Levels.of(large), limit=2 * 96 * 48 * 3)
    kept.add(batch(large))
    assert kept.get("in_dist.test", "0").shape == (96, 48, 3)
    assert kept.get("in_dist.test", "1") is not None
    assert kept.get("in_dist.test", "2") is None


def test_mixing_needs_two_classes() -> None:
    kept = FitSamples()
    kept.add(batch(IMAGES[:1]))
    with pytest.raises(DataError, match=r"mixes two classes.*auxiliary=\[\]"):
        list(kept.made(made_by("mixup"), seed=0))


def test_underflow_is_no_error_where_a_program_has_floats_raise() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).eval()
        samples, noise = torch.randn(400, 6), torch.randint(0, 3, (400,))
    labels = torch.where(torch.arange(400) % 6 == 0, noise, model(samples).argmax(1))
    with np.errstate(all="raise"):
        make(model).fit((samples, labels), ood={"far": 3 * samples[:100] + 2}, auxiliary=[])
        gradscore.audit(model, (samples, labels))
