"""Puts a report together and writes its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ...files import write_text
from ...meta import MetaModel
from ...store import RunFolder
from ..run import EvaluationReport
from . import ReportFiles
from .contents import misclassification_plots, ood_plots, share_of_logits, weight_plots
from .drawings import draw
from .figures import IN_DIST_ONLY, MISCLASSIFICATION, Figures
from .gallery import make_galleries
from .interactive import figure
from .plots import Plot
from .sentences import gains, headlines
from .tables import area_tables, detail_tables

TEMPLATES = Path(__file__).parent / "templates"
_MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*[]<>|#"} | {"\n": " ", "\r": " "})


def write_files(run: RunFolder, evaluation: EvaluationReport) -> ReportFiles:
    """Writes the page, the Markdown and the plots; see `write_report`."""
    figures = Figures(evaluation.records)
    plots = _plots(run, evaluation, figures)
    folder = run.evaluation_path
    drawn = [path for part in plots for plot in part["plots"] for path in draw(plot, folder / "plots")]
    for path in {*(folder / "plots").glob("*.png"), *(folder / "plots").glob("*.svg")} - set(drawn):
        path.unlink()  # of data sets that are not reported any more
    content: dict[str, Any] = {
        "name": "/".join(run.path.resolve().parts[-2:]),
        "facts": _facts(run),
        "headlines": headlines(figures),
        "gains": gains(figures),
        "notices": evaluation.notices,
        "area_tables": area_tables(figures),
        "detail_tables": detail_tables(figures),
        "parts": plots,
        "version": run.manifest["versions"].get("gradscore", ""),
    }
    html, markdown = folder / "report.html", folder / "report.md"
    write_text(markdown, render("report.md.jinja", content))
    galleries = make_galleries(evaluation.scores, figures, run.config)
    interactive = {plot.name: figure(plot) for part in plots for plot in part["plots"]}
    content |= {"galleries": galleries, "figures": script_json(interactive), "plotly": Markup(get_plotlyjs())}
    write_text(html, render("report.html.jinja", content))
    return ReportFiles(html=html, markdown=markdown, plots=drawn)


def render(template: str, content: Mapping[str, Any]) -> str:
    """Fills a template; whatever goes into the page is escaped unless it is `Markup`."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = markdown_text
    return environment.get_template(template).render(content)


def markdown_text(value: object) -> str:
    """Text that Markdown shows as it stands, on one line."""
    return str(value).translate(_MARKDOWN_SIGNS)


def script_json(value: object) -> Markup:
    """JSON that can stand in a script element whatever its texts hold."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _plots(run: RunFolder, evaluation: EvaluationReport, figures: Figures) -> list[dict[str, Any]]:
    """The plots of the report in parts, each with a title and a remark."""
    found: list[tuple[str, str, list[Plot]]] = [
        ("Wrong predictions", "", list(misclassification_plots(evaluation.scores, figures))),
        ("Out of distribution", "", list(ood_plots(evaluation.scores, figures))),
    ]
    sources = {"misclassification": (MISCLASSIFICATION, IN_DIST_ONLY, "Weights, wrong predictions")}
    for protocol in figures.protocols("ood")[:1]:
        sources["ood"] = ("ood", protocol, f"Weights, OOD, {protocol}")
    heat_maps: list[Plot] = []
    remarks = []
    for name, (task, protocol, title) in sources.items():
        models = _models(run.meta_path / task / protocol)
        heat_maps += weight_plots(models, name=name, title=title)
        share = share_of_logits(models)
        if share is not None:
            what = "wrong predictions" if task == MISCLASSIFICATION else "OOD samples"
            remarks.append(f"For {what}, {100 * share:.0f} % of the total weight lies on scores of the logits.")
    found.append(("What the meta model uses", " ".join(remarks), heat_maps))
    return [{"title": title, "remark": remark, "plots": plots} for title, remark, plots in found if plots]


def _models(folder: Path) -> list[MetaModel]:
    return [MetaModel.load(path) for path in sorted(folder.glob("*")) if path.is_dir()]


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    splits = run.manifest["splits"]
    test = splits["in_dist.test"]
    ood = [info.ood_name or info.name for info in run.splits() if info.kind == "ood" and not info.auxiliary]
    accuracy = f", accuracy {100 * test['accuracy']:.1f} %" if test["accuracy"] is not None else ""
    return [
        ("model", run.config.model.source.rpartition("/")[2]),
        ("reported on", f"{test['rows']} in-distribution samples{accuracy}"),
        ("OOD sets", ", ".join(f"{name} ({splits[f'ood.{name}']['rows']})" for name in ood) or "none"),
        ("features", f"{run.manifest['feature_count']} per sample"),
    ]
