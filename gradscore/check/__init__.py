"""Is a run still as good as the expected figures?

In come a run folder and expected figures (`expected`); out comes a report of tests (`comparison`), in several forms.
`differences` compares AUROCs and rates with their uncertainty and judges them by a margin, and looks for features that
moved.
"""

from __future__ import annotations

from .comparison import (
    CheckReport,
    CheckTest,
    cells_of,
    check_run,
    to_annotations,
    to_json,
    to_junit,
    to_markdown,
)
from .expected import ExpectedFigures, Policy, Sources, make_expected, read_expected, write_expected

__all__ = [
    "CheckReport",
    "CheckTest",
    "ExpectedFigures",
    "Policy",
    "Sources",
    "cells_of",
    "check_run",
    "make_expected",
    "read_expected",
    "to_annotations",
    "to_json",
    "to_junit",
    "to_markdown",
    "write_expected",
]
