"""Decisions on new samples, and a gate for saved models.

In comes an evaluated run; out comes a bundle (`bundling`, `bundle`, in an `archive`, with a `self_test`), thresholds
with a promise (`calibration`, by `conformal`), and from a bundle and new samples decisions (`scorer`, `streaming`,
`result_folder` for many files, `batch_scorer` for frameworks that hand batches over).
`reference` notes what a monitor compares with, and `watched` says what it watches of a sample.
`guard` compares a run with expected figures.
"""

from __future__ import annotations

from .batch_scorer import BatchScorer
from .bundle import Bundle, check_bundle_target, read_bundle, write_bundle
from .bundling import make_bundle
from .guard import (
    CheckReport,
    Expected,
    Policy,
    Sources,
    check_config,
    check_run,
    gate_cells,
    make_expected,
    read_expected,
    to_annotations,
    to_json,
    to_junit,
    to_markdown,
    write_expected,
)
from .reference import COPIES
from .result_folder import ResultFolder
from .scorer import Scorer
from .streaming import result_columns, score_file, score_stream, table_writer
from .watched import CLASS, CONFIDENCE, FEATURE, WATCHED, Reference, WatchedSet, is_stream, watched

__all__ = [
    "CLASS",
    "CONFIDENCE",
    "COPIES",
    "FEATURE",
    "WATCHED",
    "BatchScorer",
    "Bundle",
    "CheckReport",
    "Expected",
    "Policy",
    "Reference",
    "ResultFolder",
    "Scorer",
    "Sources",
    "WatchedSet",
    "check_bundle_target",
    "check_config",
    "check_run",
    "gate_cells",
    "is_stream",
    "make_bundle",
    "make_expected",
    "read_bundle",
    "read_expected",
    "result_columns",
    "score_file",
    "score_stream",
    "table_writer",
    "to_annotations",
    "to_json",
    "to_junit",
    "to_markdown",
    "watched",
    "write_bundle",
    "write_expected",
]
