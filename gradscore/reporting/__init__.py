"""Pages: what the reports of an evaluation and of all tools share, and the report of an evaluation.

`plots` draws, `page` writes pages that need nothing but a browser, with the plots as PNG and SVG beside them.
`evaluation_report` is what `gradscore evaluate` writes: sentences and tables (`evaluation_text`), plots, and samples to
look at (`gallery`). Everything that draws needs the extra `report`.
"""

from __future__ import annotations

from .evaluation_report import ReportFiles, write_report
from .page import Part, check_packages, render, thumbnail, write_page
from .plots import (
    GREY,
    PALETTE,
    Line,
    Plot,
    colour,
    curves,
    file_name,
    heat_map,
    histograms,
    layer_profile,
    time_rows,
)

__all__ = [
    "GREY",
    "PALETTE",
    "Line",
    "Part",
    "Plot",
    "ReportFiles",
    "check_packages",
    "colour",
    "curves",
    "file_name",
    "heat_map",
    "histograms",
    "layer_profile",
    "render",
    "thumbnail",
    "time_rows",
    "write_page",
    "write_report",
]
