"""Pages: what the reports of all rooms share, and the report of an evaluation.

In come plots as plain descriptions (`plots`, in the colours of `palette`) and texts; out come PNG and SVG files
(`drawing`), interactive figures (`interactive`), small images (`thumbnails`) and pages that need nothing but a browser
(`page`). `evaluation` has the report that `gradscore evaluate` writes. Everything that draws needs the extra `report`.
"""

from __future__ import annotations

from .evaluation import ReportFiles, write_report
from .page import check_packages, render, write_page, write_plots
from .palette import GREY, PALETTE, colour
from .plots import (
    Curve,
    Curves,
    HeatMap,
    Histograms,
    LayerLine,
    LayerProfile,
    Plot,
    TimeLine,
    TimeRow,
    TimeRows,
    file_name,
    histograms,
    subsampled,
)
from .thumbnails import data_uri

__all__ = [
    "GREY",
    "PALETTE",
    "Curve",
    "Curves",
    "HeatMap",
    "Histograms",
    "LayerLine",
    "LayerProfile",
    "Plot",
    "ReportFiles",
    "TimeLine",
    "TimeRow",
    "TimeRows",
    "check_packages",
    "colour",
    "data_uri",
    "file_name",
    "histograms",
    "render",
    "subsampled",
    "write_page",
    "write_plots",
    "write_report",
]
