"""`gradscore runs`: which run folders there are, what they hold, and whether they are intact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gradscore.errors import StoreError

from .options import RunArgument
from .rendering import cell, figures_table, notes, say

if TYPE_CHECKING:
    from gradscore.store import RunSummary

app = typer.Typer(help="Look at run folders.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, with all below it.")]

SHOWN = 10


@app.command("list")
def list_runs(folder: FolderArgument = Path("runs"), as_json: JsonOption = False) -> None:
    """List the run folders below a folder.

    Example: gradscore runs list runs
    """
    from gradscore.store import find_runs  # imports PyTorch, which help need not wait for

    found = list(find_runs(folder))
    if as_json:
        _print_json([asdict(each) for each in found])
        return
    console = Console()
    table = figures_table(["run", "state", "model", "changed"], ["samples", "MB"])
    for each in found:
        done = [rows for rows in each.splits.values() if rows is not None]
        splits = f"{sum(done)} in {len(done)}/{len(each.splits)} splits"
        table.add_row(
            *map(Text, (str(each.path), each.state, each.model, _when(each))), splits, f"{each.size / 1e6:.1f}"
        )
    console.print(table)
    say(console, *notes(each.problem for each in found if each.problem))
    say(console, f"{len(found)} run{'s' * (len(found) != 1)} in {folder}")


@app.command("show")
def show(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show what a run holds: splits, columns, meta models, evaluation, hashes and versions.

    Example: gradscore runs show runs/digits/run
    """
    from gradscore.store import describe_run

    found = describe_run(run)
    if as_json:
        _print_json(asdict(found))
        return
    console, summary = Console(), found.summary
    table = figures_table(["split"], ["samples", "accuracy", "skipped", "not finite"])
    for name, entry in found.splits.items():
        if entry["finished"]:
            counts = cell(entry["accuracy"]), str(len(entry["skipped"])), str(entry["non_finite"])
            table.add_row(name, str(entry["rows"]), *counts)
        else:
            table.add_row(name, "not finished", *"---")
    console.print(table)
    say(
        console,
        f"{run}: {summary.state}, {summary.size / 1e6:.1f} MB, changed {_when(summary)}",
        f"model: {summary.model}",
        f"columns: {len(found.columns)}" + (f", the last is {found.columns[-1]}" if found.columns else ""),
        f"meta models: {', '.join(found.meta_models) or 'none'}",
        f"evaluation: {', '.join(found.evaluation) or 'none'}",
        *_lines("hashes", found.hashes),
        *_lines("versions", found.versions),
        f"checksums recorded: {found.recorded} files",
        *notes(found.notices),
    )


@app.command("verify")
def verify(run: RunArgument) -> None:
    """Compute the checksum of every file of a run anew; exits with 2 if one is damaged or missing.

    Example: gradscore runs verify runs/digits/run
    """
    from gradscore.store import RunFolder, verify_run

    RunFolder(run)  # says what is wrong with a manifest that cannot be read
    found = verify_run(run)
    console = Console()
    others = [f"not recorded: {name}" for name in found.not_recorded]
    more = [f"and {len(others) - SHOWN} more"] if len(others) > SHOWN else []
    say(console, *others[:SHOWN], *more)
    say(
        console,
        f"{len(found.intact)} files are as they were recorded, {len(found.damaged)} are not, "
        f"{len(found.not_recorded)} have no recorded checksum",
    )
    if found.damaged:
        raise StoreError(
            f"{run}: damaged: {'; '.join(found.damaged)}. Restore it from a copy; or delete damaged files and run the "
            "command again that makes them: extract for features, fit-meta for meta, evaluate for evaluation"
        )


@app.callback()
def _runs() -> None:
    pass


def _when(summary: RunSummary) -> str:
    return summary.changed.astimezone().strftime("%Y-%m-%d %H:%M")


def _lines(title: str, entries: Mapping[str, str]) -> list[str]:
    return [f"{title}:", *(f"  {name}: {value}" for name, value in entries.items())]


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1, default=_plain))


def _plain(value: Path | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
