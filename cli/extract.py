"""`gradscore extract`: from a configuration to a run folder with feature tables."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .options import INTERRUPTED, ConfigArgument, DeviceChoice, JsonOption, QuietOption, SetOption, TrustOption
from .output import Output, folded
from .progress import counting
from .rendering import Terminal, cell, figures_table, say
from .threads import ThreadsOption

if TYPE_CHECKING:
    from gradscore.features import ExtractSummary, SplitSummary


OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="Run folder, instead of the configuration's.")
]
DeviceOption = Annotated[DeviceChoice | None, typer.Option("--device", help="Sets extract.device.")]
BatchOption = Annotated[int | None, typer.Option("--batch-size", help="Sets extract.batch_size.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="Sets extract.workers.")]


def extract(
    config: ConfigArgument,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    workers: WorkersOption = None,
    trust_code: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compute the gradient features of all samples and write a run folder.

    A run that was interrupted goes on where it stopped when the same command is given again.

    Example: gradscore extract configs/digits.yaml --out runs/digits --batch-size 128 --trust-code
    """
    output = Output(as_json=as_json, quiet=quiet)
    given = settings_of(settings, device=device, batch_size=batch_size, workers=workers)
    output.document(document(extracted(output, config, given, out=out, trust_code=trust_code)))


def settings_of(settings: list[str] | None, **options: object) -> list[str]:
    """Settings as `--set` takes them, those that have options of their own last."""
    return [*(settings or ()), *(f"extract.{name}={value}" for name, value in options.items() if value is not None)]


def extracted(
    output: Output, config: Path, settings: list[str], *, out: Path | None, trust_code: bool, to_fit: bool = False
) -> ExtractSummary:
    """Extracts and says what was done; `to_fit` refuses first what no meta model can be fitted to."""
    # These import PyTorch, which help and errors need not wait for.
    from gradscore.config import load_config
    from gradscore.features import extract as run_extract
    from gradscore.losses import refuse_with_labels

    loaded = load_config(config, settings)
    if to_fit:
        refuse_with_labels(loaded.features.losses, where=str(config))
    try:
        with counting(quiet=output.quiet) as tell:
            summary = run_extract(loaded, out=out, trust_code=trust_code, progress=tell)
    except KeyboardInterrupt:
        say(Terminal(stderr=True), f"interrupted; the same command continues the run in {out or loaded.run}")
        raise typer.Exit(INTERRUPTED) from None
    report(output, summary)
    return summary


def report(output: Output, summary: ExtractSummary) -> None:
    """Says what an extraction did."""
    if summary.was_complete:
        output.remark("this run is already complete: nothing to compute")
    output.remark(*(f"changed: {line}" for line in summary.changes))
    output.warn(summary.warnings)
    output.show(_table(summary.splits))
    if summary.accuracy is not None:
        output.say(f"accuracy over all labelled samples: {summary.accuracy:.4f}")
    listed = f"{summary.run / 'manifest.json'}"
    skipped = [f"skipped: {split.name}, {line}" for split in summary.splits for line in split.skipped]
    unusable = [f"{split.name}: {split.non_finite}" for split in summary.splits if split.non_finite]
    output.say(f"{summary.feature_count} features per sample, computed on {summary.device}")
    output.note(summary.notices, rest=listed)
    output.remark(
        *folded(skipped, rest=listed),
        *folded([f"samples with values that are not finite: {line}" for line in unusable], rest=listed),
    )
    output.say(f"run folder: {summary.run}")


def document(summary: ExtractSummary) -> dict[str, Any]:
    """The same for a program."""
    return {**{field.name: getattr(summary, field.name) for field in fields(summary)}, "accuracy": summary.accuracy}


def _table(splits: list[SplitSummary]) -> Table:
    table = figures_table(["split"], ["samples", "accuracy", "seconds", "samples/s"])
    for split in splits:
        rate = split.rate or (split.computed / split.seconds if split.computed else None)
        table.add_row(
            split.name,
            str(split.samples),
            cell(split.accuracy),
            f"{split.seconds:.1f}",
            "-" if rate is None else f"{rate:.0f}",
        )
    return table
