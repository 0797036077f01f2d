"""The page of an inspection, which needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...reporting import write_page, write_plots
from ..saved_model import Inspection
from .contents import Section

TEMPLATES = Path(__file__).parent / "templates"


def write_report(
    sections: Sequence[Section],
    folder: Path,
    *,
    name: str,
    inspection: Inspection | None,
    notices: Sequence[str] = (),
) -> tuple[Path, list[Path]]:
    """Writes `report.html` and `plots/` to a folder.

    Args:
        sections: the plots.
        folder: where the files go.
        name: the heading.
        inspection: what was found; None for a page about checkpoints alone.
        notices: what a reader of the plots should know, beside those of the inspection.

    Returns:
        The page, and the PNG and SVG files.
    """
    plots = [plot for section in sections for plot in section.plots]
    drawn = write_plots(plots, folder / "plots")
    page = folder / "report.html"
    content: dict[str, Any] = {
        "name": name,
        "facts": [(group, f"{count} samples") for group, count in inspection.samples.items()] if inspection else [],
        "findings": inspection.findings if inspection else [],
        "verdict": inspection.verdict if inspection else "",
        "scope": inspection.scope if inspection else "",
        "notices": [*(inspection.notices if inspection else []), *notices],
        "sections": sections,
        "version": version("gradscore"),
    }
    write_page(page, TEMPLATES / "inspect.html.jinja", content, plots)
    return page, drawn
