"""Puts a report together and writes its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...columns import feature_columns
from ...data import TEST
from ...evaluation import COMPARED, PAGES, EvaluationReport
from ...meta import Inputs, MetaModel
from ...store import RunFolder
from ...system import write_text
from ..page import render, write_page, write_plots
from ..plots import Plot
from . import ReportFiles
from .contents import group_shares, misclassification_plots, ood_plots, weight_plots
from .figures import IN_DIST_ONLY, MISCLASSIFICATION, Figures
from .gallery import ThumbnailOf, make_galleries
from .nearest import NearestOfBank
from .sentences import gains, headlines
from .tables import area_tables, detail_tables

MOST_PAIRS = 50
"""Near-duplicates listed; all of them are in a file beside the page."""

TEMPLATES = Path(__file__).parent / "templates"

HTML, MARKDOWN = PAGES
PLOTS = "plots"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Plots with a title, and a remark on them."""

    title: str
    remark: str = ""
    plots: list[Plot]


def write_files(run: RunFolder, evaluation: EvaluationReport, thumbnail: ThumbnailOf | None = None) -> ReportFiles:
    """Writes the page, the Markdown and the plots; see `write_report`."""
    figures = Figures(evaluation.records)
    inputs = Inputs.load(run.inputs_path)
    parts = _parts(run, evaluation, figures, inputs)
    plots = [plot for part in parts for plot in part.plots]
    folder = run.evaluation_path
    drawn = write_plots(plots, folder / PLOTS)
    content: dict[str, object] = {
        "name": "/".join(run.path.resolve().parts[-2:]),
        "facts": _facts(run),
        "headlines": headlines(figures) if evaluation.verdicts else [],
        "gains": gains(evaluation.verdicts),
        "no_verdict": evaluation.no_verdict,
        "compared": COMPARED,
        "not_compared": evaluation.not_compared if evaluation.verdicts else None,
        "warnings": evaluation.warnings,
        "notices": evaluation.notices,
        "near_duplicates": evaluation.near_duplicates.pairs[:MOST_PAIRS],
        "area_tables": area_tables(figures),
        "detail_tables": detail_tables(figures),
        "parts": parts,
        "version": run.manifest["versions"].get("gradscore", ""),
    }
    html, markdown = folder / HTML, folder / MARKDOWN
    write_text(markdown, render(TEMPLATES / "report.md.jinja", content))
    content["galleries"] = make_galleries(
        evaluation.score_file,
        figures,
        run.config,
        nearest=NearestOfBank(run, inputs),
        thumbnail=thumbnail,
        class_names=run.class_names,
        code=run.named_data_code(),
    )
    write_page(html, TEMPLATES / "report.html.jinja", content, plots)
    return ReportFiles(html=html, markdown=markdown, plots=drawn)


def _parts(run: RunFolder, evaluation: EvaluationReport, figures: Figures, inputs: Inputs) -> list[Part]:
    """The plots of the report in parts; none that is empty."""
    sources = {"misclassification": (MISCLASSIFICATION, IN_DIST_ONLY, "Weights, wrong predictions")}
    for protocol in figures.protocols("ood")[:1]:
        sources["ood"] = ("ood", protocol, f"Weights, OOD, {protocol}")
    heat_maps: list[Plot] = []
    remarks = []
    for name, (task, protocol, title) in sources.items():
        labels = [label for label in evaluation.models if label.startswith(f"{task}/{protocol}/")]
        models = [MetaModel.load(run.meta_path / label, inputs) for label in sorted(labels)]
        heat_maps += weight_plots(models, name=name, title=title)
        shares = group_shares(models)
        if shares:
            what = "wrong predictions" if task == MISCLASSIFICATION else "OOD samples"
            parts = ", ".join(f"{100 * share:.0f} % on {group}" for group, share in shares.items())
            remarks.append(f"For {what}, the total weight lies {parts}.")
    found = [
        Part(title="Wrong predictions", plots=list(misclassification_plots(evaluation.score_file, figures))),
        Part(title="Out of distribution", plots=list(ood_plots(evaluation.score_file, figures))),
        Part(title="What the meta model uses", remark=" ".join(remarks), plots=heat_maps),
    ]
    return [part for part in found if part.plots]


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    splits = run.manifest["splits"]
    test = splits[TEST]
    ood = [info for info in run.splits() if info.is_reported_ood]
    accuracy = f", accuracy {100 * test['accuracy']:.1f} %" if test["accuracy"] is not None else ""
    return [
        ("model", run.config.model.source.rpartition("/")[2]),
        ("reported on", f"{test['rows']} in-distribution samples{accuracy}"),
        ("OOD sets", ", ".join(f"{info.dataset_name} ({splits[info.name]['rows']})" for info in ood) or "none"),
        ("features", f"{len(feature_columns(run.columns(TEST)))} per sample"),
    ]
