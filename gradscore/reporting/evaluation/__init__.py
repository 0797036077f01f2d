"""The report of a run: one HTML page that needs nothing else, the same in Markdown, and its plots as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...store import RunFolder, changing
from ..page import check_packages

if TYPE_CHECKING:
    from ...data import Pixels
    from ...evaluation import EvaluationReport

    ThumbnailOf = Callable[[str, str], Pixels | None]

__all__ = ["ReportFiles", "write_report"]


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


def write_report(run: RunFolder, evaluation: EvaluationReport, *, thumbnail: ThumbnailOf | None = None) -> ReportFiles:
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
    from .page import HTML, MARKDOWN, PLOTS, write_files  # imports those packages

    with changing(run.path, [f"{run.evaluation_path.name}/{name}" for name in (HTML, MARKDOWN, PLOTS)]):
        return write_files(run, evaluation, thumbnail)
