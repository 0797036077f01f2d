"""The tables of a report, as rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...evaluation import CLASSIFIER
from .figures import MISCLASSIFICATION, Figure, Figures
from .sentences import EXPLAINED, interval, number

METRICS = {
    "aupr_out": "AUPR",
    "fpr95_ood_positive": "FPR95, OOD or wrong as positives",
    "fpr95_id_positive": "FPR95, in-distribution or right as positives",
}
TITLES = {MISCLASSIFICATION: "Wrong predictions", "shifted": "Wrong predictions under covariate shift"}
SELECTIVE = {"aurc": "AURC", "eaurc": "E-AURC", "augrc": "AUGRC", "brier": "Brier", "ece": "ECE"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure, its interval below it, and whether it is the best of its row."""

    text: str
    below: str = ""
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """A table.

    Attributes:
        title: above it.
        caption: how to read it.
        columns: headings, that of the row names first.
        rows: name, what to say below it, and the cells of each row.
        headline: whether it is shown at once.
    """

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[Cell]]]
    headline: bool


def area_tables(figures: Figures) -> list[ScoreTable]:
    """AUROCs by data set and score, with DeLong intervals, one table for each protocol."""
    tables = []
    for task in (MISCLASSIFICATION, "shifted", "ood"):
        for place, protocol in enumerate(figures.protocols(task)):
            scores = figures.scores(task, protocol)
            names = [*figures.datasets(task, protocol), *(f"{each} (mean)" for each in figures.groups(protocol))]
            rows = []
            for name in names if task == "ood" else figures.datasets(task, protocol):
                areas = [figures.get(task, protocol, name, score) for score in scores]
                accuracy = figures.get(task, protocol, name, CLASSIFIER, "accuracy")
                said = f", accuracy {number(accuracy.value)}" if task == "shifted" and accuracy is not None else ""
                rows.append((name, _counts(areas) + said, _cells(areas)))
            tables.append(
                ScoreTable(
                    title=TITLES.get(task, f"Out of distribution, {protocol}"),
                    caption=EXPLAINED[protocol if task == "ood" else task],
                    columns=["data set", *scores],
                    rows=rows,
                    headline=place == 0 and task != "shifted",
                )
            )
    return tables


def detail_tables(figures: Figures) -> list[ScoreTable]:
    """The other figures of merit of each data set of the headlines, a row for each score."""
    tables = []
    for task in (MISCLASSIFICATION, "ood"):
        for protocol in figures.protocols(task)[:1]:
            metrics = METRICS | (SELECTIVE if task == MISCLASSIFICATION else {})
            for dataset in figures.datasets(task, protocol):
                rows = []
                for score in figures.scores(task, protocol):
                    found = [figures.get(task, protocol, dataset, score, metric) for metric in metrics]
                    rows.append((score, "", [_cell(figure) for figure in found]))
                meta = figures.get(task, protocol, dataset, "meta")
                if meta is not None:
                    share = meta.n_positive / meta.n
                    tables.append(
                        ScoreTable(
                            title=dataset if task == MISCLASSIFICATION else f"{dataset}, {protocol}",
                            caption=f"AUPR of a score without information: {share:.3f}, the share of positives. "
                            "Everything but AUPR is better when lower. Below each figure its 95 % interval.",
                            columns=["score", *metrics.values()],
                            rows=rows,
                            headline=False,
                        )
                    )
    return tables


def _cells(areas: Sequence[Figure | None]) -> list[Cell]:
    best = max((area.value for area in areas if area is not None), default=None)
    return [_cell(area, best=best) for area in areas]


def _cell(figure: Figure | None, *, best: float | None = None) -> Cell:
    if figure is None:
        return Cell(text="-")
    span = "" if figure.interval is None else interval(figure)
    return Cell(text=number(figure.value), below=span, best=best is not None and figure.value == best)


def _counts(areas: Sequence[Figure | None]) -> str:
    return next((f"{area.n_positive} of {area.n}" for area in areas if area is not None), "")
