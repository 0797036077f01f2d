"""How far a command is, on standard error: moving on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradscore.printable import printable

from .output import Terminal, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from gradscore.store import Tell

PARTS = 10
"""Without a terminal, a line is said for each such part of the work."""


@contextmanager
def counting(*, quiet: bool, console: Terminal | None = None) -> Iterator[Tell]:
    """Shows how many samples are done.

    Args:
        quiet: show nothing.
        console: where; standard error by default.
    """
    console = console or Terminal(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield Lines(console)
        return
    with progress_bar(console) as bar:
        yield Bar(bar)


@contextmanager
def doing(*, quiet: bool, console: Terminal | None = None) -> Iterator[Callable[[str], None]]:
    """Shows what is being done."""
    console = console or Terminal(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield lambda line: say(console, line)
        return
    with console.status("reading") as status:
        yield lambda line: status.update(printable(line))


class Bar:
    """Shows one split after the other."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._split = ""
        self._task = bar.add_task("preparing", total=None)

    def __call__(self, split: str, done: int, total: int) -> None:
        """See `Tell`."""
        if split != self._split:
            self._split = split
            # What is done already took no time now: neither rate nor time left may count it.
            self._bar.reset(self._task, description=printable(split), total=total, completed=done)
        self._bar.update(self._task, completed=done)


class Lines:
    """Says a line when a split begins, and for each part of the work that is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[str, int] | None = None

    def __call__(self, split: str, done: int, total: int) -> None:
        """See `Tell`."""
        reached = split, PARTS * done // max(1, total)
        if reached != self._last:
            self._last = reached
            say(self._console, f"{split}: {done} of {total} samples")


def progress_bar(console: Console) -> Progress:
    """A bar with a rate and the time that is left."""
    # Rich's progress is slow to import, and help has none.
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Samples per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.0f} samples/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)
