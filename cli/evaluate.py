"""`gradscore evaluate`: how well the scores of a run tell wrong predictions and OOD samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .options import RunArgument

if TYPE_CHECKING:
    from gradscore.evaluation.run import EvaluationReport


def evaluate(run: RunArgument) -> None:
    """Report how well the meta models of a run and the baselines do, as a table and in evaluation/metrics.json.

    Example: gradscore evaluate runs/digits
    """
    from gradscore.evaluation.run import evaluate_run  # imports scikit-learn, which help need not wait for
    from gradscore.store import RunFolder

    _print(Console(), evaluate_run(RunFolder(run)))


def _print(console: Console, report: EvaluationReport) -> None:
    areas = [record for record in report.records if record["metric"] == "auroc"]
    scores = list(dict.fromkeys(record["score"] for record in areas))
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for record in areas:
        key = (record["task"], record["protocol"], record["dataset"], f"{record['n_positive']}/{record['n']}")
        rows.setdefault(key, {})[record["score"]] = _cell(record)
    table = Table("task", "protocol", "data set", "positive", *scores, title="AUROC (95 % interval, DeLong)")
    for row, cells in rows.items():
        table.add_row(*row, *(cells[score] for score in scores))
    console.print(table)
    for line in report.notices:
        console.print(f"note: {line}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"all metrics: {report.path}", soft_wrap=True, highlight=False, markup=False)


def _cell(record: dict[str, Any]) -> str:
    if record["value"] is None:
        return "-"
    value = f"{record['value']:.4f}"
    return value if record["low"] is None else f"{value}\n{record['low']:.3f}-{record['high']:.3f}"
