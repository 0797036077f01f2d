"""A picture of training: what an inspector saw, step by step and epoch by epoch, as a file and as a page.

In comes what a `logbook` keeps while a model trains; out come a `record`, which is saved as one Parquet file and read
back, and a page of one or several of them (`contents`, `page`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .record import Drawing, Logbook, TrainingLoop, TrainingRecord, read_record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Drawing", "Logbook", "TrainingLoop", "TrainingRecord", "read_record", "write_training"]


def write_training(records: Sequence[TrainingRecord], path: Path, *, images: bool = True) -> list[Path]:
    """Writes a page of one run, or of several beside each other.

    Args:
        records: the runs; of the same name, they are numbered.
        path: the page.
        images: also write every plot as PNG and SVG, to the folder `<name of the page>-plots`.

    Returns:
        The PNG and SVG files.

    Raises:
        MissingExtraError: the extra `report` is not installed.
    """
    from ...reporting import check_packages

    check_packages("page", "write it again")
    from .page import write_page_of  # imports those packages

    return write_page_of(_told_apart(records), path, images=images)


def _told_apart(records: Sequence[TrainingRecord]) -> list[TrainingRecord]:
    """Runs with names of their own."""
    found: list[TrainingRecord] = []
    for record in records:
        names, name, number = {each.name for each in found}, record.name, 1
        while name in names:
            number += 1
            name = f"{record.name} ({number})"
        found.append(replace(record, name=name))
    return found
