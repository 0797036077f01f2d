"""The files of an audit."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import gradscore
from gradscore.label_audit import pages, write_audit

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
    monkeypatch.setattr("gradscore.reporting.page.PACKAGES", ("no_such_package",))
    files = pages.write_audit(found, tmp_path)
    assert files.html is None
    assert "pip install 'gradscore[report]'" in files.notice
    assert (tmp_path / "audit.csv").exists()
