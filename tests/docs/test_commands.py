"""The page of commands says what `--help` says, and every command in the documentation can be typed as it stands."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gradscore_cli.main import app

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
GROUP = typer.main.get_command(app)
SECTION = re.compile(r"^## gradscore (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
SECTIONS = dict(SECTION.findall((ROOT / "docs" / "commands.md").read_text()))
LINES = sorted(
    {
        line.partition(" #")[0].strip()
        for page in PAGES
        for block in re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("gradscore ")
    }
    | {line.strip() for page in PAGES for line in re.findall(r"^    (gradscore .*)$", page.read_text(), re.MULTILINE)}
)


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def listed(group) -> list[str]:
    """The names of all commands, those of groups below them included."""
    names = [
        [f"{name} {below}" for below in command.commands] if hasattr(command, "commands") else [name]
        for name, command in group.commands.items()
    ]
    return [each for some in names for each in some]


def test_every_command_has_a_section() -> None:
    assert list(SECTIONS) == listed(GROUP)


@pytest.mark.parametrize("name", SECTIONS)
def test_section_has_the_options_of_help(name: str) -> None:
    said = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    panel = "\n".join(re.findall(r"^│ +(?:\* +)?(--.*?)(?:  .*)?$", said, re.MULTILINE))
    rows = "\n".join(re.findall(r"^\| `(.*?)` \|", SECTIONS[name], re.MULTILINE))
    assert options(rows) == options(panel) - {"--help"}


@pytest.mark.parametrize("line", LINES)
def test_command_in_the_documentation_can_be_typed(line: str) -> None:
    """Options and arguments are those that the command has; the files need not be there."""
    found = parsed(GROUP, shlex.split(line)[1:])
    assert found.params


def parsed(group, words: list[str]):
    """The context of a command with its arguments, not run."""
    command = group.commands[words[0]]
    if hasattr(command, "commands"):
        return parsed(command, words[1:])
    return command.make_context(words[0], words[1:], resilient_parsing=False)
