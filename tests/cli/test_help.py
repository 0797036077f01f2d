"""`--help`: its groups, and that every command has examples, which test_demo.py runs."""

import re

import pytest
from commands import cli
from help_examples import COMMANDS, GROUP, LABELS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    assert LABELS[command] in (
        ["Example"],
        ["Example", "Example"],
        ["After gradscore demo"],
        ["After gradscore demo", "Then"],
    )


def test_groups_and_their_order() -> None:
    said = cli("--help", COLUMNS="200", NO_COLOR="1").stdout
    panels = re.findall(r"^╭─ (\w+)", said, re.MULTILINE)
    assert panels == ["Options", "Start", "Steps", "Decide", "Guard", "Look"]
    commands = [line.split()[1] for line in said.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert commands[:4] == ["demo", "init", "doctor", "run"]
    assert len(commands) == len(GROUP.commands)


def test_the_terminal_alone_breaks_lines() -> None:
    assert {name: command.help for name, command in COMMANDS.items() if re.search(r"[^\n]\n[^\n]", command.help)} == {}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_flags_show_no_value(command: str) -> None:
    said = cli(*command.split(), "--help", COLUMNS="200").stdout
    assert "--help" in said
    assert "bool" not in said.lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_brackets_are_shown(command: str) -> None:
    """Rich takes them for markup where nothing says otherwise, as in an example `--set features.losses=[uniform]`."""
    shown = COMMANDS[command]
    written = [shown.callback.__doc__, *(getattr(each, "help", None) or "" for each in shown.params)]
    said = cli(*command.split(), "--help", COLUMNS="400", NO_COLOR="1").stdout
    assert [each for text in written for each in re.findall(r"\S*\[[^]]*\]", text) if each not in said] == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_nothing_is_cut_on_a_narrow_terminal(command: str) -> None:
    said = cli(*command.split(), "--help", COLUMNS="80", NO_COLOR="1").stdout
    assert "--help" in said
    assert "…" not in said
