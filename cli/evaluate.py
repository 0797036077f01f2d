"""`gradscore evaluate`: how well the scores of a run tell wrong predictions and OOD samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from gradscore.errors import MissingExtraError
from gradscore.notices import Notice, urgent

from .options import (
    UNDECIDED,
    JsonOption,
    NothingToTrustOption,
    QuietOption,
    RunArgument,
    SetOption,
    ThreadsOption,
)
from .output import Output, by_level, doing, figures_table, interval

if TYPE_CHECKING:
    from gradscore.evaluation import EvaluationReport, Verdict


def evaluate(
    run: RunArgument,
    settings: SetOption = None,
    _threads: ThreadsOption = None,
    _trust: NothingToTrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Report which score of a run to use and how good it is; writes evaluation/report.html.

    Also written: metrics.json, metrics.csv and scores.parquet (of every sample). Settings of the section
    evaluate may be changed for this report; the run keeps its own.

    After gradscore demo: gradscore evaluate demo/run
    """
    output = Output(as_json=as_json, quiet=quiet)
    found = evaluated(output, run, settings=settings or ())
    output.document(found)
    end(found)


def end(found: Mapping[str, Any]) -> None:
    """Ends with 3 where there is no verdict, whatever the reason."""
    if found["no_verdict"] is not None:
        raise typer.Exit(UNDECIDED)


def evaluated(
    output: Output,
    run: Path,
    *,
    settings: Sequence[str] = (),
    answer: bool = True,
) -> dict[str, Any]:
    """Evaluates, writes the report, says what was found, and returns it for a program."""
    from gradscore.evaluation import evaluate_run
    from gradscore.reporting import write_report
    from gradscore.store import RunFolder

    folder = RunFolder(run).with_settings(settings, sections=("evaluate",))
    with doing(quiet=output.quiet) as tell:
        tell("evaluating")
        evaluation = evaluate_run(folder)
        tell("writing the report")
        try:
            page, missing = write_report(folder, evaluation), ""
        except MissingExtraError as error:
            page, missing = None, str(error)
    report(output, evaluation, page=page, answer=answer)
    if missing:
        output.tell(Notice(missing))
    return {**document(evaluation), "report": page}


def report(output: Output, evaluation: EvaluationReport, *, page: Path | None, answer: bool = True) -> None:
    """Says the answer first and what comes next; then a line for each set, and where the report is.

    Without `answer`, where the report is and what is wrong with it.
    """
    place = f"report: {page}" if page is not None else f"all metrics: {evaluation.path}"
    output.tell(*(each for each in urgent(evaluation.notices) if each.level == "caution"))
    if not answer:
        output.say(place, detail=True)
        return
    style = "bold" if evaluation.answer.no_verdict is None else "yellow"
    output.say(*evaluation.answer.sentences, style=style, wrap=True)
    if evaluation.answer.next_command is not None:
        output.say(evaluation.answer.lines[-1], detail=True)
    if output.quiet:
        return
    if evaluation.verdicts:
        output.show(_sets_table(evaluation.verdicts))
    if evaluation.not_compared is not None:
        output.say(f"note: {evaluation.not_compared}")
    rest = [each for each in evaluation.notices if each.level == "note"]
    if page is None:
        output.tell(*rest)
    elif rest:
        output.say(f"{len(rest)} more note{'' if len(rest) == 1 else 's'} in the report")
    output.say(place)


def document(evaluation: EvaluationReport) -> dict[str, Any]:
    """The evaluation as plain values, for `--json`."""
    return {
        "answer": asdict(evaluation.answer),
        "verdicts": [_entry(each) for each in evaluation.verdicts],
        "no_verdict": evaluation.answer.no_verdict,
        "not_compared": evaluation.not_compared,
        "records": [record.entry() for record in evaluation.records],
        **by_level(evaluation.notices),
        "metrics": evaluation.path,
    }


def _entry(verdict: Verdict) -> dict[str, Any]:
    gained = {"gain": verdict.gain, "gain_by_gradients": verdict.by_gradients}
    return {
        "what": verdict.what,
        "protocol": verdict.protocol,
        "outcome": verdict.outcome,
        "auroc": verdict.area.value,
        "low": verdict.area.low,
        "high": verdict.area.high,
        "best_baseline": verdict.best,
        **{name: None if gain is None else gain.entry() for name, gain in gained.items()},
        "caught": verdict.caught,
        "sets": [_entry(each) for each in verdict.sets],
    }


def _sets_table(found: Sequence[Verdict]) -> Table:
    """A row for each OOD set, each group of several, and wrong predictions, against the baseline that is best there."""
    from gradscore.evaluation import signed, verdict_rows

    table = figures_table([""], ["AUROC", "95 %", "gain"])
    table.add_column("over", overflow="fold")
    table.add_column("")
    for name, each in verdict_rows(found).items():
        area, gain = each.area, each.gain
        gained = "-" if gain is None or gain.value is None else signed(gain.value, 3)
        table.add_row(name, f"{area.value:.3f}", interval(area.low, area.high), gained, each.best or "-", each.outcome)
    return table
