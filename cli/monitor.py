"""`gradscore monitor`: watch a deployed model without labels."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscore.errors import DataError, OutputError
from gradscore.notices import notes

from .options import (
    BatchSizeOption,
    BundleArgument,
    ColumnOption,
    DeviceOption,
    HashOption,
    IdsOption,
    JsonOption,
    ModelOption,
    QuietOption,
    RootOption,
    SamplesArgument,
    ThreadsOption,
    TrustOption,
    WeightsOption,
    out_option,
)
from .output import Output, counting, figures_table, folded
from .score import NO_SAMPLE, not_scored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from gradscore.data import UserSamples
    from gradscore.deployment import Scorer
    from gradscore.monitoring import Change, Monitor, Window

ALARM = 1
"""The exit code of an alarm, with --fail-on-alarm."""

PRINTED = 10
"""Windows on the terminal, the last ones; all of them are in the files."""

CHANGES = 3
"""Changes on the terminal, the last ones."""


def monitor(
    bundle: BundleArgument,
    samples: SamplesArgument,
    out: Annotated[
        Path, out_option("FOLDER", "Where the state, the report and the figures go; a later call continues there.")
    ] = Path("monitor"),
    window: Annotated[int, typer.Option("--window", metavar="N", help="Samples in a window.")] = 1000,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Bound of the probability of a false alarm, however long it runs.")
    ] = 0.01,
    fail_on_alarm: Annotated[bool, typer.Option("--fail-on-alarm", help="Exit with 1 if an alarm stands.")] = False,
    column: ColumnOption = None,
    ids: IdsOption = None,
    root: RootOption = None,
    batch_size: BatchSizeOption[int] = 64,
    device: DeviceOption[str] = "auto",
    model: ModelOption = None,
    weights: WeightsOption = None,
    sha256: HashOption = None,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Watch new samples window by window: the estimated accuracy, rejections, and an alarm when something changes.

    Samples are given once, in the order in which they came; the next call goes on where this one ends.

    After gradscore demo: gradscore monitor demo/scorer.gradscore demo/images/unknown --out demo/watch --trust-code
    """
    from gradscore.data import open_user_samples
    from gradscore.deployment import Scorer
    from gradscore.monitoring import FILES, STATE, Monitor, write_monitor
    from gradscore.system import check_target

    check_target(*(out / name for name in FILES))
    watching = Monitor.load(bundle, window=window, alpha=alpha, state=out / STATE)
    known = watching.bundle.input_columns
    sources = open_user_samples(samples, options={"column": column, "ids": ids, "root": root}, columns=known)
    output = Output(as_json=as_json, quiet=quiet)
    scorer = Scorer.load(bundle, device=device, model_source=model, weights=weights, sha256=sha256)
    table = _scored(output, scorer, sources, batch_size=batch_size, samples=samples)
    is_lost, first_error = table["decision"] == "error", next((each for each in table["error"] if each), "")
    if is_lost.all():
        raise DataError(f"not scored: {len(table)}; the first: {first_error}. These samples are not counted")
    watching.update(table)
    with _counted(out / STATE):
        files = write_monitor(watching, out, name=bundle.stem)
        _print(output, watching, watching.windows, rest=str(files.tables[0]))
        not_scored(int(is_lost.sum()), first_error=first_error)
        output.tell(*notes(watching.notices), rest="the report")
        output.say(f"report: {files.html}" if files.html else f"note: {files.notice}")
        lines, figures = files.tables
        output.say(f"windows: {lines}", f"figures: {figures}")
        output.document(
            {
                "windows": watching.windows,
                "changes": watching.changes,
                "notices": watching.notices,
                "report": files.html,
                "lines": lines,
                "figures": figures,
            }
        )
    if fail_on_alarm and watching.changes:
        raise typer.Exit(ALARM)


@contextmanager
def _counted(state: Path) -> Iterator[None]:
    """Says what became of the samples where a command is interrupted, or has no room for what it prints.

    Raises:
        OutputError: there is none.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"these samples are counted in {state}: do not give them again, the next call writes the report"
        ) from None
    except OSError as error:
        raise OutputError(
            f"the results cannot be printed: {error.strerror}. These samples are counted in {state}: do not give them "
            "again; the files beside it are written"
        ) from error


def _scored(
    output: Output, scorer: Scorer, sources: Sequence[UserSamples], *, batch_size: int, samples: list[str]
) -> pd.DataFrame:
    """All samples as the monitor takes them: all or none, so that an interrupted call can be made again."""
    import pandas as pd

    total, tables, done = sum(map(len, sources)), [], 0
    with counting(quiet=output.quiet) as tell:
        raw = (image for source in sources for image in source)
        for table in scorer.stream(raw, batch_size=batch_size, watch=True):
            tables.append(table)
            done += len(table)
            tell("scoring", done, total)
    if not tables:
        raise DataError(f"{', '.join(samples)}: {NO_SAMPLE}")
    return pd.concat(tables, ignore_index=True)


def _print(output: Output, watching: Monitor, windows: list[Window], *, rest: str) -> None:
    said = [f"alarm: {change.sentence}; {_evidence(change)}" for change in reversed(watching.changes)]
    output.say(*folded(said or ["no alarm"], rest=rest, shown=CHANGES))
    shown = windows[-PRINTED:]
    some_lost = any(window.not_scored for window in shown)
    lost_column = ["not\nscored"] if some_lost else []
    table = figures_table(["window"], ["samples", *lost_column, "estimated\naccuracy", "90 %", "rejected", "OOD"])
    for window in shown:
        name = window.name if window.complete else f"{window.name} (incomplete)"
        shares = (_share(each) for each in (window.rejected, window.ood))
        lost = [str(window.not_scored)] if some_lost else []
        accuracy = "-" if window.accuracy is None else f"{window.accuracy:.3f}"
        table.add_row(name, str(window.samples), *lost, accuracy, interval_of(window), *shares)
    output.show(table)
    if watching.changes:
        output.say("an alarm stands until you start with a new folder (--out)", detail=True)
    output.say(f"probability of ever raising an alarm without a change: at most {watching.alpha:g}", detail=True)


def interval_of(window: Window) -> str:
    """The interval of the estimated accuracy."""
    return "-" if window.low is None else f"{window.low:.3f} to {window.high:.3f}"


def _evidence(change: Change) -> str:
    names = list(dict.fromkeys(alarm.stream for alarm in change.alarms))
    return f"evidence: {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
