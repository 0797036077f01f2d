"""How commands show tables and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def say(console: Console, *lines: str) -> None:
    """Prints lines as they stand: no wrapping, no colours, no markup."""
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def notes(lines: Iterable[str]) -> list[str]:
    """Lines for what the reader should know."""
    return [f"note: {line}" for line in lines]


def figures_table(names: Sequence[str | Column], figures: Sequence[str], *, title: str = "") -> Table:
    """A table of names on the left and figures on the right.

    Args:
        names: headings of the columns with names.
        figures: headings of the columns with figures.
        title: above it.
    """
    heading = Text(title) if title else None
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
