"""Where commands say what they found: lines and tables for a reader, or one JSON document for a program."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from gradscore.printable import storable

from .addresses import named
from .rendering import Terminal, notes, say, warnings

FOLDED = 10
"""At most so many notes of a kind are printed."""


_OBEYED = re.compile("[\x7f-\x9f]")
"""Control signs that JSON leaves as they are, and terminals obey."""


class Output:
    """What `--json` and `--quiet` do to what a command says.

    With `--json`, standard output holds the document alone, and what a reader should know goes to standard error. With
    `--quiet`, results and warnings are all that is said.

    Attributes:
        as_json: whether a program reads.
        quiet: whether nothing but results and warnings is wanted.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._results = Terminal(quiet=as_json)
        self._remarks = Terminal(stderr=as_json, quiet=quiet)
        self._warnings = Terminal(stderr=as_json)
        self._doubts = Terminal(stderr=True)
        self._warned: set[str] = set()

    def say(self, *lines: str, style: str | None = None) -> None:
        """Results as lines."""
        say(self._results, *lines, style=style)

    def show(self, table: Table) -> None:
        """Results as a table."""
        self._results.show(table)

    def explain(self, *lines: str) -> None:
        """What helps to read results, and nobody else needs."""
        if not self.quiet:
            say(self._results, *lines)

    def remark(self, *lines: str) -> None:
        """What has a first word of its own, and a reader should know."""
        say(self._remarks, *lines)

    def code(self, code: object) -> None:
        """Which code of a model is about to run, on standard error."""
        if not self.quiet:
            say(Terminal(stderr=True), f"running {code}")

    def note(self, lines: Sequence[str], *, rest: str) -> None:
        """What a reader should know.

        Args:
            lines: one each.
            rest: where all of them are, if there are too many for a screen.
        """
        self.remark(*folded(notes(lines), rest=rest))

    def warn(self, lines: Sequence[str], *, rest: str = "") -> None:
        """What a reader should know before any figure; commands of several steps say it once.

        Args:
            lines: one each.
            rest: where all of them are, if there may be too many for a screen.
        """
        new = warnings([line for line in lines if line not in self._warned])
        say(self._warnings, *(folded(new, rest=rest) if rest else new), style="yellow")
        self._warned.update(lines)

    def doubt(self, lines: Sequence[str]) -> None:
        """What makes results doubtful that were found before, on standard error: no result of this command."""
        say(self._doubts, *warnings(lines), style="yellow")

    def document(self, content: Any) -> None:
        """The results as JSON, where that is wanted."""
        if self.as_json:
            typer.echo(json_text(content))


def folded(lines: Sequence[str], *, rest: str, shown: int = FOLDED) -> list[str]:
    """The first lines, at most so many, and how many more there are and where."""
    more = [f"and {len(lines) - shown} more, in {rest}"] if len(lines) > shown else []
    return [*lines[:shown], *more]


def json_text(content: Any) -> str:
    """JSON of data classes, paths and times among plain values; a figure that is not finite is null."""
    text = json.dumps(_plain(content), indent=1, allow_nan=False, ensure_ascii=False)
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {storable(str(key)): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str | Path):
        return storable(named(str(value)))
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
