"""The report of a run: one HTML page that needs nothing else, the same in Markdown, and its plots as PNG and SVG.

What the records of an evaluation say stands there as headlines and comparisons in plain words, and as tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..columns import feature_columns
from ..data import TEST
from ..evaluation import (
    CLASSIFIER,
    COMPARED,
    FEW_SAMPLES,
    LOGIT_LR,
    PAGES,
    EvaluationReport,
    Outcome,
    Record,
    Records,
    ScoreFile,
    Verdict,
    positive_of,
    reliability,
    risk_coverage,
)
from ..meta import Inputs, MetaModel, group_of
from ..models import trusting_code
from ..store import RunFolder, changing
from ..system import BoolArray, FloatArray, write_text
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
    render,
    write_page,
)

MOST_PAIRS = 50
"""Near-duplicates listed; all of them are in a file beside the page."""

HTML, MARKDOWN = PAGES
PLOTS = "plots"

FOOTER = (
    "Scores: higher means more likely wrong or out of distribution. The figures are in metrics.json and metrics.csv, "
    "the scores of every sample in scores.parquet, the plots in plots/."
)

META, BASELINE, LOGITS = PALETTE[0], PALETTE[1], PALETTE[2]
"""Colours of the meta model, what it is compared with, and the regression on scores of the logits."""

MISCLASSIFICATION = "misclassification"
IN_DIST_ONLY = "in_dist_only"

HOW = {
    "leave_one_dataset_out": "each by a model fitted on the other OOD sets only",
    "auxiliary": "by a model fitted on synthetic sets only",
    "in_dist_only": "by a model fitted on in-distribution samples only",
    "known": "by a model fitted on other samples of the same OOD sets",
}

EXPLAINED = {
    "leave_one_dataset_out": "Leave one out: for each OOD set a model fitted on the others.",
    "auxiliary": "Auxiliary: fitted on auxiliary sets alone, which are made of in-distribution samples as a rule.",
    "in_dist_only": "In-distribution only: no OOD sample was fitted on.",
    "known": "Known: one half of each OOD set was fitted on, the other half is reported.",
    MISCLASSIFICATION: "Fitted on in_dist.fit, reported on in_dist.test.",
    "shifted": "The same classes under covariate shift, by the model fitted on in_dist.fit. They are not out of "
    "distribution and count in no OOD figure.",
}


METRICS = {
    "aupr_out": "AUPR",
    "fpr95_ood_positive": "FPR95, OOD or wrong as positives",
    "fpr95_id_positive": "FPR95, in-distribution or right as positives",
}
TITLES = {MISCLASSIFICATION: "Wrong predictions", "shifted": "Wrong predictions under covariate shift"}
SELECTIVE = {"aurc": "AURC", "eaurc": "E-AURC", "augrc": "AUGRC", "brier": "Brier", "ece": "ECE"}


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """What was written.

    Attributes:
        html: the page, self-contained.
        markdown: the same in Markdown, with links to the plots.
        plots: PNG and SVG of every plot.
    """

    html: Path
    markdown: Path
    plots: list[Path]


def write_report(run: RunFolder, evaluation: EvaluationReport, *, thumbnail: ImageOf | None = None) -> ReportFiles:
    """Writes `evaluation/report.html`, `report.md` and `plots/` of a run.

    Args:
        run: the run folder.
        evaluation: what `evaluate_run` found in it.
        thumbnail: from split and sample to its image, where there is one; by default the run's data are read again.

    Returns:
        The files.

    Raises:
        MissingExtraError: a package the report needs is not installed.
        StoreError: a damaged file, or another process writes to the run.
    """
    check_packages("report", "evaluate again")
    folder = run.evaluation_path
    records = Records(evaluation.records)
    inputs = Inputs.load(run.inputs_path)
    changed = [f"{folder.name}/{name}" for name in (HTML, MARKDOWN, PLOTS)]
    with changing(run.path, changed), trusting_code(False, origin=run.code):
        parts = _parts(run, evaluation, records, inputs)
        content: dict[str, object] = {
            "name": "/".join(run.path.resolve().parts[-2:]),
            "brand": "gradscore report",
            "footer": FOOTER,
            "facts": _facts(run),
            "headlines": list(headlines(records)) if evaluation.verdicts else [],
            "gains": gains(evaluation.verdicts),
            "no_verdict": evaluation.no_verdict,
            "compared": COMPARED,
            "not_compared": evaluation.not_compared if evaluation.verdicts else None,
            "warnings": evaluation.warnings,
            "notices": [notice for notice in evaluation.notices if notice.level != "warning"],
            "near_duplicates": evaluation.near_duplicates.in_fit[:MOST_PAIRS],
            "area_tables": area_tables(records),
            "detail_tables": detail_tables(records),
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
        html, markdown = folder / HTML, folder / MARKDOWN
        plots = write_page(html, content, parts, template=TEMPLATES / "report.html.jinja", plots=folder / PLOTS)
        write_text(markdown, render(TEMPLATES / "report.md.jinja", content))
    return ReportFiles(html=html, markdown=markdown, plots=plots)


def _parts(run: RunFolder, evaluation: EvaluationReport, records: Records, inputs: Inputs) -> list[Part]:
    """The plots of the report in parts; none that is empty."""
    sources = {"misclassification": (MISCLASSIFICATION, IN_DIST_ONLY, "Weights, wrong predictions")}
    for protocol in records.protocols("ood")[:1]:
        sources["ood"] = ("ood", protocol, f"Weights, OOD, {protocol}")
    heat_maps: list[Plot] = []
    remarks = []
    for name, (task, protocol, title) in sources.items():
        labels = [label for label in evaluation.models if label.startswith(f"{task}/{protocol}/")]
        models = [MetaModel.load(run.meta_path / label, inputs) for label in sorted(labels)]
        heat_maps += _weight_plots(models, name=name, title=title)
        shares = _group_shares(models)
        if shares:
            what = "wrong predictions" if task == MISCLASSIFICATION else "OOD samples"
            where = ", ".join(f"{100 * share:.0f} % on {group}" for group, share in shares.items())
            remarks.append(f"For {what}, the total weight lies {where}.")
    found = [
        Part(title="Wrong predictions", plots=list(_misclassification_plots(evaluation.score_file, records))),
        Part(title="Out of distribution", plots=list(_ood_plots(evaluation.score_file, records))),
        Part(title="What the meta model uses", remark=" ".join(remarks), plots=heat_maps),
    ]
    return [part for part in found if part.plots]


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


def _misclassification_plots(scores: ScoreFile, records: Records) -> Iterator[Plot]:
    """ROC, risk-coverage, distributions and reliability for wrong predictions; none with one class only."""
    for dataset in records.datasets(MISCLASSIFICATION, IN_DIST_ONLY):
        best = records.best_baseline(MISCLASSIFICATION, IN_DIST_ONLY, dataset)
        if best is None:
            continue
        names = ["positive", "probability", "chosen", best, LOGIT_LR]
        block = scores.columns(MISCLASSIFICATION, IN_DIST_ONLY, dataset, list(dict.fromkeys(names)))
        wrong, values = positive_of(block), block["chosen"].to_numpy(dtype=np.float64)
        colours = {"chosen": META, best: BASELINE}
        if LOGIT_LR in block and block[LOGIT_LR].notna().all():
            colours[LOGIT_LR] = LOGITS
        yield curves(
            [*(_roc(block[name], wrong, name, colour) for name, colour in colours.items()), _diagonal("chance")],
            name="misclassification-roc",
            title="Wrong predictions: ROC",
            caption="Share of wrong predictions caught against false alarms, for every threshold.",
            x_label="share of right predictions flagged",
            y_label="share of wrong predictions flagged",
        )
        risks = {name: risk_coverage(block[name], wrong) for name in colours}
        yield curves(
            [Line(name=name, x=curve.coverage, y=curve.risk, colour=colours[name]) for name, curve in risks.items()],
            name="misclassification-risk-coverage",
            title="Risk against coverage",
            caption="Errors among the accepted samples when the most suspicious ones are refused; lower is better.",
            x_label="coverage: share accepted",
            y_label="risk: share wrong among them",
            unit_square=False,
        )
        yield histograms(
            [("right", values[~wrong], META), ("wrong", values[wrong], BASELINE)],
            name="misclassification-scores",
            title="Scores of right and wrong predictions",
            caption="Log-odds of the meta model. The less the two overlap, the better.",
            x_label="score of the meta model",
        )
        curve = reliability(block["probability"], wrong)
        figures = [
            f"{word} {record.value:.4f}"
            for word, metric in (("Brier score", "brier"), ("ECE", "ece"))
            if (record := records.get(MISCLASSIFICATION, IN_DIST_ONLY, dataset, "chosen", metric)) is not None
        ]
        yield curves(
            [
                Line(name="chosen", x=curve.predicted, y=curve.observed, colour=META, sizes=curve.count),
                _diagonal("exactly right"),
            ],
            name="reliability",
            title="Is the probability what it says?",
            caption="Predicted probability of being wrong against the share that is wrong; on the dotted line it is "
            f"exactly right. Larger points stand for more samples. {', '.join(figures)}.".removesuffix(" ."),
            x_label="predicted probability",
            y_label="share wrong",
        )


def _ood_plots(scores: ScoreFile, records: Records) -> Iterator[Plot]:
    """ROC of every OOD set, and the distributions of each, for the headline protocol."""
    for protocol in records.protocols("ood")[:1]:
        sets = records.datasets("ood", protocol)
        blocks = {name: scores.columns("ood", protocol, name, ["positive", "chosen"]) for name in sets}
        lines = [
            _roc(block["chosen"], positive_of(block), name, colour(place))
            for place, (name, block) in enumerate(blocks.items())
        ]
        yield curves(
            [*lines, _diagonal("chance")],
            name="ood-roc",
            title=f"Out of distribution: ROC, {protocol}",
            caption="Share of OOD samples caught by the meta model against false alarms, for every threshold.",
            x_label="share of in-distribution samples flagged",
            y_label="share of OOD samples flagged",
        )
        for name, block in blocks.items():
            ood = positive_of(block)
            values = np.asarray(block["chosen"], dtype=np.float64)
            yield histograms(
                [("in-distribution", values[~ood], META), (name, values[ood], BASELINE)],
                name=f"ood-scores-{file_name(name)}",
                title=f"Scores: {name}",
                caption="Scores of the meta model on in-distribution samples and on this OOD set.",
                x_label="score of the meta model",
            )


def _weight_plots(models: Sequence[MetaModel], *, name: str, title: str) -> Iterator[Plot]:
    """Heat maps layer x statistic of the magnitudes of coefficients, one for each loss; the mean over the models."""
    linear = _fitted(models)
    if not linear:
        return
    weights = pd.Series(_mean_weights(linear))
    parts = [label.split("/", 1) for label in weights.index]
    for loss in dict.fromkeys(start for start, _ in parts if start != "baseline"):
        rows: dict[str, dict[str, float]] = {}
        for label, weight in weights.items():
            start, _, rest = str(label).partition("/")
            layer, _, statistic = rest.rpartition("/")
            if start == loss:
                rows.setdefault(layer, {})[statistic] = float(weight)
        columns = list(dict.fromkeys(statistic for row in rows.values() for statistic in row))
        several = f", mean over {len(linear)} models" if len(linear) > 1 else ""
        yield heat_map(
            np.array([[row.get(column, np.nan) for column in columns] for row in rows.values()]),
            name=f"weights-{name}-{file_name(loss)}",
            title=f"{title}: {loss}",
            caption=f"Magnitude of the coefficient of each scaled input{several}: layers down, statistics across.",
            rows=list(rows),
            columns=columns,
        )


def _group_shares(models: Sequence[MetaModel]) -> dict[str, float]:
    """Share of the magnitude of all coefficients that lies on each group of inputs, the largest first."""
    linear = _fitted(models)
    totals: dict[str, float] = {}
    for name, weight in (_mean_weights(linear) if linear else {}).items():
        totals[group_of(name)] = totals.get(group_of(name), 0.0) + weight
    whole = sum(totals.values())
    return {name: total / whole for name, total in sorted(totals.items(), key=lambda item: -item[1]) if total}


def _fitted(models: Sequence[MetaModel]) -> list[MetaModel]:
    """Models whose coefficients were fitted, not set."""
    return [model for model in models if model.kind != "one_class"]


def _mean_weights(models: Sequence[MetaModel]) -> dict[str, float]:
    """Mean magnitude of the coefficient of each input over linear models of the same inputs."""
    stacked = np.mean([np.abs(model.arrays["coefficients"]) for model in models], axis=0)
    return {name: float(weight) for name, weight in zip(models[0].inputs.names, stacked, strict=True)}


def roc_points(scores: FloatArray, positive: FloatArray) -> tuple[FloatArray, FloatArray]:
    """False and true positive rates (G + 1,) at every distinct score, from flagging nothing to flagging everything."""
    _, group = np.unique(-scores, return_inverse=True)
    hits, sizes = np.bincount(group, weights=positive), np.bincount(group)
    found, flagged = np.cumsum(hits), np.cumsum(sizes - hits)
    return np.r_[0.0, flagged / flagged[-1]], np.r_[0.0, found / found[-1]]


def _roc(scores: pd.Series[float], positive: BoolArray, name: str, colour: str) -> Line:
    x, y = roc_points(np.asarray(scores, dtype=np.float64), positive.astype(np.float64))
    return Line(name=name, x=x, y=y, colour=colour)


def _diagonal(name: str) -> Line:
    ends = np.array([0.0, 1.0])
    return Line(name=name, x=ends, y=ends, colour=GREY, dotted=True)


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A figure and what it means.

    Attributes:
        title: what it is about.
        value: the figure.
        interval: its interval, or why there is none.
        text: what it means.
    """

    title: str
    value: str
    interval: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A comparison of the meta model with another score.

    Attributes:
        label: what it is about.
        kind: the outcome.
        verdict: the same in words.
        text: the comparison as a sentence.
    """

    label: str
    kind: str
    verdict: str
    text: str


VERDICTS: Mapping[Outcome, str] = {
    "better": "better",
    "ahead": "ahead of those computed",
    "mixed": "better in the mean, worse on some",
    "open": "not shown",
    "worse": "worse",
}


def headlines(records: Records) -> Iterator[Headline]:
    """The figures to read first: misclassification, then the OOD sets or groups of them."""
    area = records.get(MISCLASSIFICATION, IN_DIST_ONLY, TEST, "chosen")
    if area is not None:
        wrong, right = area.n_positive, area.n - area.n_positive
        few = f" Only {wrong} are wrong, so the interval is wide." if wrong < FEW_SAMPLES else ""
        yield Headline(
            title="Wrong predictions",
            value=_number(area),
            interval=f"AUROC ({_interval(area)})",
            text="Of a wrong and a right prediction, the meta model finds the wrong one more suspicious "
            f"{_share(area)} of the time ({wrong} wrong, {right} right).{few}",
        )
    for protocol in records.protocols("ood")[:1]:
        groups = records.groups(protocol)
        sets = {dataset: f"OOD: {dataset}" for dataset in records.datasets("ood", protocol)}
        for dataset, title in ({f"{group} (mean)": _group_title(group) for group in groups} or sets).items():
            area = records.get("ood", protocol, dataset, "chosen")
            if area is None:
                continue
            pooled = records.get("ood", protocol, f"{dataset.removesuffix(' (mean)')} (pooled)", "chosen")
            is_pooled = pooled is not None and (pooled.low, pooled.high) != (area.low, area.high)  # more than one set
            text = (
                f"Of an OOD and an in-distribution sample, the meta model finds the OOD one more suspicious "
                f"{_share(area)} of the time, {HOW[protocol]}."
            )
            if pooled is not None and is_pooled:
                text += f" Pooled over all samples: {_number(pooled)} ({_interval(pooled)})."
            mean = "mean " if is_pooled else ""
            yield Headline(title=title, value=_number(area), interval=f"{mean}AUROC ({_interval(area)})", text=text)


def gains(found: Sequence[Verdict]) -> list[Gain]:
    """What the verdicts say in words; those without a comparison are left out."""
    return [_gain(verdict) for verdict in found if verdict.gain is not None and verdict.gain.low is not None]


def _gain(verdict: Verdict) -> Gain:
    compared = {
        f"{verdict.best}, the best baseline on these samples": verdict.gain,
        "score_lr, a logistic regression on all scores without gradients": verdict.by_gradients,
    }
    text = "; over ".join(
        f"{name}, {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
        for name, gain in compared.items()
        if gain is not None and gain.value is not None and gain.low is not None
    )
    if verdict.area.task == MISCLASSIFICATION:
        label = "Wrong predictions"
    else:
        is_group = verdict.area.dataset != verdict.what
        label = _group_title(verdict.what) if is_group else f"OOD: {verdict.what}"
    return Gain(
        label=label,
        kind=verdict.outcome,
        verdict=VERDICTS[verdict.outcome],
        text=f"AUROC gained over {text}. The meta model is {verdict.sentence}.",
    )


def _group_title(group: str) -> str:
    return "All OOD sets" if group == "all" else f"{group.capitalize()} OOD"


def _number(record: Record) -> str:
    return f"{record.value:.3f}"


def _share(record: Record) -> str:
    return f"{100 * record.value:.1f} %" if record.value is not None else "-"


def _interval(record: Record) -> str:
    """The 95 % interval of a figure, or that there is none."""
    return "no interval" if record.low is None else f"{record.low:.3f} to {record.high:.3f}"


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


def area_tables(records: Records) -> list[ScoreTable]:
    """AUROCs by data set and score, with DeLong intervals, one table for each protocol."""
    tables = []
    for task in (MISCLASSIFICATION, "shifted", "ood"):
        for place, protocol in enumerate(records.protocols(task)):
            scores = records.scores(task, protocol)
            names = [*records.datasets(task, protocol), *(f"{each} (mean)" for each in records.groups(protocol))]
            rows = []
            for name in names if task == "ood" else records.datasets(task, protocol):
                areas = [records.get(task, protocol, name, score) for score in scores]
                accuracy = records.get(task, protocol, name, CLASSIFIER, "accuracy")
                counts = next((f"{area.n_positive} of {area.n}" for area in areas if area is not None), "")
                if accuracy is not None:
                    counts += f", accuracy {_number(accuracy)}"
                best = max((area.value for area in areas if area is not None and area.value is not None), default=None)
                rows.append((name, counts, [_cell(area, best=best) for area in areas]))
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


def detail_tables(records: Records) -> list[ScoreTable]:
    """The other figures of merit of each data set of the headlines, a row for each score."""
    tables = []
    for task in (MISCLASSIFICATION, "ood"):
        for protocol in records.protocols(task)[:1]:
            metrics = METRICS | (SELECTIVE if task == MISCLASSIFICATION else {})
            for dataset in records.datasets(task, protocol):
                rows = []
                for score in records.scores(task, protocol):
                    found = [records.get(task, protocol, dataset, score, metric) for metric in metrics]
                    rows.append((score, "", [_cell(each) for each in found]))
                meta = records.get(task, protocol, dataset, "chosen")
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


def _cell(record: Record | None, *, best: float | None = None) -> Cell:
    if record is None:
        return Cell(text="-")
    below = "" if record.low is None else _interval(record)
    return Cell(text=_number(record), below=below, best=best is not None and record.value == best)
