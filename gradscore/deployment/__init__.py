"""Decisions on new samples.

In comes an evaluated run; out comes a bundle (`bundling`, `bundle`, with a `self_test`) of `detectors` whose thresholds
keep a promise (by `conformal` calibration), and from a bundle and new samples decisions (`scorer`,
`batch_scorer` for frameworks that hand batches over), in files of `results`. `reference` is what a monitor compares
with.
"""

from __future__ import annotations

from .batch_scorer import BatchScorer
from .bundle import Bundle, check_bundle_target, read_bundle, write_bundle
from .bundling import make_bundle
from .conformal import threshold
from .detectors import deployed_protocol
from .reference import CLASS, CONFIDENCE, COPIES, FEATURE, WATCHED, Reference, WatchedSet, is_stream, watched
from .results import ResultFolder, table_writer
from .scorer import Scorer

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
    "table_writer",
    "threshold",
    "watched",
    "write_bundle",
]
