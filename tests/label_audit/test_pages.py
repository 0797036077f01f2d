"""The files of an audit."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import gradscore
from gradscore.errors import DataError, OutputError, StoreError
from gradscore.label_audit import write_audit
from gradscore.system import only_writer

NAME = "<b>cats</b> & dogs"


@pytest.fixture(scope="module")
def found() -> gradscore.Audit:
    torch.manual_seed(0)
    labels = torch.arange(40) % 2
    samples = torch.randn(40, 3) + 4 * labels[:, None]
    labels[6] = 1
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()
    return gradscore.audit(net, (samples, labels), class_names=[NAME, "=1+1"])


def test_tables_have_all_samples_with_names_of_classes(found: gradscore.Audit, tmp_path: Path) -> None:
    files = write_audit(found, tmp_path)
    table = pd.read_parquet(tmp_path / "audit.parquet")
    spreadsheet = pd.read_csv(tmp_path / "audit.csv")
    assert set(spreadsheet["label_name"]) == {NAME, "'=1+1"}
    assert files.tables == [tmp_path / "audit.csv", tmp_path / "audit.parquet"]
    assert table["label_name"].tolist() == [found.name(label) for label in found.table["label"]]
    pd.testing.assert_frame_equal(table[list(found.table)], found.table)
    text = pd.read_csv(tmp_path / "audit.csv", dtype={"sample_id": str})
    pd.testing.assert_frame_equal(text[["rank", "sample_id", "label"]], table[["rank", "sample_id", "label"]])
    np.testing.assert_allclose(text["score"], table["score"], rtol=1e-8)


def test_the_page_shows_the_most_suspicious_samples_and_their_images(found: gradscore.Audit, tmp_path: Path) -> None:
    asked = []

    def image(place: int) -> np.ndarray:
        asked.append(place)
        return np.full((4, 4, 3), place, dtype=np.uint8)

    page = write_audit(found, tmp_path, name=NAME, images=image, shown=3).html.read_text()
    assert re.findall(r'<article[^>]*data-id="(\d+)"', page) == found.table["sample_id"].head(3).tolist()
    assert page.count('<img src="data:image/png') == 3 * 5
    wanted = [each for place in found.table["place"].head(3) for each in (place, *found.nearest[place])]
    assert sorted(asked) == sorted(wanted)
    assert "<b>cats" not in page
    assert "&lt;b&gt;cats&lt;/b&gt; &amp; dogs" in page


def test_the_page_does_without_images(found: gradscore.Audit, tmp_path: Path) -> None:
    page = write_audit(found, tmp_path, shown=2).html.read_text()
    assert page.count('<div class="none">no image</div>') == 2


def test_without_the_packages_for_pages_there_are_tables_and_a_notice(found, tmp_path: Path, monkeypatch) -> None:
    write_audit(found, tmp_path)
    monkeypatch.setattr("gradscore.reporting.pages.PACKAGES", ("no_such_package",))
    files = write_audit(found, tmp_path)
    assert files.html is None
    assert "pip install 'gradscore[report]'" in files.notice
    assert (tmp_path / "audit.csv").exists()
    assert [*tmp_path.glob("*.html")] == []  # of the audit before


IMAGES = {
    "pictures": lambda place: Image.new("RGB", (8, 8), (place % 255, 0, 0)),
    "tensors": lambda place: torch.full((8, 8, 1), place % 255, dtype=torch.uint8),
    "grey": lambda place: np.full((8, 8), place % 255, np.uint8),
}


@pytest.mark.parametrize("images", IMAGES.values(), ids=IMAGES)
def test_images_of_any_kind_are_shown(found: gradscore.Audit, tmp_path: Path, images) -> None:
    page = write_audit(found, tmp_path, images=images, shown=3).html.read_text()
    assert page.count("data:image/png;base64,") > 3
    assert '<div class="none">' not in page


UNUSABLE = {
    "a list": ([1, 2], "images: wanted a function from a place to an image, got list"),
    "floats": (lambda _: np.zeros((8, 8, 3)), r"images: wanted an image .* uint8 .*, got float64 of shape \(8, 8, 3\)"),
}


@pytest.mark.parametrize(("images", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_no_image_is_named(found: gradscore.Audit, tmp_path: Path, images, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_audit(found, tmp_path, images=images)
    assert not (tmp_path / "audit.csv").exists()


def test_a_page_that_cannot_be_written_leaves_no_tables(found: gradscore.Audit, tmp_path: Path, monkeypatch) -> None:
    write_audit(found, tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OutputError("no space left on the disk")

    monkeypatch.setattr("gradscore.reporting.pages.write_page", full)
    with pytest.raises(OutputError, match="no space"):
        write_audit(found, tmp_path)
    assert not list(tmp_path.glob("audit.[cp]*"))


def test_two_at_once_are_refused(found: gradscore.Audit, tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(StoreError, match="another process is writing to this folder"):
        write_audit(found, tmp_path)
