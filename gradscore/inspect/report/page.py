"""The page of an inspection, which needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ...evaluation.report.page import script_json
from ...files import write_text
from ..run import Inspection
from .contents import Section
from .drawings import draw
from .interactive import figure

TEMPLATES = Path(__file__).parent / "templates"


def write_page(
    sections: Sequence[Section], folder: Path, *, name: str, inspection: Inspection | None
) -> tuple[Path, list[Path]]:
    """Writes `report.html` and `plots/` to a folder.

    Args:
        sections: the plots.
        folder: where the files go.
        name: the heading.
        inspection: what was found; None for a page about checkpoints alone.

    Returns:
        The page, and the PNG and SVG files.
    """
    plots = [plot for section in sections for plot in section.plots]
    drawn = [path for plot in plots for path in draw(plot, folder / "plots")]
    for path in {*(folder / "plots").glob("*.png"), *(folder / "plots").glob("*.svg")} - set(drawn):
        path.unlink()  # of groups that are not inspected any more
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = folder / "report.html"
    text = environment.get_template("inspect.html.jinja").render(
        name=name,
        samples=inspection.samples if inspection else {},
        findings=inspection.findings if inspection else [],
        verdict=inspection.verdict if inspection else "",
        scope=inspection.scope if inspection else "",
        notices=inspection.notices if inspection else [],
        sections=sections,
        version=version("gradscore"),
        figures=script_json({plot.name: figure(plot) for plot in plots}),
        plotly=Markup(get_plotlyjs()),
    )
    write_text(page, text)
    return page, drawn
