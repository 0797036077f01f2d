"""The examples that `--help` shows."""

import re
import shlex
from typing import Any

import typer

from gradscore_cli.main import app

GROUP: Any = typer.main.get_command(app)
SHOWN = re.compile(r"^(Example|After gradscore demo|Then): (gradscore .*)$", re.MULTILINE)


def _below(name: str, command: Any) -> dict[str, Any]:
    """All commands by what is typed."""
    if not hasattr(command, "commands"):
        return {name: command}
    found = [_below(f"{name} {key}".lstrip(), each) for key, each in command.commands.items()]
    return {key: each for some in found for key, each in some.items()}


COMMANDS = _below("", GROUP)
LABELS = {name: [label for label, _ in SHOWN.findall(command.help)] for name, command in COMMANDS.items()}
"""What stands before each example, by command."""

EXAMPLES = {
    name: [shlex.split(line) for _, line in SHOWN.findall(command.help)]
    for name, command in COMMANDS.items()
    if name != "demo"
}
"""The words of each example, by command."""
