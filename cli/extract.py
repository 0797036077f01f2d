"""`gradscore extract`: from a configuration to a run folder with feature tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gradscore.notices import Notice, urgent

from .options import (
    BatchSizeOption,
    ConfigArgument,
    DeviceOption,
    JsonOption,
    QuietOption,
    RunOutOption,
    SetOption,
    ThreadsOption,
    TrustOption,
    WorkersOption,
    given_settings,
    working_copy_of,
)
from .output import Output, by_level, cell, counting, figures_table

if TYPE_CHECKING:
    from gradscore.config import Config
    from gradscore.distributed import ShareSummary
    from gradscore.pipeline import ExtractSummary, Progress, SplitSummary

COMPLETE = "this run is already complete: nothing to compute"


def extract(
    context: typer.Context,
    config: ConfigArgument,
    out: RunOutOption = None,
    settings: SetOption = None,
    device: DeviceOption[str | None] = None,
    batch_size: BatchSizeOption[int | None] = None,
    workers: WorkersOption = None,
    share: Annotated[
        str | None, typer.Option("--share", metavar="I/N", help="Make share I (from 0) of N, for gradscore merge.")
    ] = None,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compute the gradient features of all samples and write a run folder.

    Give the same command again to resume.

    After gradscore demo: gradscore extract demo/gradscore.yaml --out demo/again --batch-size 128 --trust-code
    """
    output = Output(as_json=as_json, quiet=quiet)
    given = given_settings(settings, device=device, batch_size=batch_size, workers=workers)
    if share is not None:
        output.document(_share_extracted(context, output, config, given, share, out=out))
        return
    output.document(document(extracted(context, output, config, given, out=out)))


def extracted(
    context: typer.Context,
    output: Output,
    config: Path,
    settings: list[str],
    *,
    out: Path | None,
    to_fit: bool = False,
    check_kept: bool = False,
    check_labels: bool = False,
) -> ExtractSummary:
    """Extracts, and says what was done.

    With `to_fit`, what no meta model can be fitted to is refused first, and little is said: the answer comes later.
    """
    from gradscore.config import load_config
    from gradscore.losses import refuse_with_labels
    from gradscore.pipeline import extract as run_extract

    loaded = load_config(config, settings)
    if to_fit:
        refuse_with_labels(loaded.features.losses, where=str(config))
    with _computing(context, output, loaded, out=out, is_whole=True) as (run, tell):
        summary = run_extract(loaded, out=run, check_kept=check_kept, check_labels=check_labels, progress=tell)
    report(output, summary, brief=to_fit)
    return summary


@contextmanager
def _computing(
    context: typer.Context, output: Output, loaded: Config, *, out: Path | None, is_whole: bool
) -> Iterator[tuple[Path | None, Progress]]:
    """The folder to extract to, None for that of the configuration, and what is told how far it is.

    At an address, what was made is uploaded meanwhile, and when the command ends. A whole run is there before anything
    is said of it; what is said of a share comes first.
    """
    copy = working_copy_of(context, out or loaded.run, must_exist=False)
    run = out if copy is None else copy.path
    try:
        with counting(quiet=output.quiet) as tell:
            yield run, tell if copy is None else copy.telling(tell)
            if copy is not None and is_whole:
                copy.upload()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command continues the run in {run or loaded.run}") from None


def _share_extracted(
    context: typer.Context,
    output: Output,
    config: Path,
    settings: list[str],
    share: str,
    *,
    out: Path | None,
) -> ShareSummary:
    """Makes one share of a run and says what was done."""
    from gradscore.config import load_config
    from gradscore.distributed import Share, extract_share

    parsed = Share.parsed(share)
    loaded = load_config(config, settings)
    with _computing(context, output, loaded, out=out, is_whole=False) as (run, tell):
        summary = extract_share(loaded, parsed, out=run, progress=tell)
    if summary.was_complete:
        output.tell(COMPLETE)
    if not summary.shards:
        output.tell(f"share {summary.share} has no shard: there are more shares than shards; give fewer shares")
    done = f"share {summary.share}: {summary.computed} samples looked at in {summary.seconds:.1f} s"
    merge = f"gradscore merge {quote(str(summary.run))}{' --trust-code' if context.params['_trust'] else ''}"
    output.say(done if summary.was_complete else f"{done}; {merge} makes a run of all shares")
    return summary


def report(output: Output, summary: ExtractSummary, *, brief: bool = False) -> None:
    """Says what an extraction did; if `brief`, what is no warning goes to standard error, and figures go."""
    from gradscore.models import is_of_weights
    from gradscore.store import MANIFEST

    if summary.was_complete:
        output.tell(COMPLETE, stderr=brief)
    output.tell(*(f"changed: {line}" for line in summary.changes), stderr=brief)
    output.tell(*urgent(summary.notices))
    listed = str(summary.run / MANIFEST)
    output.tell(*(Notice(line, "caution") for line in _skipped(summary.splits)), rest=listed)
    if brief:
        output.tell(*filter(is_of_weights, summary.notices), stderr=True)
        return
    output.show(_table(summary.splits))
    if summary.accuracy is not None:
        output.say(f"accuracy over all labelled samples: {summary.accuracy:.4f}")
    unusable = [f"{split.name}: {split.non_finite}" for split in summary.splits if split.non_finite]
    output.say(f"{summary.feature_count} features per sample, computed on {summary.device}")
    output.tell(*summary.notices, rest=listed)
    output.tell(*(f"samples with values that are not finite: {line}" for line in unusable), rest=listed)
    output.say(f"run folder: {summary.run}")


def document(summary: ExtractSummary) -> dict[str, Any]:
    """The extraction as plain values, for `--json`."""
    return {**vars(summary), **by_level(summary.notices), "accuracy": summary.accuracy}


def _skipped(splits: Sequence[SplitSummary]) -> Iterator[str]:
    """A sentence for rows with missing values, and one for each other reason to skip samples, of splits together."""
    from gradscore.data import FILL, empty_rows
    from gradscore.system import some

    found: dict[str, list[tuple[str, str]]] = {}
    empty: dict[str, list[Sequence[str]]] = {}
    for split in splits:
        for bad in split.skipped:
            if bad.empty:
                empty.setdefault(split.name, []).append(bad.empty)
            else:
                found.setdefault(bad.error, []).append((split.name, bad.sample_id))
    if empty:
        rows = sum(split.samples + len(split.skipped) for split in splits if split.name in empty)
        counts = ", ".join(f"{len(of_split)} of {name}" for name, of_split in empty.items())
        gaps = [columns for of_split in empty.values() for columns in of_split]
        yield f"skipped: {empty_rows(gaps, rows)}: {counts}; {FILL}"
    for error, samples in found.items():
        first = samples[0][0]
        elsewhere = [split for split, _ in samples if split != first]
        more = f"; {len(elsewhere)} more samples of {some(list(dict.fromkeys(elsewhere)))} for the same reason"
        names = some([name for split, name in samples if split == first])
        yield f"skipped: {first}, {names}: {error}{more if elsewhere else ''}"


def _table(splits: list[SplitSummary]) -> Table:
    table = figures_table(["split"], ["samples", "accuracy", "seconds", "samples/s"])
    for split in splits:
        table.add_row(
            split.name,
            str(split.samples),
            cell(split.accuracy),
            f"{split.seconds:.1f}",
            f"{split.computed / split.seconds:.0f}" if split.computed else "-",
        )
    return table
