"""Watch a deployed model without labels: the accuracy to expect, and alarms when something changes.

In come a bundle and what a scorer says of new samples, in order; out come windows (`windows`) with the accuracy that is
to be expected (`accuracy`, by `terms` of each window), alarms by the evidence of a change (`streams`), and files of
both (`outputs`). What is known between two calls lies in one file (`state`). `monitor` brings them
together.
"""

from __future__ import annotations

from .accuracy import Expected, ExpectedAccuracy
from .monitor import ALPHA, Monitor
from .outputs import STATE, MonitorFiles, check_files, json_lines, prometheus, write_monitor
from .streams import Stream
from .windows import Alarm, Suspicious, Window, read_times

__all__ = [
    "ALPHA",
    "STATE",
    "Alarm",
    "Expected",
    "ExpectedAccuracy",
    "Monitor",
    "MonitorFiles",
    "Stream",
    "Suspicious",
    "Window",
    "check_files",
    "json_lines",
    "prometheus",
    "read_times",
    "write_monitor",
]
