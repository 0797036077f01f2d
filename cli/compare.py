"""`gradscore compare`: which of several runs scores the same samples better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from gradscore.errors import GradscoreError
from gradscore.notices import Notice, notes, printable

from .options import JsonOption, NothingToTrustOption, QuietOption, ThreadsOption, local_run
from .output import Output, cell, figures_table

if TYPE_CHECKING:
    from gradscore.evaluation import Comparison
    from gradscore.store import RunFolder


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Evaluated run folders; the first is what the others are compared with.",
            callback=local_run,
        ),
    ],
    score: Annotated[str, typer.Option(help="The score to compare, as in evaluate's tables.")] = "chosen",
    _trust: NothingToTrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare runs on the samples they have in common.

    After gradscore demo: gradscore run demo/gradscore.yaml --out demo/b --set "features.losses=[uniform]" --trust-code

    Then: gradscore compare demo/run demo/b
    """
    from gradscore.evaluation import compare_runs
    from gradscore.store import RunFolder

    output = Output(as_json=as_json, quiet=quiet)
    folders = [RunFolder(run) for run in runs]
    comparison = compare_runs(folders, score=score)
    doubts = [Notice(f"{folder.path}: {line}", "warning") for folder in folders for line in _doubts(folder)]
    output.tell(*doubts, stderr=True)
    found = {"first": runs[0], "score": score, "compared": comparison.compared}
    output.document({**found, "warnings": doubts, "notices": comparison.notices})
    _print(output, comparison, first=runs[0], score=score)


def _doubts(run: RunFolder) -> list[Notice]:
    """Warnings of `evaluate`; comparing itself needs no feature table, which may have been removed since."""
    from gradscore.store import label_warnings

    try:
        return label_warnings(run)
    except GradscoreError as error:
        return [Notice(f"whether its labels are those of the network cannot be told: {error}", "warning")]


def _add_accuracies(table: Table, comparison: Comparison, *, of: Path) -> None:
    from gradscore.evaluation import signed

    judged = [each for each in comparison.compared if each.run == of and each.task == "misclassification"]
    found = {each.dataset: each for each in judged}  # once for all protocols
    if found:
        table.add_row(Text("accuracy of the network", style="bold"))
    for name, each in found.items():
        first, second = (1 - wrong / each.n for wrong in each.n_positive)
        table.add_row(printable(f"{name} ({each.n})"), cell(first), cell(second), signed(second - first, 4), "-", "-")


def _print(output: Output, comparison: Comparison, *, first: Path, score: str) -> None:
    from gradscore.evaluation import signed

    tables: dict[Path, Table] = {}
    last = ""
    for each in comparison.compared:
        if each.run not in tables:
            title = f"AUROC of {score}: {each.run} against {first}"
            tables[each.run] = figures_table(["data set"], ["first", "second", "change", "interval", "p"], title=title)
            last = ""
            _add_accuracies(tables[each.run], comparison, of=each.run)
        heading = f"{each.task}, {each.protocol}"
        if heading != last:
            tables[each.run].add_row(Text(printable(heading), style="bold"))
            last = heading
        ours, theirs = each.n_positive
        positives = str(ours) if ours == theirs else f"{ours}, {theirs}"
        test = each.test
        change = ["-"] * 3 if test is None else [
            signed(test.difference, 4), f"{signed(test.low, 3)} to {signed(test.high, 3)}", f"{test.p_value:.2g}"
        ]  # fmt: skip
        name = f"{each.dataset} ({positives}/{each.n})"
        tables[each.run].add_row(name, cell(each.first), cell(each.other), *change)
    for table in tables.values():
        output.show(table)
    output.say(
        "in brackets: positive samples / all; change: second minus first, with its 95 % interval (paired, DeLong);",
        "p: of no change between these two fits on new samples, not corrected for the number of rows;",
        "fits on other samples differ by more",
        detail=True,
    )
    output.tell(*notes(comparison.notices), rest="gradscore compare --json")
