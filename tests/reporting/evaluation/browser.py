"""The page in headless Chromium. Not part of the tests that need nothing but Python: `make browser-test` runs it."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradscore.reporting.evaluation import write_report

SCHEMES = {"dark": "0", "light": "1"}
TEXT = {"dark": "rgb(230, 233, 236)", "light": "rgb(28, 33, 38)"}
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
    return write_report(report_run, report_evaluation).html


@pytest.fixture(scope="module", params=SCHEMES)
def visited(request, chromium, page) -> tuple[str, subprocess.CompletedProcess[str]]:
    """A colour scheme, and what became of the page in it."""
    options = [f"--blink-settings=preferredColorScheme={SCHEMES[request.param]}", "--dump-dom"]
    return request.param, visit(chromium, page, *options)


def without_scripts(text: str) -> str:
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def test_nothing_is_logged_to_the_console(visited):
    assert [line for line in visited[1].stderr.splitlines() if "CONSOLE" in line] == []


def test_every_plot_is_drawn(visited):
    page = without_scripts(visited[1].stdout)
    places = re.findall(r'<div class="plot[^"]*" id="([^"]+)"', page)
    assert len(places) == 9
    assert 'data-drawn="9"' in page
    assert len(re.findall(r'<g class="cartesianlayer">', page)) == 9
    assert len(re.findall(r'<path class="js-line"', page)) >= 14
    assert len(re.findall(r'<g class="hm">', page)) == 2


def test_plots_take_the_colours_of_the_scheme(visited):
    scheme, found = visited
    other = TEXT["light" if scheme == "dark" else "dark"]
    page = without_scripts(found.stdout)
    assert f"fill: {TEXT[scheme]}" in page
    assert f"fill: {other}" not in page


class Images(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.sources = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.sources += [dict(attrs)["src"]] if tag == "img" else []


def test_names_of_files_and_layers_make_no_element(visited):
    page = without_scripts(visited[1].stdout)
    assert "onerror=" in page
    assert {source[:15] for source in Images(page).sources} == {"data:image/png;"}


def test_a_phone_does_not_scroll_sideways(chromium, page, tmp_path):
    frame = tmp_path / "phone.html"
    probe = (
        "<script>onload = () => { const page = document.querySelector('iframe').contentDocument.documentElement; "
        "document.title = page.scrollWidth <= page.clientWidth ? 'fits' : 'is ' + page.scrollWidth; }</script>"
    )
    frame.write_text(FRAME.format(address=page.as_uri()) + probe)
    assert "<title>fits</title>" in visit(chromium, frame, "--dump-dom").stdout
