"""`gradscore docs`: the manual on a terminal."""

from pathlib import Path

from typer.testing import CliRunner

from gradscore_cli.main import app

DOCS = Path(__file__).parents[2] / "docs"


def test_all_pages_are_listed_the_first_one_first() -> None:
    found = CliRunner().invoke(app, ["docs"])
    names = [line.split()[0] for line in found.stdout.splitlines()]
    assert (found.exit_code, names[0], sorted(names)) == (0, "index", sorted(path.stem for path in DOCS.glob("*.md")))


def test_a_page_in_a_pipe_is_as_it_is_written() -> None:
    assert CliRunner().invoke(app, ["docs", "glossary"]).stdout == (DOCS / "glossary.md").read_text()


def test_a_page_on_a_terminal_is_laid_out(monkeypatch) -> None:
    monkeypatch.setattr("gradscore_cli.docs._is_terminal", lambda: True)
    found = CliRunner().invoke(app, ["docs", "glossary.md"], env={"COLUMNS": "60", "NO_COLOR": "1"}).stdout
    assert "Glossary" in found
    assert "# Glossary" not in found


def test_a_page_that_is_not_there() -> None:
    found = CliRunner().invoke(app, ["docs", "glosary"])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "glossary" in found.stderr
