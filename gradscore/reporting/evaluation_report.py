"""The report of a run: one HTML page that needs nothing else.

First the answer, then a row for each set, what every score reaches, figures, samples to look at, and notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..columns import feature_columns
from ..data import TEST
from ..evaluation import (
    CLASSIFIER,
    COMPARED,
    PAGE,
    Answer,
    EvaluationReport,
    Record,
    Records,
    ScoreFile,
    Verdict,
    count_or_percent,
    describe_score,
    positive_of,
    reliability,
    risk_coverage,
    signed,
    verdict_rows,
)
from ..meta import CHOSEN, META, SOUGHT, MetaInputs, MetaModel, group_of
from ..models import trusting_code
from ..store import RunFolder, changing
from ..system import BoolArray
from .gallery import ImageOf, NearestOfBank, make_galleries
from .pages import (
    GREY,
    PALETTE,
    TEMPLATES,
    Line,
    Part,
    Plot,
    check_packages,
    colour,
    curves,
    file_name,
    heat_map,
    histograms,
    write_page,
)

MOST_PAIRS = 50
"""Near-duplicates listed; all of them are in a file beside the page."""

FOOTER = (
    "Scores: higher means more likely wrong or out of distribution. The figures are in metrics.json and metrics.csv, "
    "the scores of every sample in scores.parquet."
)

OURS, BASELINE = PALETTE[0], PALETTE[1]
"""Colours of the chosen score and of what it is compared with."""

SCORES_SHOWN = 10
"""Scores of a table that are shown at once."""

NEGLIGIBLE = 0.01
"""Share of all weight below which gradients weigh nothing."""

ENDS = np.array([0.0, 1.0])
"""Ends of axes of shares."""

REJECTED = 0.05
"""Share of false alarms for which the answer says what is caught."""

MISCLASSIFICATION = "misclassification"
IN_DIST_ONLY = "in_dist_only"

TITLES = {
    "leave_one_dataset_out": "each set left out of the fit",
    "auxiliary": "fitted on auxiliary sets alone",
    "in_dist_only": "fitted on no OOD sample",
    "known": "fitted on one half of each set, reported on the other",
}
"""Protocols of OOD samples in words."""

SHIFTED = (
    "The same classes under covariate shift, by the model fitted on in_dist.fit. They are not out of distribution and "
    "count in no OOD figure."
)

METRICS = {
    "aupr_out": ("AUPR", ""),
    "fpr95_ood_positive": ("FPR95: false alarms", "where 95 % are caught"),
    "fpr95_id_positive": ("missed", "where 5 % are rejected"),
}
HIGHER_IS_BETTER = ("auroc", "aupr_out")

STATISTICS = {"l1": "L1", "l2": "L2", "std": "deviation", "last": "last L1"}
"""Statistics that are called otherwise by a reader; `l2:l1` is one over the other."""

GROUPS = {
    "penultimate": "features before the last layer",
    "neighbours": "distances to the bank",
}
"""Groups of inputs that are called otherwise by a reader."""


def write_report(run: RunFolder, evaluation: EvaluationReport, *, thumbnail: ImageOf | None = None) -> Path:
    """Writes `evaluation/report.html`, of a run, which is self-contained.

    Args:
        run: the run folder.
        evaluation: what `evaluate_run` found in it.
        thumbnail: from split and sample to its image, where there is one; by default the run's data are read again.

    Returns:
        The page.

    Raises:
        MissingExtraError: a package the report needs is not installed.
        StoreError: a damaged file, or another process writes to the run.
    """
    check_packages("report", "evaluate again")
    folder = run.evaluation_path
    records = Records(evaluation.records)
    inputs = MetaInputs.load(run.inputs_path)
    with changing(run.path, [f"{folder.name}/{PAGE}"]), trusting_code(False, origin=run.code):
        parts = _parts(run, evaluation, records, inputs)
        content: dict[str, object] = {
            "name": "/".join(run.path.resolve().parts[-2:]),
            "brand": "gradscore report",
            "footer": FOOTER,
            "facts": _facts(run),
            "answer": evaluation.answer,
            "rows": verdict_rows(evaluation.verdicts),
            "texts": {"number": _number, "interval": _interval, "caught": _caught, "gain": _gain, "named": _named},
            "compared": COMPARED,
            "not_compared": evaluation.not_compared if evaluation.verdicts else None,
            "notices": evaluation.notices,
            "near_duplicates": evaluation.near_duplicates.in_fit[:MOST_PAIRS],
            "tables": score_tables(records, evaluation.answer, evaluation.groups),
            "parts": parts,
            "version": run.manifest.versions.get("gradscore", ""),
            "galleries": make_galleries(
                evaluation.score_file,
                records,
                run.config,
                nearest=NearestOfBank(run, inputs),
                given=thumbnail,
                class_names=run.manifest.class_names,
            ),
        }
        page = folder / PAGE
        write_page(page, content, parts, template=TEMPLATES / "report.html.jinja")
    return page


def _parts(run: RunFolder, evaluation: EvaluationReport, records: Records, inputs: MetaInputs) -> list[Part]:
    """The plots of the report in parts, none that is empty."""
    sources = {MISCLASSIFICATION: IN_DIST_ONLY}
    for protocol in records.protocols("ood")[:1]:
        sources["ood"] = protocol
    heat_maps: list[Plot] = []
    remarks = []
    for task, protocol in sources.items():
        labels = [label for label in evaluation.models if label.startswith(f"{task}/{protocol}/")]
        models = [MetaModel.load(run.meta_path / label, inputs) for label in sorted(labels)]
        fitted = [model for model in models if model.kind != "one_class"]  # of those, coefficients are set
        if not fitted:
            continue
        weights = _mean_weights(fitted)
        shares = _group_shares(weights)
        used = evaluation.answer.score(task) or META
        if used != META:
            remarks.append(f"For {SOUGHT[task]}, {describe_score(used)} decides, which looks at no gradient.")
        elif shares.get("gradients", 0.0) < NEGLIGIBLE:
            remarks.append(f"For {SOUGHT[task]}, gradients weigh nothing in the meta model.")
        else:
            where = ", ".join(f"{100 * share:.0f} % on {GROUPS.get(group, group)}" for group, share in shares.items())
            remarks.append(f"For {SOUGHT[task]}, the total weight lies {where}.")
            heat_maps += _weight_plots(weights, task=task, models=len(fitted))
    found = [
        Part(title="Wrong predictions", plots=list(_misclassification_plots(evaluation, records))),
        Part(title="Out of distribution", plots=list(_ood_plots(evaluation.score_file, records))),
        Part(title="Where gradients weigh", remark=" ".join(remarks), plots=heat_maps),
    ]
    return [part for part in found if part.plots or part.remark]


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    splits = run.manifest.splits
    test = splits[TEST]
    ood = [info for info in run.splits() if info.is_reported_ood]
    accuracy = f", accuracy {100 * test.accuracy:.1f} %" if test.accuracy is not None else ""
    return [
        ("model", run.config.model.source.rpartition("/")[2]),
        ("reported on", f"{test.rows} in-distribution samples{accuracy}"),
        ("OOD sets", ", ".join(f"{info.dataset_name} ({splits[info.name].rows})" for info in ood) or "none"),
        ("features", f"{len(feature_columns(run.columns(TEST)))} per sample"),
    ]


def _misclassification_plots(evaluation: EvaluationReport, records: Records) -> Iterator[Plot]:
    """ROC, risk-coverage, distributions and reliability for wrong predictions; none with one class only."""
    for dataset in records.datasets(MISCLASSIFICATION, IN_DIST_ONLY):
        best = records.best_baseline(MISCLASSIFICATION, IN_DIST_ONLY, dataset)
        if best is None:
            continue
        names = ["positive", "probability", CHOSEN, best]
        key = (MISCLASSIFICATION, IN_DIST_ONLY, dataset)
        block = evaluation.score_file.columns(*key, list(dict.fromkeys(names)))
        wrong, values = positive_of(block), block[CHOSEN].to_numpy(dtype=np.float64)
        colours = {CHOSEN: OURS}
        if evaluation.answer.score(MISCLASSIFICATION) != best:
            colours[best] = BASELINE
        yield curves(
            [*(roc(block[name], wrong, _named(name), shade) for name, shade in colours.items()), _rejected()],
            name="misclassification-roc",
            title="Wrong predictions caught",
            caption="Choose below how many right predictions may be rejected: the height says how many wrong ones go "
            "with them. The dotted line is the 5 % of the answer above.",
            x_label="share of right predictions rejected",
            y_label="share of wrong predictions caught",
        )
        risks = {name: risk_coverage(block[name], wrong) for name in colours}
        yield curves(
            [
                Line(name=_named(name), x=curve.coverage, y=curve.risk, colour=colours[name])
                for name, curve in risks.items()
            ],
            name="misclassification-risk-coverage",
            title="Errors among accepted predictions",
            caption="Find the error rate that you can bear on the left, and accept the share of predictions below that "
            "point of the curve. The lower curve is the better one.",
            x_label="share of predictions accepted",
            y_label="share wrong among them",
            unit_square=False,
        )
        yield histograms(
            [("right", values[~wrong], OURS), ("wrong", values[wrong], BASELINE)],
            name="misclassification-scores",
            title="Scores of right and wrong predictions",
            caption="A threshold rejects what lies to its right. Where the two overlap, no threshold can part them.",
            x_label="chosen score",
        )
        curve = reliability(block["probability"], wrong)
        figures = [
            f"{word} {record.value:.4f}"
            for word, metric in (("Brier score", "brier"), ("ECE", "ece"))
            if (record := records.get(*key, CHOSEN, metric)) is not None
        ]
        yield curves(
            [
                Line(name="chosen score", x=curve.predicted, y=curve.observed, colour=OURS, sizes=curve.count),
                Line(name="exactly right", x=ENDS, y=ENDS, colour=GREY, dotted=True),
            ],
            name="reliability",
            title="Is the probability what it says?",
            caption="On the dotted line, take the probability as it is. Above it more predictions are wrong than it "
            f"says, so set thresholds by samples instead. Larger points stand for more samples. {', '.join(figures)}.",
            x_label="predicted probability of being wrong",
            y_label="share wrong",
        )


def _ood_plots(scores: ScoreFile, records: Records) -> Iterator[Plot]:
    """ROC of every OOD set, and the distributions of each, for the headline protocol."""
    for protocol in records.protocols("ood")[:1]:
        sets = [name for name in records.datasets("ood", protocol) if records.get("ood", protocol, name, CHOSEN)]
        blocks = {name: scores.columns("ood", protocol, name, ["positive", CHOSEN]) for name in sets}
        lines = [
            roc(block[CHOSEN], positive_of(block), name, colour(place))
            for place, (name, block) in enumerate(blocks.items())
        ]
        yield curves(
            [*lines, _rejected()],
            name="ood-roc",
            title="OOD samples caught by the chosen score",
            caption="Choose below how many in-distribution samples may be rejected: the height says how much of each "
            "set goes with them. A set whose curve is low needs another score, or samples like it in data.ood.",
            x_label="share of in-distribution samples rejected",
            y_label="share of OOD samples caught",
        )
        for name, block in blocks.items():
            ood = positive_of(block)
            values = np.asarray(block[CHOSEN], dtype=np.float64)
            yield histograms(
                [("in-distribution", values[~ood], OURS), (name, values[ood], BASELINE)],
                name=f"ood-scores-{file_name(name)}",
                title=f"Scores: {name}",
                caption="A threshold rejects what lies to its right. Of this set, what lies among the in-distribution "
                "samples passes unnoticed.",
                x_label="chosen score",
            )


def _weight_plots(weights: Mapping[str, float], *, task: str, models: int) -> Iterator[Plot]:
    """Heat maps layer x statistic of mean magnitudes of coefficients, one for each loss, on one scale."""
    of_losses: dict[str, dict[str, dict[str, float]]] = {}
    for label, weight in weights.items():
        loss, _, rest = label.partition("/")
        layer, _, statistic = rest.rpartition("/")
        if loss != "baseline":
            of_losses.setdefault(loss, {}).setdefault(layer, {})[statistic] = weight
    high = max(weight for rows in of_losses.values() for row in rows.values() for weight in row.values())
    for loss, rows in of_losses.items():
        columns = list(dict.fromkeys(statistic for row in rows.values() for statistic in row))
        several = f", mean over {models} models" if models > 1 else ""
        yield heat_map(
            np.array([[row.get(column, np.nan) for column in columns] for row in rows.values()]),
            name=f"weights-{task}-{file_name(loss)}",
            title=f"Weights for {SOUGHT[task]}, loss {loss}",
            caption=f"Bright: the meta model looks at this statistic (across) of this layer (down){several}. Layers, "
            "statistics and losses that stay dark may be left out of the section features, which makes a run faster.",
            rows=list(rows),
            columns=[" / ".join(STATISTICS.get(part, part) for part in column.split(":")) for column in columns],
            high=high,
        )


def _group_shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Share of the magnitude of all coefficients that lies on each group of inputs, the largest first."""
    totals: dict[str, float] = {}
    for name, weight in weights.items():
        totals[group_of(name)] = totals.get(group_of(name), 0.0) + weight
    whole = sum(totals.values())
    return {name: total / whole for name, total in sorted(totals.items(), key=lambda item: -item[1]) if total}


