"""Names from outside reach the terminal as text: no control sign, no markup, no line of their own."""

import io

import pytest

from gradscore_cli.rendering import Terminal, figures_table, printable, say

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


@pytest.mark.parametrize(("name", "wanted"), NAMES.values(), ids=NAMES)
def test_printable(name: str, wanted: str) -> None:
    assert printable(name) == wanted


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
