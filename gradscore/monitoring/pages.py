"""The files of a monitor: windows as JSON lines, figures for Prometheus, and a page with a timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ..errors import MissingExtraError
from ..reporting import GREY, TimeLine, TimeRow, TimeRows, check_packages, write_page, write_plots
from ..reporting import colour as colour_of
from ..system import FloatArray, check_target, clear_page, write_text
from .monitor import Monitor
from .outputs import json_lines, prometheus
from .windows import Window

TEMPLATE = Path(__file__).parent / "templates" / "monitor.html.jinja"
STATE, LINES, FIGURES, PAGE = "state.json", "windows.jsonl", "metrics.prom", "monitor.html"

SHOWN = 20
"""Windows whose samples are on the page, the last ones."""

HIGHEST = 100
"""The power of ten up to which e-values are drawn; no axis holds the largest."""


@dataclass(frozen=True, kw_only=True)
class MonitorFiles:
    """What was written.

    Attributes:
        lines: a line of JSON for each window.
        figures: the last complete window for Prometheus.
        html: the page; None if a package that it needs is missing.
        notice: what is missing, and how to get it; empty if nothing is.
    """

    lines: Path
    figures: Path
    html: Path | None
    notice: str = ""


def check_files(folder: Path) -> None:
    """Makes sure that all files can be written, as far as that can be told before samples are counted.

    Raises:
        OutputError: one cannot.
    """
    for name in (STATE, LINES, FIGURES, PAGE):
        check_target(folder / name)


def write_monitor(monitor: Monitor, folder: str | Path, *, name: str = "monitor") -> MonitorFiles:
    """Writes `windows.jsonl`, `metrics.prom` and, with the extra `report`, `monitor.html` and its plots.

    Args:
        monitor: what was watched.
        folder: where the files go; those of an earlier call are replaced.
        name: the heading of the page.

    Returns:
        The files.

    Raises:
        OutputError: one cannot be written.
    """
    folder, windows = Path(folder), monitor.windows
    lines, figures, html = folder / LINES, folder / FIGURES, folder / PAGE
    clear_page(html)
    write_text(lines, json_lines(windows))
    write_text(figures, prometheus(windows, monitor.alarms, monitor.watched))
    try:
        check_packages("page", "monitor again")
    except MissingExtraError as error:
        return MonitorFiles(lines=lines, figures=figures, html=None, notice=str(error))
    # Where no sample could be scored, there is nothing to expect.
    plots = [plot for plot in (_expected(windows), _drift(windows, monitor)) if plot.rows] if windows else []
    write_plots(plots, folder / "plots")
    content = {
        "name": name,
        "facts": _facts(monitor, windows),
        "notices": monitor.notices,
        "alarms": monitor.alarms,
        "alpha": monitor.alpha,
        "plots": plots,
        "windows": windows[::-1],
        "shown": windows[: -SHOWN - 1 : -1],
        "version": version("gradscore"),
    }
    write_page(html, TEMPLATE, content, plots)
    return MonitorFiles(lines=lines, figures=figures, html=html)


def _facts(monitor: Monitor, windows: Sequence[Window]) -> list[tuple[str, object]]:
    by = f"{monitor.by} samples" if isinstance(monitor.by, int) else monitor.by
    samples = sum(window.samples for window in windows)
    return [("windows", len(windows)), ("of", f"one {by}" if by in ("day", "week") else by), ("samples", samples)]


def _expected(windows: Sequence[Window]) -> TimeRows:
    x = np.arange(1.0, len(windows) + 1)

    def line(name: str, place: int, of: Callable[[Window], float | None], *, dotted: bool = False) -> TimeLine:
        return TimeLine(name=name, colour=colour_of(place), x=x, y=_values(windows, of), dotted=dotted)

    accuracy = TimeLine(
        name="expected accuracy, 95 %",
        colour=colour_of(0),
        x=x,
        y=_values(windows, lambda window: window.accuracy),
        bands=[(_values(windows, lambda window: window.low), _values(windows, lambda window: window.high))],
    )
    rows = [
        TimeRow(
            name="accuracy",
            lines=[accuracy, line("mean confidence", 1, lambda each: each.mean_confidence, dotted=True)],
        ),
        TimeRow(name="rejected", lines=[line("rejected", 2, lambda window: window.rejected)]),
        TimeRow(name="flagged as OOD", lines=[line("flagged as OOD", 3, lambda window: window.ood)]),
    ]
    return TimeRows(
        name="expected",
        title="What to expect",
        caption="Shares of each window; where the band is missing, the interval is not known. Dashed across: alarms.",
        x_label="window",
        rows=[row for row in rows if np.isfinite(row.lines[0].y).any()],
        marks=_marks(windows),
    )


def _drift(windows: Sequence[Window], monitor: Monitor) -> TimeRows:
    x = np.arange(1.0, len(windows) + 1)
    border = TimeLine(name="alarm", colour=GREY, x=x, y=np.full(len(x), 1 / monitor.alpha), dotted=True)

    def evidence(stream: str) -> TimeLine:
        powers = _values(windows, lambda window: window.log10_e_values[stream])
        return TimeLine(name="e-value", colour=colour_of(0), x=x, y=10 ** np.minimum(powers, HIGHEST))

    return TimeRows(
        name="drift",
        title="Evidence of a change",
        caption="E-values: what a game against the p-values of each stream has won, times the share of alpha that the "
        "stream has; the largest within each window. It cannot be won without a change, and an alarm is raised at the "
        f"dotted line, 1 / alpha. What is above 1e{HIGHEST} is drawn there.",
        x_label="window",
        rows=[TimeRow(name=stream, lines=[evidence(stream), border]) for stream in monitor.watched],
        log=True,
        marks=_marks(windows),
    )


def _values(windows: Sequence[Window], of: Callable[[Window], float | None]) -> FloatArray:
    found = [of(window) for window in windows]
    return np.array([np.nan if each is None else each for each in found], dtype=np.float64)


def _marks(windows: Sequence[Window]) -> list[float]:
    return [float(place) for place, window in enumerate(windows, 1) if window.alarms]
