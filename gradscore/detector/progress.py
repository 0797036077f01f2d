"""Progress for those who ask for it: a bar, or a function that is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..features import Progress


@contextmanager
def telling(progress: bool | Progress) -> Iterator[Progress | None]:
    """What tells of progress: a bar on standard error for True, nothing for False, and a function itself."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def tell(split: str, done: int, total: int) -> None:
            bar.update(task, description=split, completed=done, total=total or None)

        yield tell
