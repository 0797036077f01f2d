"""Watch a deployed model without labels: the estimated accuracy, and alarms when something changes.

In come a bundle and what a scorer says of new samples, in order; out come windows and what changed in them (`changes`),
with the estimated accuracy (`accuracy`) and the evidence of `streams`, and files of them
(`monitor_files`). `monitor` brings them together, and keeps what is known between two calls in one file.
"""

from __future__ import annotations

from .accuracy import EstimatedAccuracy
from .changes import Alarm, Change, Window
from .monitor import Monitor
from .monitor_files import FILES, STATE, write_monitor
from .streams import Stream
