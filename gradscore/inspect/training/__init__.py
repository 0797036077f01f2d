"""A picture of training: what an inspector saw, step by step and epoch by epoch, as a file.

In comes what a `logbook` keeps while a model trains; out comes a `record`, which is saved as one Parquet file and read
back. `training_report` makes a page of one or several of them.
"""

from __future__ import annotations

from .record import Drawing, Logbook, TrainingLoop, TrainingRecord, read_record

__all__ = ["Drawing", "Logbook", "TrainingLoop", "TrainingRecord", "read_record"]
