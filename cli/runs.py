"""`gradscore runs`: which run folders there are, what they hold, and whether they are intact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscore.errors import StoreError
from gradscore.notices import notes

from .options import JsonOption, QuietOption, RunArgument
from .output import Output, cell, figures_table

if TYPE_CHECKING:
    from gradscore.store import RunSummary

runs = typer.Typer(help="Look at run folders.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, with all below it.")]


@runs.command("list")
def list_runs(folder: FolderArgument = Path("runs"), as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the run folders below a folder.

    After gradscore demo: gradscore runs list demo
    """
    from gradscore.store import find_runs  # imports PyTorch, which help need not wait for

    found = list(find_runs(folder))
    output = Output(as_json=as_json, quiet=quiet)
    output.document(found)
    table = figures_table(["run", "state", "model", "changed"], ["samples", "MB"])
    for each in found:
        done = [rows for rows in each.splits.values() if rows is not None]
        splits = f"{sum(done)} in {len(done)}/{len(each.splits)} splits"
        table.add_row(str(each.path), each.state, each.model, _when(each), splits, f"{each.size / 1e6:.1f}")
    output.show(table)
    output.tell(*notes(each.problem for each in found if each.problem), rest="gradscore runs list --json")
    output.say(f"{len(found)} run{'s' * (len(found) != 1)} in {folder}", detail=True)


@runs.command("show")
def show(run: RunArgument, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Show what a run holds.

    After gradscore demo: gradscore runs show demo/run
    """
    from gradscore.store import describe_run

    found = describe_run(run)
    output, summary = Output(as_json=as_json, quiet=quiet), found.summary
    output.document(found)
    table = figures_table(["split"], ["samples", "accuracy", "skipped", "not finite"])
    for name, entry in found.splits.items():
        if entry.finished:
            counts = cell(entry.accuracy), str(len(entry.skipped)), str(entry.non_finite)
            table.add_row(name, str(entry.rows), *counts)
        else:
            table.add_row(name, "not finished", *"---")
    output.show(table)
    output.say(
        f"{run}: {summary.state}, {summary.size / 1e6:.1f} MB, changed {_when(summary)}",
        f"model: {summary.model}",
        f"columns: {len(found.columns)}" + (f", the last is {found.columns[-1]}" if found.columns else ""),
        f"meta models: {', '.join(found.meta_models) or 'none'}",
        f"evaluation: {', '.join(found.evaluation) or 'none'}",
        *_lines("hashes", found.hashes),
        *_lines("versions", found.versions),
        f"checksums recorded: {found.recorded} files",
    )
    output.tell(*notes(found.notices), rest=f"{run / 'manifest.json'}")


@runs.command("verify")
def verify(run: RunArgument, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Verify the checksums of a run; exits with 2 if a file is damaged or missing.

    After gradscore demo: gradscore runs verify demo/run
    """
    from gradscore.store import RunFolder, verify_run

    RunFolder(run)  # says what is wrong with a manifest that cannot be read
    found = verify_run(run)
    output = Output(as_json=as_json, quiet=quiet)
    output.document(found)
    output.tell(*(f"not recorded: {name}" for name in found.not_recorded), rest="gradscore runs verify --json")
    output.say(
        f"{len(found.intact)} files are as they were recorded, {len(found.damaged)} are not, "
        f"{len(found.not_recorded)} have no recorded checksum",
    )
    if found.damaged:
        raise StoreError(
            f"{run}: damaged: {'; '.join(found.damaged)}. Restore it from a copy; or delete damaged files and run the "
            "command again that makes them: extract for features, fit-meta for meta, evaluate for evaluation"
        )


@runs.callback()
def _runs() -> None:
    pass


def _when(summary: RunSummary) -> str:
    return summary.changed.astimezone().strftime("%Y-%m-%d %H:%M")


def _lines(title: str, entries: Mapping[str, str]) -> list[str]:
    return [f"{title}:", *(f"  {name}: {value}" for name, value in entries.items())]
