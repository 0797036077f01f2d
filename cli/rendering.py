"""How commands show tables and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def printable(text: str) -> str:
    """Text whose control signs, and others that a terminal would obey or cannot show, stand as escapes.

    Names of files, layers and data sets come from outside: none may move the cursor or break a line.
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class Terminal(Console):
    """A console that takes texts as they stand: no markup, and lines that are `printable`."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console`: every text passes here, cells of tables too."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)


def say_code(code: object) -> None:
    """Says on standard error which code of a model is about to run."""
    say(Terminal(stderr=True), f"running {code}")


def say(console: Console, *lines: str) -> None:
    """Prints lines as they stand: no wrapping, no colours, no markup."""
    for line in lines:
        console.print(printable(line), soft_wrap=True, highlight=False, markup=False)


def notes(lines: Iterable[str]) -> list[str]:
    """Lines for what the reader should know."""
    return [f"note: {line}" for line in lines]


def warnings(lines: Iterable[str]) -> list[str]:
    """Lines for what the reader should know before any figure."""
    return [f"warning: {line}" for line in lines]


def figures_table(names: Sequence[str | Column], figures: Sequence[str], *, title: str = "") -> Table:
    """A table of names on the left and figures on the right.

    Args:
        names: headings of the columns with names.
        figures: headings of the columns with figures.
        title: above it.
    """
    heading = Text(printable(title)) if title else None
    table = Table(*names, title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in figures:
        table.add_column(name, justify="right")
    return table


def cell(value: float | None) -> str:
    """A figure with four decimals, or `-`."""
    return "-" if value is None else f"{value:.4f}"


def interval(low: float | None, high: float | None) -> str:
    """The bounds of an interval with three decimals, or `-`."""
    return "-" if low is None or high is None else f"{low:.3f}-{high:.3f}"
