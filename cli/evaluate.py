"""`gradscore evaluate`: how well the scores of a run tell wrong predictions and OOD samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

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
from .output import Output, by_level, cell, doing, figures_table, interval

if TYPE_CHECKING:
    from gradscore.evaluation import EvaluationReport, Record, Verdict

    Scores = dict[tuple[str, str, str, str], dict[str, Record]]
    """The records of a score on a data set by metric; the key is task, protocol, data set and score."""

HEADINGS = {
    "auroc": "AUROC",
    "aupr_in": "AUPR\nin",
    "aupr_out": "AUPR\nout",
    "fpr95_ood_positive": "FPR95\nOOD +",
    "fpr95_id_positive": "FPR95\nID +",
}

FIGURES = [HEADINGS["auroc"], "interval", *(name for metric, name in HEADINGS.items() if metric != "auroc")]

JOINT_HEADINGS = {"aurc": "AURC", "ds_aurc": "DS-AURC", "ds_f1": "DS-F1"}


def evaluate(
    run: RunArgument,
    settings: SetOption = None,
    tables: Annotated[
        bool,
        typer.Option("--tables", help="Also print the figures of every score on every data set; the report has them."),
    ] = False,
    _threads: ThreadsOption = None,
    _trust: NothingToTrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Report which score of a run to use and how good it is; writes evaluation/report.html.

    Also written: metrics.json, metrics.csv, scores.parquet (of every sample) and plots/. Settings of the section
    evaluate may be changed for this report; the run keeps its own.

    After gradscore demo: gradscore evaluate demo/run --tables
    """
    output = Output(as_json=as_json, quiet=quiet)
    found = evaluated(output, run, settings=settings or (), tables=tables)
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
    tables: bool = False,
    answer: bool = True,
) -> dict[str, Any]:
    """Evaluates, writes the report, says what was found, and returns it for a program."""
    # These import scikit-learn, which help need not wait for.
    from gradscore.evaluation import evaluate_run
    from gradscore.reporting import write_report
    from gradscore.store import RunFolder
    from gradscore.system import as_address

    folder = RunFolder(run).with_settings(settings, sections=("evaluate",))
    with doing(quiet=output.quiet) as tell:
        tell("evaluating")
        evaluation = evaluate_run(folder)
        tell("writing the report")
        try:
            page, missing = write_report(folder, evaluation), ""
        except MissingExtraError as error:
            page, missing = None, str(error)
    again = ["gradscore", "evaluate", as_address(run), *(f"--set={each}" for each in settings), "--tables"]
    report(output, evaluation, tables=tables, again=join(again), page=page, answer=answer)
    if missing:
        output.tell(Notice(missing))
    return {**document(evaluation), "report": page}


def report(
    output: Output, evaluation: EvaluationReport, *, tables: bool, again: str, page: Path | None, answer: bool = True
) -> None:
    """Says the answer first and what comes next; then a line for each set, with `tables` every figure.

    `again` is the command that says it with tables. Without `answer`, where the report is and what is wrong with it.
    """
    place = f"report: {page}" if page is not None else f"all metrics: {evaluation.path}"
    output.tell(*(each for each in urgent(evaluation.notices) if each.level == "caution"))
    if not answer:
        output.say(place, detail=True)
        return
    style = "bold" if evaluation.answer.no_verdict is None else "yellow"
    output.say(*evaluation.answer.sentences, style=style, wrap=True)
    if evaluation.answer.next_command is not None:
        output.say(evaluation.answer.lines[-1])
    if output.quiet:
        return
    if evaluation.verdicts:
        output.show(_sets_table(evaluation.verdicts))
    if evaluation.not_compared is not None:
        output.say(f"note: {evaluation.not_compared}")
    if tables:
        _print_tables(output, evaluation)
    rest = [each for each in evaluation.notices if each.level == "note"]
    if tables or page is None:
        output.tell(*rest, rest=str(page or ""))
    elif rest:
        output.say(f"{len(rest)} more note{'' if len(rest) == 1 else 's'}: {again}")
    output.say(place)


def document(evaluation: EvaluationReport) -> dict[str, Any]:
    """The same for a program."""
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
        "sentence": verdict.sentence,
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


def _print_tables(output: Output, report: EvaluationReport) -> None:
    from gradscore.evaluation import is_group

    tables: dict[str, Table] = {}
    scores = _by_score(report.records)
    for (task, protocol, dataset, score), metrics in scores.items():
        if is_group(dataset) or "auroc" not in metrics:
            continue
        area = metrics["auroc"]
        title = f"{task}, {protocol}: {dataset} ({area.n_positive}/{area.n})"
        if title not in tables:
            tables[title] = figures_table(["score"], FIGURES, title=title)
        first, *others = [cell(metrics[metric].value) for metric in HEADINGS]
        tables[title].add_row(score, first, interval(area.low, area.high), *others)
    for table in [*tables.values(), *_group_tables(scores), *_joint_tables(scores)]:
        output.show(table)
    output.say(
        "in brackets: positive samples / all; interval: 95 %, DeLong; FPR95: lower is better, with OOD (or wrong)",
        "samples as positives, and with in-distribution (or correct) ones as positives",
        detail=True,
    )


def _group_tables(scores: Scores) -> list[Table]:
    """AUROCs over groups of OOD sets, one table for each protocol."""
    tables: dict[str, Table] = {}
    last = ""
    for (_, protocol, dataset, score), metrics in scores.items():
        group = dataset.removesuffix(" (mean)")
        if group == dataset:
            continue
        if protocol not in tables:
            tables[protocol] = figures_table(
                ["group", "score"],
                ["mean AUROC", "interval"],
                title=f"ood, {protocol}: groups of OOD sets",
            )
            last = ""
        area = metrics["auroc"]
        tables[protocol].add_row(group if group != last else "", score, cell(area.value), interval(area.low, area.high))
        last = group
    return list(tables.values())


def _joint_tables(scores: Scores) -> list[Table]:
    """A row for each OOD set: how well both scores together reject what is wrong or OOD."""
    from gradscore.evaluation import JOINT

    rows = {key[1:3]: metrics for key, metrics in scores.items() if key[0] == JOINT}
    if not rows:
        return []
    title = f"wrong or OOD, {next(iter(rows))[0]}: in_dist.test and a set, rejected by both chosen scores"
    table = figures_table(["set"], [*JOINT_HEADINGS.values()], title=title)
    for (_, dataset), metrics in rows.items():
        table.add_row(dataset, *(cell(metrics[metric].value) for metric in JOINT_HEADINGS))
    return [table]


def _by_score(records: list[Record]) -> Scores:
    grouped: Scores = {}
    for record in records:
        key = (record.task, record.protocol, record.dataset, record.score)
        grouped.setdefault(key, {})[record.metric] = record
    return grouped
