"""`gradscore audit`: which given labels may be wrong."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradscore.notices import notes

from .options import (
    UNDECIDED,
    JsonOption,
    QuietOption,
    SetOption,
    SourceArgument,
    SplitOption,
    ThreadsOption,
    TrustOption,
    opened,
    out_option,
)
from .output import Output, counting, figures_table

if TYPE_CHECKING:
    from gradscore.label_audit import Audit

PRINTED = 10
"""Samples on the terminal; all of them are in the files."""


def audit(
    context: typer.Context,
    source: SourceArgument,
    split: SplitOption = "in_dist.fit",
    settings: SetOption = None,
    out: Annotated[
        Path | None, out_option("DIR", "Where the folder SPLIT goes; RUN/audit, or audit beside the run folder.")
    ] = None,
    shown: Annotated[int, typer.Option("--shown", min=1, help="Samples on the page, the most suspicious ones.")] = 100,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Rank the samples of a split by how likely their label is wrong, with a page to click through.

    The model may have been trained on these samples and labels. Where it agrees with them no more than by chance, or
    they are in another order, that is said in place of a count, with exit code 3.

    After gradscore demo: gradscore audit demo/gradscore.yaml --split in_dist.fit --trust-code
    """
    from gradscore.label_audit import FILES, audit_config, write_audit
    from gradscore.store import changing
    from gradscore.system import check_target

    output = Output(as_json=as_json, quiet=quiet)
    config, folder, run = opened(context, source, settings or [], folder="audit")
    target = (out or folder) / split
    check_target(*(target / name for name in FILES))
    with counting(quiet=quiet) as tell:
        found, images = audit_config(
            config,
            split=split,
            progress=tell,
        )
    name = f"{config.run.parent.name}: labels of {split}"
    with changing(source, [f"{folder.name}/{split}"]) if run is not None and out is None else nullcontext():
        files = write_audit(found, target, name=name, images=images, shown=shown)
    _print(output, found)
    output.say(f"samples: {' and '.join(map(str, files.tables))}")
    output.say(f"report: {files.html}" if files.html else f"note: {files.notice}")
    output.document(
        {
            "samples": len(found.table),
            "wrong": {**found.wrong._asdict(), "sentence": found.sentence},
            "suspected": found.suspected,
            "first": _first(found),
            "notices": found.notices,
            "tables": files.tables,
            "report": files.html,
        }
    )
    if found.doubt is not None:
        raise typer.Exit(UNDECIDED)


def _first(found: Audit) -> list[dict[str, Any]]:
    """The most suspicious samples, with classes by name, and None where the label is not suspected."""
    return [
        {
            "sample_id": str(row["sample_id"]),
            "label": found.name(row["label"]),
            "suggested": found.name(row["suggested"]) if row["suspected"] else None,
            "score": row["score"],
        }
        for row in found.table.head(PRINTED).to_dict("records")
    ]


def _print(output: Output, found: Audit) -> None:
    if found.doubt is None:
        output.say(f"{found.sentence}; review the {found.suspected:,} suspected (not all are wrong)")
    else:
        output.say(found.doubt, style="yellow", wrap=True)
    table = figures_table(["sample", "label", "suggested"], ["score"])
    for row in _first(found):
        table.add_row(row["sample_id"], row["label"], row["suggested"] or "-", f"{row['score']:.2f}")
    output.show(table)
    output.tell(*notes(found.notices), rest="the report")
