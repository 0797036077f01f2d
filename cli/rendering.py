"""How commands show tables and lines."""

from __future__ import annotations

import logging
import warnings as python_warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from gradscore.printable import printable

from .addresses import named

NARROWEST = 16
"""Names take so many columns at least before a table becomes wider than the terminal."""


class Terminal(Console):
    """A console that takes texts as they stand: no markup, and lines that are `printable`."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, quiet=quiet)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console`: every text passes here, cells of tables too."""
        return super().render_str("\n".join(map(printable, named(text).split("\n"))), **options)

    def on_broken_pipe(self) -> None:
        """Passes on that the reader has seen enough, which `main` knows from an error."""
        raise  # Console calls this where it catches BrokenPipeError

    def show(self, table: Table) -> None:
        """Prints a table in which nothing is cut: names are folded, and lines are longer where that is not enough."""
        _fold_names(table, self)
        self.print(table, crop=False, soft_wrap=table.width is not None)


def _fold_names(table: Table, console: Console) -> None:
    """Sets the widths of a table that is wider than the console."""
    wide = Measurement.get(console, console.options.update(width=10_000), table).maximum
    for column in table.columns:
        if wide <= console.width or column.no_wrap:
            continue
        longest = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        column.width = min(longest, max(NARROWEST, longest - (wide - console.width)))
        wide -= longest - column.width
    if wide > console.width:
        table.width = wide


def escape_remarks_of_others() -> None:
    """Has warnings, and what libraries log, say names from outside as `printable`, on lines of their own."""
    make = logging.getLogRecordFactory()

    def record(*arguments: Any, **settings: Any) -> logging.LogRecord:
        made = make(*arguments, **settings)
        with suppress(Exception):  # of a message that does not fit its arguments, which logging tells itself
            made.msg, made.args = _lines(made.getMessage()), ()
        return made

    def show(message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
        typer.echo(_lines(f"warning: {message} ({category.__name__})"), err=True)

    logging.setLogRecordFactory(record)
    python_warnings.showwarning = show


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def say(console: Console, *lines: str, style: str | None = None) -> None:
    """Prints lines as they stand: no wrapping, no markup, no colours but those of `style`."""
    for line in lines:
        console.print(printable(named(line)), soft_wrap=True, highlight=False, markup=False, style=style)


def notes(lines: Iterable[str]) -> list[str]:
    """Lines for what the reader should know."""
    return [f"note: {line}" for line in lines]


def warnings(lines: Iterable[str]) -> list[str]:
    """Lines for what the reader should know before any figure."""
    return [f"warning: {line}" for line in lines]


def figures_table(names: Sequence[str | Column], figures: Sequence[str], *, title: str = "") -> Table:
    """A table of names on the left, which may be folded, and figures on the right, which are never broken.

    Args:
        names: headings of the columns with names.
        figures: headings of the columns with figures.
        title: above it.
    """
    heading = Text(printable(named(title)), overflow="fold") if title else None
    columns = [Column(name, overflow="fold") if isinstance(name, str) else name for name in names]
    table = Table(*columns, title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def cell(value: float | None) -> str:
    """A figure with four decimals, or `-`."""
    return "-" if value is None else f"{value:.4f}"


def interval(low: float | None, high: float | None) -> str:
    """The bounds of an interval with three decimals, or `-`."""
    return "-" if low is None or high is None else f"{low:.3f}-{high:.3f}"
