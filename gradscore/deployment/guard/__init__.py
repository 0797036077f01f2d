"""The gate: is a run still as good as the expected figures that were committed?

In come a run folder and expected figures (`expected`); out comes a report of gates (`check`), in several forms
(`outputs`). `noninferiority` compares rates and AUROCs with their uncertainty, `drift` the features of a few samples,
and `gates` says what passes. `missing` looks for samples of the expected figures that are gone, and `sources` whether
the run is still of its model and its data.
"""

from __future__ import annotations

from .check import CheckReport, check_config, check_run
from .expected import Expected, Policy, make_expected, read_expected, write_expected
from .gates import Gate
from .outputs import gate_cells, to_annotations, to_json, to_junit, to_markdown
from .sources import Sources

__all__ = [
    "CheckReport",
    "Expected",
    "Gate",
    "Policy",
    "Sources",
    "check_config",
    "check_run",
    "gate_cells",
    "make_expected",
    "read_expected",
    "to_annotations",
    "to_json",
    "to_junit",
    "to_markdown",
    "write_expected",
]
