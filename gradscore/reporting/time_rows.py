"""Values over the steps of training as Plotly figures, one row of axes for each layer; needs the extra `report`."""

from __future__ import annotations

from html import escape
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..system import FloatArray
from .plots import TimeLine, TimeRow, TimeRows, height_of

MARK = "#b45309"
"""Of a step at which something happened."""

GAP = 26
"""Pixels between rows, for the name of the next one."""


def time_rows(plot: TimeRows) -> go.Figure:
    """The figure; names in it are escaped."""
    count = len(plot.rows)
    gap = 0.0 if count == 1 else min(GAP / height_of(plot), 0.9 / (count - 1))
    made = make_subplots(rows=count, cols=1, shared_xaxes=True, vertical_spacing=gap)
    named: set[str] = set()
    for number, row in enumerate(plot.rows, 1):
        for line in row.lines:
            _add_bands(made, line, number, log=plot.log)
            _add_line(made, line, number, row=row.name, in_legend=line.name not in named)
            named.add(line.name)
        _name(made, row.name, number)
        for step in plot.marks:
            made.add_vline(x=float(step), line={"color": MARK, "width": 1, "dash": "dash"}, row=number, col=1)
    _set_axes(made, plot)
    made.update_layout(
        legend={"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 1, "yanchor": "top"},
        showlegend=True,
    )
    return made


def _add_bands(made: go.Figure, line: TimeLine, number: int, *, log: bool) -> None:
    for low, high in line.bands:
        for part in _stretches(low, high, log=log):
            made.add_scatter(
                x=_plain(line.x[part]) + _plain(line.x[part])[::-1],
                y=_plain(low[part]) + _plain(high[part])[::-1],
                fill="toself",
                fillcolor=_faint(line.colour),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                legendgroup=escape(line.name),
                showlegend=False,
                row=number,
                col=1,
            )


def _add_line(made: go.Figure, line: TimeLine, number: int, *, row: str, in_legend: bool) -> None:
    made.add_scatter(
        x=_plain(line.x),
        y=_plain(line.y),
        name=escape(line.name),
        legendgroup=escape(line.name),
        showlegend=in_legend,
        mode="lines+markers" if len(line.x) == 1 else "lines",
        line={"color": line.colour, "width": 1.5, "dash": "dot" if line.dotted else None},
        hovertemplate=f"{escape(row)}, %{{x}}: %{{y:.3g}}<extra>{escape(line.name)}</extra>",
        row=number,
        col=1,
    )


def _set_axes(made: go.Figure, plot: TimeRows) -> None:
    made.update_yaxes(automargin=True, zeroline=False, nticks=4, tickfont={"size": 10}, exponentformat="e")
    made.update_xaxes(zeroline=False)
    if plot.log:
        made.update_yaxes(type="log")
        for number, row in enumerate(plot.rows, 1):
            made.update_yaxes(dtick=_decades(row), row=number, col=1)
    if plot.ends is not None:
        made.update_xaxes(range=list(plot.ends))
    made.update_xaxes(title={"text": plot.x_label, "font": {"size": 13}}, row=len(plot.rows), col=1)


def _name(made: go.Figure, name: str, number: int) -> None:
    """The name of a row above its axes, on the left."""
    axis = "" if number == 1 else str(number)
    place: dict[str, Any] = {"xref": f"x{axis} domain", "yref": f"y{axis} domain", "x": 0, "y": 1}
    made.add_annotation(
        text=escape(name), xanchor="left", yanchor="bottom", showarrow=False, font={"size": 11}, **place
    )


def _decades(row: TimeRow) -> int | None:
    """Decades from one tick of a logarithmic axis to the next; None for less than one in all, where 2 and 5 help."""
    parts = [part for line in row.lines for part in (line.y, *(end for band in line.bands for end in band))]
    values = np.concatenate(parts) if parts else np.empty(0)
    values = values[np.isfinite(values) & (values > 0)]
    decades = float(np.log10(values.max()) - np.log10(values.min())) if len(values) else 0.0
    return max(1, ceil(decades / 3)) if decades >= 1 else None


def _stretches(low: FloatArray, high: FloatArray, *, log: bool) -> list[slice]:
    """Where a band has ends that can be drawn, two steps in a row at least."""
    fine = np.isfinite(low) & np.isfinite(high) & ((low > 0) | (not log))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], fine, [False]]).astype(np.int8)))
    return [slice(start, stop) for start, stop in edges.reshape(-1, 2).tolist() if stop - start > 1]


def _plain(values: FloatArray) -> list[float | None]:
    """Rounded numbers, None where there is no finite one."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"