def _mean_weights(models: Sequence[MetaModel]) -> dict[str, float]:
    """Mean magnitude of the coefficient of each input over linear models of the same inputs."""
    stacked = np.mean([np.abs(model.arrays["coefficients"]) for model in models], axis=0)
    return {name: float(weight) for name, weight in zip(models[0].inputs.names, stacked, strict=True)}


def roc(scores: pd.Series[float], positive: BoolArray, name: str, colour: str) -> Line:
    """The ROC curve, with a point for every distinct score."""
    from sklearn.metrics import roc_curve

    x, y, _ = roc_curve(positive, scores, drop_intermediate=False)
    return Line(name=name, x=x, y=y, colour=colour)


def _rejected() -> Line:
    return Line(name="5 % rejected", x=np.full(2, REJECTED), y=ENDS, colour=GREY, dotted=True)


def _named(score: str) -> str:
    """A score in words, as a heading or a legend has them."""
    if score == CHOSEN:
        return "chosen score"
    return describe_score(score).removeprefix("the ").replace("averaged over augmentations", "averaged")


def _number(record: Record) -> str:
    return f"{record.value:.3f}"


def _caught(verdict: Verdict) -> str:
    """The share that is caught with 5 % false alarms."""
    return "-" if verdict.caught is None else count_or_percent(verdict.caught, verdict.area.n_positive)


