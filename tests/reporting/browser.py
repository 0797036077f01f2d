"""The page in headless Chromium. Not part of the tests that need nothing but Python: `make browser-test` runs it."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from gradscore.deployment import Scorer, make_bundle, write_bundle
from gradscore.monitoring import Monitor, write_monitor
from gradscore.reporting import write_report
from gradscore.store import RunFolder

FRAME = "<!doctype html><body><iframe src='{address}' width='390' height='9000'></iframe>"


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser; its absence is a failure here, not a reason to skip."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "install Chromium (Debian: apt-get install chromium)"
    return found


def visit(chromium: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    settings = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
                "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000",
                "--allow-file-access-from-files"]  # fmt: skip
    return subprocess.run([chromium, *settings, *options, page.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)  # fmt: skip


@pytest.fixture(scope="module")
def page(report_run, report_evaluation) -> Path:
    return write_report(report_run, report_evaluation)


@pytest.fixture(scope="module")
def visited(chromium, page) -> subprocess.CompletedProcess[str]:
    return visit(chromium, page, "--dump-dom")


def test_nothing_is_logged_to_the_console(visited):
    assert [line for line in visited.stderr.splitlines() if "CONSOLE" in line] == []


def test_every_plot_is_drawn(chromium, page, tmp_path):
    probe = (
        "<script>onload = () => { const plots = [...document.querySelector('iframe').contentDocument"
        ".querySelectorAll('.plot')]; document.title = plots.filter((plot) => plot.naturalWidth > 0).length "
        "+ ' of ' + plots.length; }</script>"
    )
    frame = tmp_path / "plots.html"
    frame.write_text(FRAME.format(address=page.as_uri()) + probe)
    assert "<title>9 of 9</title>" in visit(chromium, frame, "--dump-dom").stdout


class Images(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.sources = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.sources += [dict(attrs)["src"]] if tag == "img" else []


def test_names_of_files_and_layers_make_no_element(visited):
    page = visited.stdout
    assert "onerror=" in page
    assert {source[:15] for source in Images(page).sources} == {"data:image/png;", "data:image/svg+"}


def test_a_phone_does_not_scroll_sideways(chromium, page, tmp_path):
    frame = tmp_path / "phone.html"
    probe = (
        "<script>onload = () => { const page = document.querySelector('iframe').contentDocument.documentElement; "
        "document.title = page.scrollWidth <= page.clientWidth ? 'fits' : 'is ' + page.scrollWidth; }</script>"
    )
    frame.write_text(FRAME.format(address=page.as_uri()) + probe)
    assert "<title>fits</title>" in visit(chromium, frame, "--dump-dom").stdout


def test_the_windows_of_a_monitor_fit_a_phone(chromium, small_run, tmp_path):
    bundle = make_bundle(RunFolder(small_run), alpha=0.1, with_weights=True, trust_code=True, shifted_copies=10)
    path = small_run.parent / "phone.gradscore"  # beside the code of its model
    write_bundle(path, bundle)
    watching = Monitor.load(path, by=100)
    digits = np.round(load_digits().images[600:850, None] * (255 / 16)).astype(np.uint8)
    names = [f"a folder with a long name/{place}.png" for place in range(len(digits))]
    watching.update(Scorer.load(path, trust_code=True)(digits, sample_ids=names, watch=True))
    page = write_monitor(watching, tmp_path / "watch").html
    frame = tmp_path / "phone.html"
    probe = (
        "<script>onload = () => { const page = document.querySelector('iframe').contentDocument; "
        "const ends = [...page.querySelectorAll('body *')].map((each) => each.getBoundingClientRect().right); "
        "document.title = [page.querySelectorAll('tbody tr').length, 'windows,', "
        "Math.max(...ends) <= 390 ? 'fit' : 'end at ' + Math.max(...ends)].join(' '); }</script>"
    )
    frame.write_text(FRAME.format(address=page.as_uri()) + probe)
    assert "<title>3 windows, fit</title>" in visit(chromium, frame, "--dump-dom").stdout
