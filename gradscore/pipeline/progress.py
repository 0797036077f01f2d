"""A bar on a terminal that says how far the work is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Rich
from rich.text import Text

from ..notices import printable
from .loop import Progress


class RateColumn(ProgressColumn):
    """Samples per second."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} samples/s")


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """Shows one split after the other, with a rate and the time that is left."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), RateColumn())
    with Rich(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task, shown = bar.add_task("preparing", total=None), ""

        def tell(split: str, done: int, total: int) -> None:
            nonlocal shown
            if split != shown:
                shown = split
                # What is done already took no time now: neither rate nor time left may count it.
                bar.reset(task, description=printable(split), completed=done)
            bar.update(task, completed=done, total=total or None)

        yield tell