def _gain(verdict: Verdict) -> str:
    """The AUROC gained over the best baseline."""
    return "-" if verdict.gain is None or verdict.gain.value is None else signed(verdict.gain.value, 3)


def _interval(record: Record) -> str:
    """The 95 % interval of a figure, empty where there is none."""
    return "" if record.low is None else f"{record.low:.3f}-{record.high:.3f}"


class Figure(NamedTuple):
    """A column of a table: where a figure of every score stands, and what the column is called."""

    title: str
    below: str
    task: str
    protocol: str
    dataset: str
    metric: str = "auroc"

    def of(self, records: Records, score: str) -> Record | None:
        """The figure of a score."""
        return records.get(self.task, self.protocol, self.dataset, score, self.metric)

    def quality(self, record: Record | None) -> float:
        """The figure, or its negative where lower is better; minus infinity without one."""
        if record is None or record.value is None:
            return -np.inf
        return record.value if self.metric in HIGHER_IS_BETTER else -record.value


class Cell(NamedTuple):
    """A figure, None where there is none, and whether it is the best of its column."""

    record: Record | None
    best: bool


class ScoreRow(NamedTuple):
    """The name of a score, whether it is the chosen one, and its figures."""

    name: str
    chosen: bool
    cells: Sequence[Cell]


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """Scores as rows, figures as columns; the best scores first.

    Attributes:
        title: above it.
        caption: how to read it.
        columns: of each its title and what to say below it.
        rows: the best scores and those of the run.
        rest: the other scores, which are folded.
        headline: whether it is shown at once.
    """

    title: str
    caption: str
    columns: Sequence[Figure]
    rows: Sequence[ScoreRow]
    rest: Sequence[ScoreRow]
    headline: bool = False


