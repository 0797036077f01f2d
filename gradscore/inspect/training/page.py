"""The page of training, which needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from ...reporting import write_page, write_plots
from .contents import training_sections
from .record import TrainingRecord

TEMPLATES = Path(__file__).parent / "templates"


def write_page_of(records: Sequence[TrainingRecord], path: Path, *, images: bool) -> list[Path]:
    """Writes a page, and its plots if `images`; see `write_training`."""
    sections = training_sections(records)
    plots = [plot for section in sections for plot in section.plots]
    drawn = write_plots(plots, path.with_name(f"{path.stem}-plots")) if images else []
    several = len(records) > 1
    findings = [
        f"{record.name}: {sentence}" if several else sentence
        for record in records
        for sentence in record.findings["sentence"]
    ]
    content: dict[str, object] = {
        "name": " and ".join(record.name for record in records),
        "facts": [(record.name if several else "seen", _extent(record)) for record in records],
        "findings": findings,
        "sections": sections,
        "version": version("gradscore"),
    }
    write_page(path, TEMPLATES / "training.html.jinja", content, plots)
    return drawn


def _extent(record: TrainingRecord) -> str:
    steps = int(record.steps["stop"].max()) if len(record.steps) else 0
    epochs = int(record.epochs["epoch"].max()) + 1 if len(record.epochs) else 0
    return f"{steps} steps, {epochs} epochs ended"
