"""`gradscore extract`: from a configuration to a run folder with feature tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gradscore.config import load_config

from .options import INTERRUPTED, ConfigArgument, DeviceChoice, SetOption, TrustOption
from .rendering import Terminal, cell, figures_table, notes, say, warnings

if TYPE_CHECKING:
    from gradscore.features import ExtractSummary, SplitSummary

SHOWN = 10


def extract(
    config: ConfigArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RUN", help="Run folder, instead of the configuration's.")
    ] = None,
    settings: SetOption = None,
    device: Annotated[DeviceChoice | None, typer.Option("--device", help="Sets extract.device.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Sets extract.batch_size.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Sets extract.workers.")] = None,
    trust_code: TrustOption = False,
) -> None:
    """Compute the gradient features of all samples and write a run folder.

    A run that was interrupted goes on where it stopped when the same command is given again.

    Example: gradscore extract configs/digits.yaml --out runs/digits --batch-size 128 --trust-code
    """
    # This imports PyTorch, which help and errors need not wait for.
    from gradscore.features import extract as run_extract

    options = {"device": device, "batch_size": batch_size, "workers": workers}
    given = [f"extract.{name}={value}" for name, value in options.items() if value is not None]
    loaded = load_config(config, [*(settings or ()), *given])
    errors = Terminal(stderr=True)
    try:
        with _progress_bar(errors) as bar:
            summary = run_extract(loaded, out=out, trust_code=trust_code, progress=_Teller(bar))
    except KeyboardInterrupt:
        say(errors, f"interrupted; the same command continues the run in {out or loaded.run}")
        raise typer.Exit(INTERRUPTED) from None
    _report(Terminal(), summary)


class _Teller:
    """Shows one split after the other."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._split = ""
        self._task = bar.add_task("preparing", total=None)

    def __call__(self, split: str, done: int, total: int) -> None:
        if split != self._split:
            self._split = split
            # What is done already took no time now: neither rate nor time left may count it.
            self._bar.reset(self._task, description=split, total=total, completed=done)
        self._bar.update(self._task, completed=done)


class _RateColumn(ProgressColumn):
    """Samples per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} samples/s")


def _progress_bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)


def _report(console: Console, summary: ExtractSummary) -> None:
    if summary.was_complete:
        say(console, "this run is already complete: nothing to compute")
    say(console, *(f"changed: {line}" for line in summary.changes))
    say(console, *warnings(summary.warnings))
    console.print(_table(summary.splits))
    if summary.accuracy is not None:
        say(console, f"accuracy over all labelled samples: {summary.accuracy:.4f}")
    skipped = [f"skipped: {split.name}, {line}" for split in summary.splits for line in split.skipped]
    unusable = [f"{split.name}: {split.non_finite}" for split in summary.splits if split.non_finite]
    say(
        console,
        f"{summary.feature_count} features per sample, computed on {summary.device}",
        *_first_few(notes(summary.notices)),
        *_first_few(skipped),
        *_first_few([f"samples with values that are not finite: {line}" for line in unusable]),
        f"run folder: {summary.run}",
    )


def _table(splits: list[SplitSummary]) -> Table:
    table = figures_table(["split"], ["samples", "accuracy", "seconds", "samples/s"])
    for split in splits:
        rate = f"{split.computed / split.seconds:.0f}" if split.computed else "-"
        table.add_row(split.name, str(split.samples), cell(split.accuracy), f"{split.seconds:.1f}", rate)
    return table


def _first_few(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - SHOWN} more, listed in manifest.json"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]
