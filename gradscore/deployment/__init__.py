"""Decisions on new samples.

In comes an evaluated run; out comes a bundle (`bundle_making` makes it, of `deciding_scores`, and `bundle_file` is the
file) of detectors whose thresholds keep a promise (`calibration`), and from a bundle and new samples decisions
(`scorer`, after a `self_test`), in files of `results`; `raw_inputs` makes samples that a program has what it takes.
`known_sets` is what a monitor compares with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bundle_file import RIGHT, Bundle, check_bundle_target, read_bundle, write_bundle
from .calibration import DETECTORS, FalseAlarms, joint_false_alarms, neighbouring_levels, samples_needed, threshold
from .known_sets import (
    BUNDLE,
    CLASS,
    CONFIDENCE,
    COPIES,
    FEATURE,
    GRADIENT,
    WATCHED,
    KnownSet,
    KnownSets,
    is_stream,
    watched,
)
from .results import score_files, table_writer
from .scorer import Scorer

if TYPE_CHECKING:
    from .bundle_making import make_bundle


def __getattr__(name: str) -> Any:
    """Imports the making of bundles, and with it all of the evaluation, when it is first asked for."""
    if name == "make_bundle":
        from .bundle_making import make_bundle

        return make_bundle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
