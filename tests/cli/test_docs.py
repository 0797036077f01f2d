"""`gradscore docs`: the manual on a terminal."""

import io
import re
import sys
from pathlib import Path

from commands import cli

from gradscore_cli.docs import docs

DOCS = Path(__file__).parents[2] / "docs"


def test_all_pages_are_listed_the_first_one_first() -> None:
    found = cli("docs")
    names = [line.split()[0] for line in found.stdout.splitlines()]
    assert (found.exit_code, names[0], sorted(names)) == (
        0,
        "index",
        sorted([path.stem for path in DOCS.glob("*.md")] + ["detector"]),
    )


def test_every_page_that_a_page_links_is_there() -> None:
    pages = [line.split()[0] for line in cli("docs").stdout.splitlines()]
    for page in pages:
        text = cli("docs", page).stdout
        linked = re.findall(r"\]\((\w[\w-]*)\.(?:md|ipynb)[)#]", text)
        assert set(linked) <= set(pages), page


def test_a_notebook_is_shown_as_a_page() -> None:
    found = cli("docs", "detector").stdout
    assert found.startswith("# Three lines")
    assert "```python\nimport gradscore\n" in found


def test_a_page_in_a_pipe_is_as_it_is_written() -> None:
    assert cli("docs", "glossary").stdout == (DOCS / "glossary.md").read_text()


def test_marks_of_generated_tables_are_left_out() -> None:
    found = cli("docs", "configuration").stdout
    written = (DOCS / "configuration.md").read_text()
    assert "<!-- table: settings -->" in written
    assert "<!--" not in found
    assert [line for line in found.splitlines() if line] == [
        line for line in written.splitlines() if line and not line.startswith("<!--")
    ]


def test_a_page_on_a_terminal_is_laid_out(monkeypatch) -> None:
    monkeypatch.setattr("gradscore_cli.docs._is_terminal", lambda: True)
    found = cli("docs", "glossary.md", COLUMNS="60", NO_COLOR="1").stdout
    assert "Glossary" in found
    assert "# Glossary" not in found


def test_a_page_that_is_not_there() -> None:
    found = cli("docs", "glosary")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "did you mean 'glossary'?" in " ".join(found.stderr.split())


def test_a_terminal_that_lacks_letters_gets_a_sign_in_their_place(monkeypatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("gradscore_cli.docs._is_terminal", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    docs("models")
    terminal.flush()
    assert b"?" in terminal.buffer.getvalue()  # type: ignore[attr-defined]


def test_names_stand_with_what_they_are() -> None:
    found = cli("docs", "python").stdout
    assert ":::" not in found
    assert "- `gradscore.Detector`: Tells wrong predictions and out-of-distribution samples" in found
    assert "- `gradscore.features`: " in found
    assert "- `gradscore.metrics.PNorm`: " in found
