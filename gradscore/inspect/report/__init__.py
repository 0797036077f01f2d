"""The report of an inspection: tables as Parquet, plots as PNG and SVG, and one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import MissingExtraError
from ...reporting import check_packages
from ...system import clear_page, replacing

if TYPE_CHECKING:
    import pandas as pd

    from ..saved_model import Inspection

__all__ = ["InspectionFiles", "write_inspection", "write_moves"]


@dataclass(frozen=True, kw_only=True)
class InspectionFiles:
    """What was written.

    Attributes:
        tables: Parquet files.
        html: the page; None if a package that it needs is missing.
        plots: PNG and SVG of every plot.
        notice: what is missing, and how to get it; empty if nothing is.
    """

    tables: list[Path]
    html: Path | None
    plots: list[Path]
    notice: str = ""


def write_inspection(inspection: Inspection, folder: Path, *, name: str) -> InspectionFiles:
    """Writes the tables of an inspection, its plots and its page.

    Args:
        inspection: what was found.
        folder: where the files go.
        name: of the model, for the heading.

    Returns:
        The files.
    """
    from ..saved_model import TABLES, write_tables

    clear_page(folder / "report.html", *(folder / name for name in TABLES))
    tables = write_tables(inspection, folder)
    try:
        check_packages("page", "inspect again")
    except MissingExtraError as error:
        return InspectionFiles(tables=tables, html=None, plots=[], notice=str(error))
    from .contents import inspection_sections  # imports those packages
    from .page import write_report

    html, plots = write_report(inspection_sections(inspection), folder, name=name, inspection=inspection)
    return InspectionFiles(tables=tables, html=html, plots=plots)


def write_moves(moves: pd.DataFrame, folder: Path, *, name: str, notices: Sequence[str] = ()) -> InspectionFiles:
    """Writes the table of how a model moved between checkpoints, its plots and its page; see `write_inspection`."""
    table = folder / "checkpoints.parquet"
    clear_page(folder / "report.html", table)
    with replacing(table) as temporary:
        moves.to_parquet(temporary, index=False)
    try:
        check_packages("page", "inspect again")
    except MissingExtraError as error:
        return InspectionFiles(tables=[table], html=None, plots=[], notice=str(error))
    from .contents import moves_sections
    from .page import write_report

    html, plots = write_report(moves_sections(moves), folder, name=name, inspection=None, notices=notices)
    return InspectionFiles(tables=[table], html=html, plots=plots)
