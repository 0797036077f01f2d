"""The gate: is a run still as good as a committed baseline says?

In come a run folder and a baseline (`baseline`); out comes a report of gates (`check`), in several forms (`outputs`).
`noninferiority` compares rates and AUROCs with their uncertainty, `drift` the features of a few samples, and `gates`
says what passes. `missing` looks for samples of the baseline that are gone, and `sources` whether the run is still of
its model and its data.
"""

from __future__ import annotations

from .baseline import Baseline, Policy, make_baseline, read_baseline, write_baseline
from .check import CheckReport, check_config, check_run
from .gates import Gate
from .outputs import gate_cells, to_annotations, to_json, to_junit, to_markdown
from .sources import Sources

__all__ = [
    "Baseline",
    "CheckReport",
    "Gate",
    "Policy",
    "Sources",
    "check_config",
    "check_run",
    "gate_cells",
    "make_baseline",
    "read_baseline",
    "to_annotations",
    "to_json",
    "to_junit",
    "to_markdown",
    "write_baseline",
]
