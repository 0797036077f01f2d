import base64
import csv
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from gradscore.config import Config, dump_config, parse_config
from gradscore.data import open_splits
from gradscore.errors import MissingExtraError
from gradscore.evaluation import Records
from gradscore.reporting import write_report
from gradscore.reporting.evaluation_report import roc
from gradscore.reporting.gallery import _Images, make_galleries


class Page(HTMLParser):
    """What a browser would make of the page: elements with attributes, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.scripts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        (self.scripts if self.cdata_elem else self.text).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def html(report_run, report_evaluation):
    return write_report(report_run, report_evaluation)


@pytest.fixture(scope="module")
def page(html):
    return Page(html.read_text())


PLOTS = [
    "misclassification-roc",
    "misclassification-risk-coverage",
    "misclassification-scores",
    "reliability",
    "ood-roc",
    "ood-scores-rotated",
    "ood-scores-files",
    "weights-ood-uniform",
]


def test_nothing_is_loaded_from_elsewhere(page):
    addresses = [attributes[name] for _, attributes in page.elements for name in ("src", "href") if name in attributes]
    assert addresses
    assert all(address.startswith(("data:image/png;base64,", "data:image/svg+xml;base64,")) for address in addresses)
    assert page.all("link") == page.all("script") == []
    assert "default-src 'none'" in page.all("meta")[3]["content"]


def test_file_names_stay_text(page):
    assert {tuple(sorted(attributes)) for attributes in page.all("img")} == {("alt", "src"), ("alt", "class", "src")}
    assert '"><script>alert(1)<img src=x onerror=alert(2)>00.png' in page.text


def test_names_in_plots_stay_text(page):
    heat = next(each for each in page.all("img") if each["alt"].startswith("Weights for OOD"))
    drawing = base64.b64decode(heat["src"].partition(",")[2]).decode()
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;.weight" in drawing
    assert "<img" not in drawing


def test_every_plot_is_on_the_page(page):
    assert [attributes["id"] for attributes in page.all("figure")[: len(PLOTS)]] == PLOTS
    assert len([each for each in page.all("img") if each["src"].startswith("data:image/svg")]) == len(PLOTS)
    drawings = [base64.b64decode(each["src"].partition(",")[2]) for each in page.all("img")[: len(PLOTS)]]
    assert {each[:5] for each in drawings} == {b"<?xml"}


def test_the_drawn_roc_has_the_area_of_the_records(report_evaluation):
    block = report_evaluation.score_file.columns(
        "misclassification", "in_dist_only", "in_dist.test", ["positive", "chosen"]
    )
    line = roc(block["chosen"], block["positive"].to_numpy(dtype=bool), "chosen score", "black")
    record = next(
        each for each in report_evaluation.records if (each.task, each.metric) == ("misclassification", "auroc")
    )
    assert np.trapezoid(line.y, line.x) == pytest.approx(record.value)


def test_galleries_show_images(page):
    titles = [text for text in page.text if "samples" in text or "mistakes" in text]
    assert any(title == "Most suspicious test samples" for title in titles)
    assert any(title == "OOD samples that slip through: files" for title in titles)
    assert len(page.all("img")) == len(PLOTS) + 12 + 8 + 6 + 6


def test_the_answer_is_first_and_notes_are_last(report_evaluation, page):
    text = "".join(page.text)
    places = [text.index(line) for line in report_evaluation.answer.sentences]
    places += [text.index("Every score"), text.index("only 8 misclassified samples among 40")]
    assert places == sorted(places)


def test_notes_are_counted_and_folded(report_evaluation, page):
    folded = next(place for place, (tag, each) in enumerate(page.elements) if each.get("id") == "notes")
    assert page.elements[folded][0] == "details"
    assert len([tag for tag, _ in page.elements[folded:] if tag == "li"]) == len(notes(report_evaluation))
    assert f"{len(notes(report_evaluation))} notes" in page.text


def notes(report_evaluation):
    return [each for each in report_evaluation.notices if each.level == "note"]


def test_without_weight_on_gradients_a_sentence_replaces_the_heat_map(report_run, report_evaluation, monkeypatch):
    monkeypatch.setattr(
        "gradscore.reporting.evaluation_report._mean_weights", lambda models: dict.fromkeys(["baseline/msp"], 1.0)
    )
    html = write_report(report_run, report_evaluation)
    figures = [attributes["id"] for attributes in Page(html.read_text()).all("figure") if "id" in attributes]
    assert [name for name in figures if name.startswith("weights")] == []
    assert "gradients weigh nothing" in html.read_text()


def test_metrics_csv_holds_the_records(report_evaluation):
    with report_evaluation.path.with_suffix(".csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["metric"] for row in rows] == [record.metric for record in report_evaluation.records]


def galleries_without(report_run, report_evaluation, *, source):
    """The galleries when the configuration says another place for the images."""
    images = report_run.config.data.ood[1].source.removeprefix("folder:")
    config = parse_config(dump_config(report_run.config).replace(f"folder:{images}", source), where="test")
    return make_galleries(report_evaluation.score_file, Records(report_evaluation.records), config)


def test_missing_images_are_said(report_run, report_evaluation, tmp_path):
    found = galleries_without(report_run, report_evaluation, source=f"folder:{tmp_path}/gone")
    assert found.missing == [f"ood.files: data folder {tmp_path}/gone does not exist"]
    assert [each.image for each in found.galleries[-1].thumbnails] == [None] * 6
    assert all(each.image for each in found.galleries[0].thumbnails)


def test_other_images_in_their_place_are_not_shown(report_run, report_evaluation):
    found = galleries_without(report_run, report_evaluation, source="sklearn:digits")
    assert found.missing == ["ood.files: the data are no longer those the features were extracted from"]
    assert [each.image for each in found.galleries[-1].thumbnails] == [None] * 6


def test_the_gallery_calls_classes_by_their_names(report_run, report_evaluation):
    names = [f"digit {place}" for place in range(10)]
    figures = Records(report_evaluation.records)
    found = make_galleries(report_evaluation.score_file, figures, report_run.config, class_names=names)
    notes = [note for each in found.galleries for thumbnail in each.thumbnails for note in thumbnail.notes[:1]]
    assert notes
    assert all(note.startswith("predicted digit ") for note in notes)


def test_a_missing_package_is_named(report_run, report_evaluation, monkeypatch):
    monkeypatch.setattr("gradscore.reporting.pages.find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(MissingExtraError, match=r"it needs matplotlib; run `pip install 'gradscore\[report\]'`"):
        write_report(report_run, report_evaluation)


def test_images_mixed_of_two_classes_are_found_again_under_a_label_map(tmp_path):
    made = {"fit": {"source": "sklearn:digits", "select": {"stop": 40}, "label_map": {k: k // 2 for k in range(10)}}}
    settings = {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 5},
        "data": {
            "auxiliary": [],
            "in_dist": {**made, "test": {**made["fit"], "select": {"start": 40, "stop": 80}}},
            "ood": [{"name": kind, "source": f"synthetic:{kind}"} for kind in ("mixup", "cutmix")],
        },
        "run": str(tmp_path),
    }
    config = Config.model_validate(settings)
    splits = open_splits(config.data, preprocessing=config.preprocessing, num_classes=5, seed=config.extract.seed)
    images = _Images(config)
    rows = [
        pd.Series({"split": split, "sample_id": each.id, "content_hash": each.content_hash, "prediction": 0,
                   "chosen": 0.0})
        for split in ("ood.mixup", "ood.cutmix")
        for each in splits[split]
    ]  # fmt: skip
    shown = [each.image for each in images.thumbnails(pd.DataFrame(rows), np.zeros(1))]
    assert (len(shown), None in shown, images.missing) == (80, False, {})
