"""The examples that `--help` shows."""

import re
import shlex
from typing import Any

import typer

from gradscore_cli.main import app

GROUP: Any = typer.main.get_command(app)
SHOWN = re.compile(r"^(Example|After gradscore demo|Then): (gradscore .*)$", re.MULTILINE)
COMMANDS: dict[str, Any] = GROUP.commands
LABELS = {name: [label for label, _ in SHOWN.findall(command.help)] for name, command in COMMANDS.items()}
"""What stands before each example, by command."""

EXAMPLES = {
    name: [shlex.split(line) for _, line in SHOWN.findall(command.help.replace("\\[", "["))]  # as Rich shows it
    for name, command in COMMANDS.items()
    if name != "demo"
}
"""The words of each example, by command."""
