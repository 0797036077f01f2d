"""What a monitor found, for programs: JSON lines, and a text file for Prometheus."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from .windows import Alarm, Window

PREFIX = "gradscore_monitor_"


@dataclass(frozen=True)
class _Gauge:
    """A figure of Prometheus: its name, what it means, and its values by stream, or one under no name."""

    name: str
    means: str
    values: Mapping[str, float | None]


def json_lines(windows: Sequence[Window]) -> str:
    """One line of JSON for each window, in order."""
    return "".join(json.dumps(asdict(window), allow_nan=False, ensure_ascii=False) + "\n" for window in windows)


def prometheus(windows: Sequence[Window], alarms: Sequence[Alarm], streams: Sequence[str]) -> str:
    """Figures of the last complete window in the text format of Prometheus; those that are not known are left out.

    Args:
        windows: all of them; without a complete one, the last is taken.
        alarms: all of them.
        streams: what is watched.

    Source: Prometheus, "Exposition formats", version 0.0.4.
    """
    return "".join(line + "\n" for gauge in _gauges(windows, alarms, streams) for line in _lines(gauge))


def _gauges(windows: Sequence[Window], alarms: Sequence[Alarm], streams: Sequence[str]) -> list[_Gauge]:
    raised = {alarm.stream for alarm in alarms}
    samples = sum(window.samples for window in windows)
    gauges = [
        _Gauge("samples_total", "Samples watched so far.", {"": float(samples)}),
        _Gauge("alarm", "1 where an alarm stands.", {name: float(name in raised) for name in streams}),
    ]
    complete = [window for window in windows if window.complete] or list(windows)
    if not complete:
        return gauges
    last = complete[-1]
    shares = {
        "expected_accuracy": ("Share of predictions of the last window expected to be right.", last.accuracy),
        "expected_accuracy_low": ("Lower end of its 95 % interval.", last.low),
        "expected_accuracy_high": ("Upper end of its 95 % interval.", last.high),
        "mean_confidence": ("Mean of the largest softmax probability in the last window.", last.mean_confidence),
        "ood_share": ("Share of the last window that is flagged as out of distribution.", last.ood),
        "rejected_share": ("Share of the last window that is rejected.", last.rejected),
        "window_samples": ("Samples of the last window.", float(last.samples)),
        "window_not_scored": ("Samples of the last window that could not be scored.", float(last.not_scored)),
    }
    gauges += [_Gauge(name, means, {"": value}) for name, (means, value) in shares.items()]
    return [
        *gauges,
        _Gauge(
            "log10_e_value",
            "Decimal logarithm of the largest e-value of a stream in the window; an alarm is raised at 1 / alpha.",
            last.log10_e_values,
        ),
    ]


def _lines(gauge: _Gauge) -> Iterator[str]:
    known = {name: value for name, value in gauge.values.items() if value is not None and math.isfinite(value)}
    if known:
        kind = "counter" if gauge.name.endswith("_total") else "gauge"
        yield f"# HELP {PREFIX}{gauge.name} {gauge.means}"
        yield f"# TYPE {PREFIX}{gauge.name} {kind}"
    for name, value in known.items():
        label = f'{{stream="{_escaped(name)}"}}' if name else ""
        yield f"{PREFIX}{gauge.name}{label} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
