"""Decisions on new samples, and a gate for saved models.

In comes an evaluated run; out comes a bundle (`bundling`, `bundle`, in an `archive`, with a `self_test`), thresholds
with a promise (`calibration`, by `conformal`), and from a bundle and new samples decisions (`scorer`, `streaming`).
`guard` compares a run with a baseline.
"""

from __future__ import annotations

from .bundle import Bundle, check_bundle_target, read_bundle, write_bundle
from .bundling import make_bundle
from .guard import (
    Baseline,
    CheckReport,
    Policy,
    check_run,
    gate_cells,
    make_baseline,
    read_baseline,
    to_annotations,
    to_json,
    to_junit,
    to_markdown,
    write_baseline,
)
from .scorer import Scorer
from .self_test import self_test_of
from .streaming import score_stream, table_writer

__all__ = [
    "Baseline",
    "Bundle",
    "CheckReport",
    "Policy",
    "Scorer",
    "check_bundle_target",
    "check_run",
    "gate_cells",
    "make_baseline",
    "make_bundle",
    "read_baseline",
    "read_bundle",
    "score_stream",
    "self_test_of",
    "table_writer",
    "to_annotations",
    "to_json",
    "to_junit",
    "to_markdown",
    "write_baseline",
    "write_bundle",
]
