"""The files of a monitor: windows as JSON lines, figures for Prometheus, and a page with a timeline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OutputError
from ..reporting import GREY, Line, Part, Plot, ToolFiles, colour, time_rows, write_beside
from ..system import FloatArray, clear_page, write_text
from .changes import Change, Window
from .monitor import Monitor

TEMPLATE = Path(__file__).parent / "templates" / "monitor.html.jinja"
STATE, LINES, FIGURES, PAGE = "state.json", "windows.jsonl", "metrics.prom", "monitor.html"
FILES = (STATE, LINES, FIGURES, PAGE)

WINDOWS_SHOWN = 20
"""Windows whose samples are on the page, the last ones."""

HIGHEST = 100
"""The power of ten up to which e-values are drawn; no axis holds the largest."""


PREFIX = "gradscore_monitor_"


def write_monitor(monitor: Monitor, folder: str | Path, *, name: str = "monitor") -> ToolFiles:
    """Writes `windows.jsonl`, `metrics.prom` and, with the extra `report`, `monitor.html`.

    Args:
        monitor: what was watched.
        folder: where the files go; those of an earlier call are replaced.
        name: the heading of the page.

    Returns:
        The files: of the tables, the first has a line of JSON for each window, the second figures for Prometheus.

    Raises:
        OutputError: one cannot be written; the samples are in the state of the monitor, if it has a file of that.
    """
    folder, windows = Path(folder), monitor.windows
    lines, figures, html = folder / LINES, folder / FIGURES, folder / PAGE
    try:
        clear_page(html)
        write_text(lines, json_lines(windows, monitor.changes))
        write_text(figures, prometheus(windows, monitor.changes))
        return write_beside(
            [lines, figures], html, lambda: _page(monitor, name), template=TEMPLATE, again="monitor again"
        )
    except OutputError as error:
        if monitor.path is None:
            raise
        # Its advice is to run the same command again, which would count the samples twice.
        reason = getattr(error.__cause__, "strerror", None)
        what = f"{folder}: the page and the figures cannot be written: {reason}" if reason else str(error)
        raise OutputError(
            f"{what}. These samples are counted in {monitor.path}: do not give them again; mend that, and the next "
            "call writes all files, with the samples that follow"
        ) from error


def _page(monitor: Monitor, name: str) -> tuple[dict[str, object], list[Part]]:
    windows = monitor.windows
    plots = [*_estimated(windows), _drift(windows, monitor)] if windows else []
    samples = sum(window.samples for window in windows)
    content: dict[str, object] = {
        "name": name,
        "brand": "gradscore monitor",
        "facts": [("windows", len(windows)), ("of", f"{monitor.window} samples"), ("samples", samples)],
        "notices": monitor.notices,
        "changes": monitor.changes,
        "suspicious": {window.name: window.suspicious for window in windows},
        "alpha": monitor.alpha,
        "windows": windows[::-1],
        "shown": windows[: -WINDOWS_SHOWN - 1 : -1],
    }
    return content, [Part(title="Timeline", plots=plots)]


def _estimated(windows: Sequence[Window]) -> Iterator[Plot]:
    x = np.arange(1.0, len(windows) + 1)
    band = _values(windows, lambda window: window.low), _values(windows, lambda window: window.high)

    def line(name: str, number: int, of: Callable[[Window], float | None], **settings: Any) -> Line:
        return Line(name=name, colour=colour(number), x=x, y=_values(windows, of), **settings)

    rows = [
        (
            "accuracy",
            [
                line("estimated accuracy, 90 %", 0, lambda window: window.accuracy, bands=[band]),
                line("mean confidence", 1, lambda window: window.mean_confidence, dotted=True),
            ],
        ),
        ("rejected", [line("rejected", 2, lambda window: window.rejected)]),
        ("flagged as OOD", [line("flagged as OOD", 3, lambda window: window.ood)]),
    ]
    known = [(name, lines) for name, lines in rows if np.isfinite(lines[0].y).any()]
    if known:  # where no sample could be scored, there is nothing to show
        yield time_rows(
            known,
            name="shares",
            title="Estimated accuracy and rejections",
            caption="Shares of each window. Where the accuracy falls below what you can bear, label samples of that "
            "window. Without a band its interval is not known. Dashed: alarms.",
            x_label="window",
            marks=_marks(windows),
        )


def _drift(windows: Sequence[Window], monitor: Monitor) -> Plot:
    return time_rows(
        _evidence(windows, monitor),
        name="drift",
        title="Evidence of a change",
        caption="How much speaks for a change of each stream: the largest e-value within each window, times the share "
        "of alpha that the stream has. Where it crosses the dotted line, 1 / alpha, an alarm is raised: look at the "
        f"samples of that window below. What is above 1e{HIGHEST} is drawn there.",
        x_label="window",
        log=True,
        marks=_marks(windows),
    )


def _evidence(windows: Sequence[Window], monitor: Monitor) -> list[tuple[str, list[Line]]]:
    """For each stream the e-values of the windows, and the line at which an alarm is raised."""
    x = np.arange(1.0, len(windows) + 1)
    border = Line(name="alarm", colour=GREY, x=x, y=np.full(len(x), 1 / monitor.alpha), dotted=True)
    rows = []
    for stream in monitor.watched:
        powers = np.array([window.log10_e_values[stream] for window in windows], dtype=np.float64)
        values = 10 ** np.minimum(powers, HIGHEST)
        rows.append((stream, [Line(name="e-value", colour=colour(0), x=x, y=values), border]))
    return rows


def _values(windows: Sequence[Window], of: Callable[[Window], float | None]) -> FloatArray:
    found = [of(window) for window in windows]
    return np.array([np.nan if each is None else each for each in found], dtype=np.float64)


def _marks(windows: Sequence[Window]) -> list[float]:
    return [float(place) for place, window in enumerate(windows, 1) if window.alarms]


def json_lines(windows: Sequence[Window], changes: Sequence[Change]) -> str:
    """Lines of JSON, one for each window, in order, each with the sentences of the changes noticed in it."""
    said = [[each.sentence for each in changes if each.raised == window.name] for window in windows]
    return "".join(
        json.dumps({**asdict(window), "changes": sentences}, allow_nan=False, ensure_ascii=False) + "\n"
        for window, sentences in zip(windows, said, strict=True)
    )


def prometheus(windows: Sequence[Window], changes: Sequence[Change]) -> str:
    """Figures of the last complete window in the text format of Prometheus; those that are not known are left out.

    Args:
        windows: all of them; without a complete one, the last is taken.
        changes: all of them.

    Source: Prometheus, "Exposition formats", version 0.0.4.
    """
    samples = float(sum(window.samples for window in windows))
    figures: list[tuple[str, str, Mapping[str, float | None]]] = [
        ("samples_total", "Samples watched so far.", {"": samples}),
        ("changes_total", "Changes noticed so far.", {"": float(len(changes))}),
        ("change", "Alarms that speak for a change.", {each.sentence: float(len(each.alarms)) for each in changes}),
    ]
    if windows:
        last = next((window for window in reversed(windows) if window.complete), windows[-1])
        figures += [
            (
                "estimated_accuracy",
                "Estimated share of predictions of the last window that are right.",
                {"": last.accuracy},
            ),
            ("estimated_accuracy_low", "Lower end of its 90 % interval.", {"": last.low}),
            ("estimated_accuracy_high", "Upper end of its 90 % interval.", {"": last.high}),
            (
                "mean_confidence",
                "Mean of the largest softmax probability in the last window.",
                {"": last.mean_confidence},
            ),
            ("ood_share", "Share of the last window that is flagged as out of distribution.", {"": last.ood}),
            ("rejected_share", "Share of the last window that is rejected.", {"": last.rejected}),
            ("window_samples", "Samples of the last window.", {"": float(last.samples)}),
            (
                "window_not_scored",
                "Samples of the last window that could not be scored.",
                {"": float(last.not_scored)},
            ),
            (
                "log10_e_value",
                "Decimal logarithm of the largest e-value of a stream in the window; an alarm is raised at 1 / alpha.",
                last.log10_e_values,
            ),
        ]
    lines = []
    for name, means, values in figures:
        known = {text: value for text, value in values.items() if value is not None and math.isfinite(value)}
        if known:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {PREFIX}{name} {means}", f"# TYPE {PREFIX}{name} {kind}"]
        for text, value in known.items():
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            label = f'{{{"says" if name == "change" else "stream"}="{escaped}"}}' if text else ""
            lines.append(f"{PREFIX}{name}{label} {value!r}")
    return "".join(line + "\n" for line in lines)
