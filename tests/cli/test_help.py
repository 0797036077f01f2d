"""`--help`: its groups, and examples that work where nothing is there yet."""

import re

import pytest
from help_examples import COMMANDS, EXAMPLES, GROUP, LABELS
from typer.testing import CliRunner

from gradscore_cli.main import app

MADE = {"gradscore.yaml", "net.py", "weights.safetensors", "run", "scorer.gradscore"}
"""What is in the demo's folder in the end, beside images."""

WRITTEN = {"--out", "--expected", "--junit"}
"""Options that name what a command writes, or what the one before it wrote."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    assert LABELS[command] in (
        ["Example"],
        ["Example", "Example"],
        ["After gradscore demo"],
        ["After gradscore demo", "Then"],
    )


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_parse(command: str) -> None:
    for _, name, *words in EXAMPLES[command]:
        group = GROUP.commands[name]
        found, rest = (group.commands[words[0]], words[1:]) if hasattr(group, "commands") else (group, words)
        assert found.make_context(name, [*rest], resilient_parsing=False).params is not None


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_name_what_is_there(command: str) -> None:
    """Files of the demo's folder, or what an example before it wrote; test_demo.py runs them."""
    there = {"demo", "demo/images/unknown", "demo/images/unknown/bag", *(f"demo/{name}" for name in MADE)}
    for words in EXAMPLES[command]:
        pairs = list(zip(["", *words], words, strict=False))
        there |= {word for before, word in pairs if before in WRITTEN}
        assert [
            word
            for word in words
            if re.match(r"demo\b|.*\.(?:csv|gradscore|json|parquet|png|pt|yaml)$", word) and word not in there
        ] == []


def test_groups_and_their_order() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    panels = re.findall(r"^╭─ (\w+)", said, re.MULTILINE)
    assert panels == ["Options", "Start", "Decide", "Guard", "Look"]
    commands = [line.split()[1] for line in said.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert commands[:3] == ["demo", "init", "run"]
    assert len(commands) == len(GROUP.commands)


def test_the_terminal_alone_breaks_lines() -> None:
    assert {name: command.help for name, command in COMMANDS.items() if re.search(r"[^\n]\n[^\n]", command.help)} == {}
