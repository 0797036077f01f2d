"""The manual: every page has a place, links lead somewhere, and its examples give the numbers it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from manual_pages import run_page

from gradscore.gradients.layout import exponents

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
MADE = {"changelog.md", "contributing.md", "detector.md"}
"""Pages that docs/site.py makes of other files."""


class Loader(yaml.SafeLoader):
    """Reads the settings of MkDocs, whose tags name functions."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _loader, name, _node: name)


def pages_in(entry) -> list[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    below = entry.values() if isinstance(entry, dict) else entry
    return [page for each in below for page in pages_in(each)]


def test_every_page_has_one_place_in_the_navigation() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    assert sorted(pages_in(settings["nav"])) == sorted({page.name for page in DOCS.glob("*.md")} | MADE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


SHOWN = {
    "a page": ("engine.html", "How the engine reads the graph"),
    "a notebook": ("detector.html", "Three lines for a model and loaders you have"),
    "a file of the repository": ("contributing.html", "Adding something"),
    "a docstring": ("python.html", "GradientMetricCollector"),
    "a command": ("commands.html", "gradscore fit-meta"),
}


@pytest.mark.parametrize(("page", "words"), SHOWN.values(), ids=SHOWN)
def test_site_shows(site: Path, page: str, words: str) -> None:
    assert words in (site / page).read_text()


@pytest.mark.parametrize("page", ["index.html", "architecture.html"])
def test_site_fetches_nothing(site: Path, page: str) -> None:
    """Neither fonts nor scripts."""
    text = (site / page).read_text()
    assert re.findall(r'(?:src|rel="stylesheet" href|href)="(https?://[^"]*\.(?:js|css|woff2?))"', text) == []
    assert "fonts.g" not in text


def test_search_works_from_the_disk(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    assert '<script src="iframe-worker.js"></script>' in (site / "index.html").read_text()


@pytest.fixture(scope="module")
def engine() -> dict:
    return run_page("engine.md")


HALF_L2 = np.sqrt(2) / 4
BY_HAND = {
    "weight/l1": 1 / 2 * 3,
    "weight/l2": HALF_L2 * np.sqrt(5),
    "weight/max": 1 / 4 * 2,
    "weight/min": -1 / 4 * 2,
    "weight/mean": 0,
    "bias/l1": 1 / 2,
    "bias/l2": HALF_L2,
}


@pytest.mark.parametrize(("column", "wanted"), BY_HAND.items(), ids=BY_HAND)
def test_statistic_worked_by_hand(engine: dict, column: str, wanted: float) -> None:
    assert engine["table"][f"pseudo_label/{column}"].tolist() == pytest.approx([wanted] * 2, abs=1e-12)


@pytest.mark.parametrize(("column", "wanted"), BY_HAND.items(), ids=BY_HAND)
def test_page_says_what_was_worked_by_hand(column: str, wanted: float) -> None:
    shown = f"{round(wanted, 4):g}"
    assert f"| `pseudo_label/{column}` | {shown} | {shown} |" in (DOCS / "engine.md").read_text()


def test_graph_is_as_the_page_says(engine: dict) -> None:
    accumulate = "torch::autograd::AccumulateGrad"
    assert engine["consumer"] == ("AddmmBackward0", [accumulate, None, "TBackward0"])
    assert engine["met"].tolist() == [[1, 2], [2, -1]]


def test_powers_of_two_are_those_of_the_page(engine: dict) -> None:
    logits = engine["logits"]
    assert (2.0 ** exponents(2, logits.dtype, logits.device)).tolist() == [1, 32]


def test_moving_over_works() -> None:
    assert run_page("related.md")["features"].shape == (5, 4)
