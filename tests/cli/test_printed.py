"""Names from outside reach the terminal as text: no control sign, no markup, no line of their own."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradscore
from gradscore.errors import StoreError
from gradscore.evaluation.score_tables import ScoreFile
from gradscore.reporting.pages import render
from gradscore_cli.output import Terminal, figures_table, json_text, say

NAMES = {
    "plain": ("layer1.0.conv", "layer1.0.conv"),
    "an escape sequence": ("\x1b[2Jgone", r"\x1b[2Jgone"),
    "a line break": ("a\nerror: b", r"a\nerror: b"),
    "a carriage return": ("a\rb", r"a\rb"),
    "a sign that turns text around": ("a\u202eb", r"a\u202eb"),
    "bytes that are no text": ("a\udcffb", r"a\udcffb"),
    "markup": ("[red]a[/red] [/]", "[red]a[/red] [/]"),
    "other scripts": ("größe 层 📷", "größe 层 📷"),
}


@pytest.fixture
def terminal() -> Terminal:
    made = Terminal()
    made.file = io.StringIO()
    made.width = 120
    return made


@pytest.mark.parametrize(("name", "wanted"), NAMES.values(), ids=NAMES)
def test_lines(terminal: Terminal, name: str, wanted: str) -> None:
    say(terminal, name)
    assert terminal.file.getvalue() == wanted + "\n"


CELLS = {name: case for name, case in NAMES.items() if name != "a line break"}


@pytest.mark.parametrize(("name", "wanted"), CELLS.values(), ids=CELLS)
def test_cells_and_titles(terminal: Terminal, name: str, wanted: str) -> None:
    table = figures_table(["name"], ["figure"], title=name)
    table.add_row(name, "1")
    terminal.print(table)
    assert terminal.file.getvalue().count(wanted) == 2
    assert name == wanted or name not in terminal.file.getvalue()


LONG = "features.denseblock4.denselayer16.conv2.weight"
WIDE = {
    "one long name": ([LONG], 7, 80),
    "two long names": ([LONG, LONG], 5, 80),
    "more figures than fit": ([LONG], 20, 1 + (16 + 2) + 20 * (6 + 2)),
}


@pytest.mark.parametrize(("names", "figures", "widest"), WIDE.values(), ids=WIDE)
def test_no_name_and_no_figure_is_cut(terminal: Terminal, names: list[str], figures: int, widest: int) -> None:
    terminal.width = 80
    table = figures_table([f"name {place}" for place in range(len(names))], [f"f{place}" for place in range(figures)])
    table.add_row(*names, *["0.1234"] * figures)
    terminal.show(table)
    shown = terminal.file.getvalue()
    rows = shown.splitlines()[3:]
    assert max(map(len, shown.splitlines())) <= widest
    assert shown.count("0.1234") == figures
    assert "".join("".join(row.split()[:1]) for row in rows) == LONG
    assert "…" not in shown


def test_pages_show_control_signs(tmp_path: Path) -> None:
    (tmp_path / "x.html.jinja").write_text("{{ name }}")
    found = render(tmp_path / "x.html.jinja", {"name": "a\x1b[2J\x9bb"})
    assert {"\x1b", "\x9b"}.isdisjoint(found)
    assert found.count("x1b") == 1


def test_json_has_no_sign_that_a_terminal_obeys() -> None:
    assert json.loads(json_text({"name": "a\x9b2J"})) == {"name": "a\x9b2J"}
    assert "\x9b" not in json_text({"name": "a\x9b2J"})


SAY = """
import logging, warnings
from gradscore_cli.output import escape_remarks_of_others
escape_remarks_of_others()
warnings.warn("a\\x1b[2Jb\\nc", stacklevel=1)
logging.getLogger("some.library").warning("%s", "d\\x9bb")
logging.getLogger("some.library").warning("%d", "e")
"""


@pytest.mark.slow
def test_warnings_and_logs_of_libraries_are_printable() -> None:
    done = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[:3] == [r"warning: a\x1b[2Jb", "c (UserWarning)", r"d\x9bb"]
    assert "--- Logging error ---" in done.stderr


COMMAND = re.compile(r"`gradscore [a-z-]+ \{(?!quote\()[^}]*(?:path|folder|parent)[^}]*\}")


def test_paths_in_commands_of_messages_are_quoted() -> None:
    """Or a command with a space in a path would be another one when it is pasted."""
    sources = {path: path.read_text(encoding="utf-8") for path in Path(gradscore.__file__).parent.rglob("*.py")}
    assert [str(path) for path, text in sources.items() if COMMAND.search(text)] == []


def test_a_command_that_makes_scores_can_be_pasted(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"run `gradscore evaluate '.*/my run'` to write them"):
        ScoreFile(tmp_path / "my run" / "evaluation").table()
