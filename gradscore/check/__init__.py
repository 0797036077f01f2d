"""Is a run still as good as the expected figures that were committed?

In come a run folder and expected figures (`expected`); out comes a report of tests (`comparison`), in several forms
(`outputs`). `differences` compares rates and AUROCs with their uncertainty and judges them by a margin (bounds of
`rates` are exact for few samples), and `changes` looks for features that moved and for samples that are gone.
"""

from __future__ import annotations

from .comparison import CheckReport, CheckTest, check_run
from .expected import ExpectedFigures, Policy, Sources, make_expected, read_expected, write_expected
from .outputs import cells_of, to_annotations, to_json, to_junit, to_markdown

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