def score_tables(records: Records, answer: Answer, groups: Mapping[str, Sequence[str]]) -> list[ScoreTable]:
    """Tables of all scores: on wrong predictions, and on OOD sets under each protocol."""
    tables = []
    for dataset in records.datasets(MISCLASSIFICATION, IN_DIST_ONLY):
        metrics = {"auroc": ("AUROC", "")} | METRICS | {"aurc": ("AURC", "")}
        columns = [Figure(*texts, MISCLASSIFICATION, IN_DIST_ONLY, dataset, each) for each, texts in metrics.items()]
        tables.append(_table(records, answer, columns, title="Wrong predictions", headline=True))
    for place, protocol in enumerate(records.protocols("ood")):
        several = [f"{name} (mean)" for name in records.groups(protocol) if len(groups.get(name, ())) > 1]
        datasets = [*sorted(several, key=lambda name: name != "all (mean)"), *records.datasets("ood", protocol)]
        for metric, texts in {"auroc": ("", ""), **(METRICS if place == 0 else {})}.items():
            found = _table(
                records,
                answer,
                [_figure(records, "ood", protocol, dataset, metric) for dataset in datasets],
                title=": ".join(filter(None, [f"OOD samples, {TITLES[protocol]}", " ".join(texts).strip()])),
                caption=f"Protocol {protocol}.",
                headline=place == 0 and metric == "auroc",
            )
            tables.append(found)
    for protocol in records.protocols("shifted"):
        columns = [_figure(records, "shifted", protocol, each) for each in records.datasets("shifted", protocol)]
        tables.append(
            _table(records, answer, columns, title="Wrong predictions under covariate shift", caption=SHIFTED)
        )
    return tables


