"""`gradscore run`: extract, fit-meta and evaluate in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .evaluate import end, evaluated
from .extract import document as extract_document
from .extract import extracted
from .fit_meta import document as fit_document
from .fit_meta import fitted
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
)
from .output import Output

if TYPE_CHECKING:
    from gradscore.evaluation import FitReport
    from gradscore.pipeline import ExtractSummary


def run(
    context: typer.Context,
    config: ConfigArgument,
    out: RunOutOption = None,
    settings: SetOption = None,
    device: DeviceOption[str | None] = None,
    batch_size: BatchSizeOption[int | None] = None,
    workers: WorkersOption = None,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> dict[str, Any]:
    """From a configuration to a report: extract, fit-meta and evaluate in one.

    Give the same command again to resume: samples that are done are not computed again. Where the accuracy on
    in_dist.fit is at chance, or the classes are in another order, it stops there and exits with 3.

    After gradscore demo: gradscore run demo/gradscore.yaml --trust-code
    """
    output = Output(as_json=as_json, quiet=quiet)
    given = given_settings(settings, device=device, batch_size=batch_size, workers=workers)
    summary, models, found = completed(context, output, config, given, out=out, check_labels=True)
    output.document({"extract": extract_document(summary), "fit_meta": fit_document(models), "evaluate": found})
    end(found)
    return found


def completed(
    context: typer.Context,
    output: Output,
    config: Path,
    settings: list[str],
    *,
    out: Path | None,
    check_kept: bool = False,
    check_labels: bool = False,
    answer: bool = True,
) -> tuple[ExtractSummary, FitReport, dict[str, Any]]:
    """Extracts what is missing or changed, fits and evaluates, and says what was found.

    Args:
        context: of the command.
        output: what says it.
        config: the configuration.
        settings: changes of it, as `--set` takes them.
        out: the run folder, if not that of the configuration.
        check_kept: read the samples of a run that is there again, and compare them with it.
        check_labels: stop after `in_dist.fit` where its labels are probably not those that the network learned.
        answer: say how good the scores are and which command comes next, not where the report is alone.

    Returns:
        What was extracted, what was fitted, and what was found, the last one as a program reads it.
    """
    summary = extracted(
        context, output, config, settings, out=out, to_fit=True, check_kept=check_kept, check_labels=check_labels
    )
    models = fitted(output, summary.run)
    found = evaluated(output, summary.run, answer=answer)
    return summary, models, found
