"""Is a run still as good as the expected figures?

In come a run folder and expected figures (`expected`); out comes a report of tests (`comparison`).
`differences` compares AUROCs and rates with their uncertainty and judges them by a margin, and looks for features that
moved; `freshness` says whether the run is still of its model and data.
"""

from __future__ import annotations

from .comparison import CheckReport, CheckTest, check_junit_target, check_run, refusal_to_junit, to_junit
from .expected import ExpectedFigures, Policy, Sources, make_expected, read_expected, write_expected
