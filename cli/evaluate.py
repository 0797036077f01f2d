"""`gradscore evaluate`: how well the scores of a run tell wrong predictions and OOD samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gradscore.errors import MissingExtraError

from .options import RunArgument

if TYPE_CHECKING:
    from gradscore.evaluation.run import EvaluationReport

Scores = dict[tuple[str, ...], dict[str, dict[str, Any]]]

HEADINGS = {
    "auroc": "AUROC",
    "aupr_in": "AUPR\nin",
    "aupr_out": "AUPR\nout",
    "fpr95_ood_positive": "FPR95\nOOD +",
    "fpr95_id_positive": "FPR95\nID +",
}


PermutedOption = Annotated[
    bool,
    typer.Option(
        "--permuted-labels",
        help="Also fit the meta models anew on permuted labels, and say where that is not near an AUROC of 0.5.",
    ),
]


def evaluate(run: RunArgument, permuted: PermutedOption = False) -> None:
    """Report how well the meta models of a run and the baselines do: tables here, and a page evaluation/report.html.

    Also written: metrics.json, metrics.csv, scores.parquet (of every sample), report.md and plots/.

    Example: gradscore evaluate runs/digits/run
    """
    from gradscore.evaluation.controls import in_words, permuted_labels  # scikit-learn, which help need not wait for
    from gradscore.evaluation.report import write_report
    from gradscore.evaluation.run import evaluate_run
    from gradscore.store import RunFolder

    folder = RunFolder(run)
    evaluation = evaluate_run(folder)
    if permuted:
        with Console(stderr=True).status("permuting labels") as status:
            controls = permuted_labels(folder, progress=lambda label: status.update(f"permuting {label}"))
        evaluation = replace(evaluation, notices=[*evaluation.notices, *in_words(controls)])
    console = Console()
    _print(console, evaluation)
    try:
        line = f"report: {write_report(folder, evaluation).html}"
    except MissingExtraError as error:
        line = f"note: {error}"
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _print(console: Console, report: EvaluationReport) -> None:
    tables: dict[str, Table] = {}
    last = ""
    scores = _by_score(report.records)
    for (task, protocol, dataset, score), metrics in scores.items():
        if _is_group(dataset) or "auroc" not in metrics:
            continue
        title = f"{task}, {protocol}"
        if title not in tables:
            tables[title] = _table(title)
            last = ""
        area = metrics["auroc"]
        name = f"{dataset} ({area['n_positive']}/{area['n']})"
        cells = [_cell(metrics[metric]["value"]) for metric in HEADINGS]
        tables[title].add_row(name if name != last else "", score, cells[0], _interval(area), *cells[1:])
        last = name
    for table in [*tables.values(), *_group_tables(scores)]:
        console.print(table)
    console.print(
        "in brackets: positive samples / all; interval: 95 %, DeLong; FPR95: lower is better, with OOD (or wrong)"
    )
    console.print("samples as positives, and with in-distribution (or correct) ones as positives")
    for line in report.notices:
        console.print(f"note: {line}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"all metrics: {report.path}", soft_wrap=True, highlight=False, markup=False)


def _is_group(dataset: str) -> bool:
    return dataset.endswith((" (mean)", " (pooled)"))


def _group_tables(scores: Scores) -> list[Table]:
    """AUROCs over groups of OOD sets, one table for each protocol."""
    tables: dict[str, Table] = {}
    last = ""
    for (_, protocol, dataset, score), metrics in scores.items():
        group = dataset.removesuffix(" (mean)")
        if group == dataset:
            continue
        if protocol not in tables:
            tables[protocol] = _group_table(f"ood, {protocol}: AUROC over groups of OOD sets")
            last = ""
        areas = [metrics["auroc"], scores["ood", protocol, f"{group} (pooled)", score]["auroc"]]
        cells = [cell for area in areas for cell in (_cell(area["value"]), _interval(area))]
        tables[protocol].add_row(group if group != last else "", score, *cells)
        last = group
    return list(tables.values())


def _group_table(title: str) -> Table:
    table = Table("group", "score", title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("mean over sets", "interval", "pooled", "interval"):
        table.add_column(heading, justify="right")
    return table


def _by_score(records: list[dict[str, Any]]) -> Scores:
    grouped: Scores = {}
    for record in records:
        key = (record["task"], record["protocol"], record["dataset"], record["score"])
        grouped.setdefault(key, {})[record["metric"]] = record
    return grouped


def _table(title: str) -> Table:
    table = Table("data set", "score", title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    first, *others = HEADINGS.values()
    for heading in (first, "interval", *others):
        table.add_column(heading, justify="right")
    return table


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(record: dict[str, Any]) -> str:
    return "-" if record["low"] is None else f"{record['low']:.3f}-{record['high']:.3f}"
