"""Where commands say what they found: lines and tables for a reader, or one JSON document for a program.

How far a command is stands on standard error: moving on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from gradscore.notices import Notice, called, printable, storable

if TYPE_CHECKING:
    from gradscore.pipeline import Progress

_documents: ContextVar[TextIO | None] = ContextVar("documents", default=None)
"""Where JSON documents go: where standard output leads, if None."""

FOLDED = 10
"""At most so many notices are printed at once."""

NARROWEST = 16
"""Names take so many columns at least before a table becomes wider than the terminal."""

PARTS = 5
"""Without a terminal, a line is said at the beginning and for each such part of the work."""

_OBEYED = re.compile("[\x7f-\x9f]")
"""Control signs that JSON leaves as they are, and terminals obey."""


class Terminal(Console):
    """A console that takes texts as they stand: no markup, no emoji for `:b:`, and lines that are `printable`."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, quiet=quiet)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console`: every text passes here, cells of tables too."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)

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


class Output:
    """Output of a command, by `--json` and `--quiet`.

    With `--json`, standard output holds the document alone, and what a reader should know goes to standard error. With
    `--quiet`, results and warnings are all that is said.

    Attributes:
        as_json: whether a program reads.
        quiet: whether nothing but results and warnings is wanted.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._results = Terminal(quiet=as_json)
        self._warned: set[str] = set()

    def say(self, *lines: str, style: str | None = None, detail: bool = False, wrap: bool = False) -> None:
        """Results as lines; a `detail` helps to read them, and goes where `--quiet` is given.

        With `wrap`, a terminal breaks them between words; what may be pasted or read by a program is never broken.
        """
        if not (detail and self.quiet):
            say(self._results, *lines, style=style, wrap=wrap)

    def show(self, table: Table) -> None:
        """Results as a table."""
        self._results.show(table)

    def tell(self, *notices: str, rest: str = "", stderr: bool = False) -> None:
        """Prints notices beside the results: warnings first, each once, and then notes.

        Args:
            notices: by their levels; a text that is no `Notice` has a first word of its own.
            rest: where all of them are, if there may be too many for a screen.
            stderr: say them on standard error, since they are no result of this command.
        """
        terminal, urgent, others = Terminal(stderr=stderr or self.as_json), [], []
        for notice in notices:
            if not isinstance(notice, Notice):
                others.append(notice)
            elif notice.level == "note":
                others.append(f"note: {notice}")
            elif notice not in self._warned:
                urgent.append(f"warning: {notice}")
                self._warned.add(notice)
        say(terminal, *(folded(urgent, rest=rest) if rest else urgent), style="yellow")
        if not self.quiet:
            say(terminal, *(folded(others, rest=rest) if rest else others))

    def document(self, content: Any) -> None:
        """The results as JSON, where that is wanted."""
        if self.as_json:
            typer.echo(json_text(content), file=_documents.get())


@contextmanager
def documents_alone() -> Iterator[None]:
    """Keeps standard output for documents: what the code of a model prints, say, goes to standard error."""
    token = _documents.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.reset(token)


def folded(lines: Sequence[str], *, rest: str, shown: int = FOLDED) -> list[str]:
    """The first lines, at most so many, and how many more there are and where."""
    more = [f"and {len(lines) - shown} more, in {rest}"] if len(lines) > shown else []
    return [*lines[:shown], *more]


def by_level(notices: Iterable[Notice]) -> dict[str, list[Notice]]:
    """Notices in a document: warnings, and all others."""
    found: dict[str, list[Notice]] = {"warnings": [], "notices": []}
    for notice in notices:
        found["warnings" if notice.level == "warning" else "notices"].append(notice)
    return found


def json_text(content: Any) -> str:
    """JSON of data classes, records, paths and times among plain values; a figure that is not finite is null."""
    text = json.dumps(_plain(content), indent=1, allow_nan=False, ensure_ascii=False)
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "model_dump"):  # a model of pydantic, which --help need not wait for
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {storable(str(key)): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str | Path):
        return storable(called(str(value)))
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def figures_table(names: Sequence[str | Column], figures: Sequence[str], *, title: str = "") -> Table:
    """A table of names on the left, which may be folded, and figures on the right, which are never broken.

    Args:
        names: headings of the columns with names.
        figures: headings of the columns with figures.
        title: above it.
    """
    heading = Text(printable(title), overflow="fold") if title else None
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


def escape_remarks_of_others() -> None:
    """Has warnings, and what libraries log, say names from outside as `printable`, on lines of their own."""
    make = logging.getLogRecordFactory()

    def record(*arguments: Any, **settings: Any) -> logging.LogRecord:
        made = make(*arguments, **settings)
        with suppress(Exception):  # of a message that does not fit its arguments, which logging tells itself
            made.msg, made.args = printable_lines(made.getMessage()), ()
        return made

    def show(message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
        typer.echo(printable_lines(f"warning: {message} ({category.__name__})"), err=True)

    logging.setLogRecordFactory(record)
    warnings.showwarning = show


def printable_lines(text: str) -> str:
    """Text of several lines, each `printable`."""
    return "\n".join(map(printable, text.splitlines()))


def say(console: Console, *lines: str, style: str | None = None, wrap: bool = False) -> None:
    """Prints lines as they stand: no markup, no colours but those of `style`, broken by a terminal and for `wrap`."""
    soft = not (wrap and console.is_terminal)
    for line in lines:
        console.print(printable(line), soft_wrap=soft, highlight=False, markup=False, style=style)


@contextmanager
def counting(*, quiet: bool) -> Iterator[Progress]:
    """Shows how many samples are done, on standard error."""
    console = Terminal(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield Lines(console)
        return
    from gradscore.pipeline import progress_bar

    with progress_bar(console) as tell:
        yield tell


@contextmanager
def doing(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows what is being done, on standard error; elsewhere than on a terminal the first of it alone."""
    console = Terminal(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        told: list[str] = []

        def tell(line: str) -> None:
            if not told:
                say(console, line)
            told.append(line)

        yield tell
        return
    with console.status("reading") as status:
        yield lambda line: status.update(Text(printable(line)))


class Lines:
    """Says a line when the work begins, and for each part of it that is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[int, int] | None = None

    def __call__(self, split: str, done: int, total: int) -> None:
        """See `gradscore.pipeline.Progress`."""
        reached = total, PARTS * done // max(1, total)
        if reached != self._last:
            self._last = reached
            say(self._console, f"{done} of {total} samples ({split})")
