"""`gradscore inspect`: the health of gradients, layer by layer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradscore.notices import Notice, notes

from .options import (
    BatchSizeOption,
    JsonOption,
    QuietOption,
    SetOption,
    SourceArgument,
    ThreadsOption,
    TrustOption,
    opened,
    out_option,
)
from .output import Output, counting, figures_table

if TYPE_CHECKING:
    from gradscore.inspect import Inspection

FIGURES_SHOWN = {
    ("output gradient", "norm per sample", "median"): "size of single samples' gradients at layer outputs, median",
    ("parameter gradient", "norm", "median"): "root mean square of parameter gradients, median over batches",
    ("gradient signal-to-noise ratio", "data set", "mean"): "gradient signal-to-noise ratio over all samples",
}
"""Figures on the terminal; all are in figures.parquet."""


def inspect(
    context: typer.Context,
    source: SourceArgument,
    quantities: Annotated[
        str | None,
        typer.Option("--quantities", metavar="A,B", help="Look only at these, for example grad_hist_1d,mean_gsnr."),
    ] = None,
    by: Annotated[
        Literal["split", "correct", "class"], typer.Option("--by", help="How samples are grouped.")
    ] = "split",
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Samples of each split, at most, drawn at random.")
    ] = 256,
    batch_size: BatchSizeOption[int] = 32,
    loss: Annotated[
        str | None, typer.Option("--loss", help="Whose gradients; the first loss of the configuration by default.")
    ] = None,
    out: Annotated[
        Path | None, out_option("DIR", "Where the files go; RUN/inspect, or inspect beside the run folder.")
    ] = None,
    settings: SetOption = None,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Look at the gradients of a saved model, layer by layer, for groups of samples.

    Prints tables; writes Parquet files and report.html to the folder inspect.

    After gradscore demo: gradscore inspect demo/run --by correct --trust-code
    """
    from gradscore.store import changing

    output = Output(as_json=as_json, quiet=quiet)
    from gradscore.inspect import FILES, SCOPE, inspect_config, write_inspection
    from gradscore.system import check_target

    config, folder, run = opened(context, source, settings or [], folder="inspect")
    check_target(*((out or folder) / name for name in FILES))
    names = None if quantities is None else [name.strip() for name in quantities.split(",")]
    with counting(quiet=quiet) as tell:
        found = inspect_config(
            config,
            quantities=names,
            by=by,
            samples=samples,
            batch_size=batch_size,
            loss=loss,
            progress=tell,
        )
    _print(output, found)
    name = f"{config.run.parent.name}, by {by}"
    with changing(source, [folder.name]) if run is not None and out is None else nullcontext():
        files = write_inspection(found, out or folder, name=name)
    output.say(f"figures: {files.tables[0]}")
    if files.html is None:
        output.tell(Notice(files.notice))
    else:
        output.say(f"report: {files.html}")
    result = {"verdict": found.verdict, "scope": SCOPE, "findings": found.findings, "samples": found.samples}
    output.document({**result, "notices": found.notices, "tables": files.tables, "report": files.html})


def _print(output: Output, found: Inspection) -> None:
    output.say(found.verdict, *map(str, found.findings))
    figures = found.table()
    for (quantity, measure, statistic), title in FIGURES_SHOWN.items():
        chosen = (figures["quantity"] == quantity) & (figures["measure"] == measure)
        part = figures[chosen & (figures["statistic"] == statistic)]
        values = {(row["layer"], row["group"]): float(row["value"]) for row in part.to_dict("records")}
        if not values:
            continue
        table = figures_table(["layer"], list(found.samples))
        for layer in found.layers:
            cells = [values.get((layer, group)) for group in found.samples]
            if any(cell is not None for cell in cells):
                table.add_row(layer, *("" if cell is None else f"{cell:.3g}" for cell in cells))
        output.say(title)
        output.show(table)
    output.say(*(f"{group}: {count} samples" for group, count in found.samples.items()))
    output.tell(*notes(found.notices), rest="the report")
