"""Decisions on new samples.

In comes an evaluated run; out comes a bundle (`bundling`, `bundle`, in an `archive`, with a `self_test`), thresholds
with a promise (`calibration`, by `conformal`), and from a bundle and new samples decisions (`scorer`, `streaming`,
`result_folder` for many files, `batch_scorer` for frameworks that hand batches over).
`reference` notes what a monitor compares with, and `watched` says what it watches of a sample.
"""

from __future__ import annotations

from .batch_scorer import BatchScorer
from .bundle import Bundle, check_bundle_target, read_bundle, write_bundle
from .bundling import make_bundle
from .choice import deployed_protocol
from .conformal import threshold
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
    "Reference",
    "ResultFolder",
    "Scorer",
    "WatchedSet",
    "check_bundle_target",
    "deployed_protocol",
    "is_stream",
    "make_bundle",
    "read_bundle",
    "result_columns",
    "score_file",
    "score_stream",
    "table_writer",
    "threshold",
    "watched",
    "write_bundle",
]