def _figure(records: Records, task: str, protocol: str, dataset: str, metric: str = "auroc") -> Figure:
    """The column of a set, or of the mean over a group of sets."""
    area = records.get(task, protocol, dataset, CHOSEN)
    accuracy = records.get(task, protocol, dataset, CLASSIFIER, "accuracy")
    below = "" if area is None else f"{area.n_positive} of {area.n}"
    below += "" if accuracy is None else f", accuracy {_number(accuracy)}"
    return Figure(dataset.replace(" (mean)", ", mean"), below, task, protocol, dataset, metric)


def _table(
    records: Records,
    answer: Answer,
    columns: Sequence[Figure],
    *,
    title: str,
    caption: str = "",
    headline: bool = False,
) -> ScoreTable:
    """A row for each score, by the first column; the chosen score and another of the same figures are one row."""
    first = columns[0]
    found = {
        score: [each.of(records, score) for each in columns] for score in records.scores(first.task, first.protocol)
    }
    chosen, named = CHOSEN, answer.score("ood" if first.task == "ood" else MISCLASSIFICATION)
    if named in found and CHOSEN in found and _value(found[named][0]) == _value(found[CHOSEN][0]):
        chosen, found[named] = named, found.pop(CHOSEN)
    best = [
        max(map(column.quality, cells))
        for column, cells in zip(columns, zip(*found.values(), strict=True), strict=True)
    ]
    order = sorted(found, key=lambda score: -first.quality(found[score][0]))
    rows = [
        ScoreRow(
            name=score,
            chosen=score == chosen,
            cells=[
                Cell(cell, cell is not None and column.quality(cell) == top)
                for column, cell, top in zip(columns, found[score], best, strict=True)
            ],
        )
        for score in order
    ]
    shown = {*order[: SCORES_SHOWN if headline else None], chosen, META}
    return ScoreTable(
        title=title,
        caption=caption,
        columns=columns,
        rows=[row for row in rows if row.name in shown],
        rest=[row for row in rows if row.name not in shown],
        headline=headline,
    )


def _value(record: Record | None) -> tuple[float | None, float | None] | None:
    return None if record is None else (record.value, record.low)
