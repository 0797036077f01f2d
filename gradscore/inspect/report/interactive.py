"""Plots as Plotly figures, in colours that the page sets for light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ...evaluation.report.interactive import LEGEND, plain_data
from .plots import Heat, Line, Plot, Profile, height_of


def figure(plot: Plot) -> dict[str, Any]:
    """The figure as plain data for `Plotly.newPlot`; names in it are escaped, because Plotly renders tags."""
    made = _profile(plot) if isinstance(plot, Profile) else _heat(plot)
    return plain_data(made, height=height_of(plot))


def _profile(plot: Profile) -> go.Figure:
    made = go.Figure()
    places = list(range(len(plot.layers)))
    names = [escape(name) for name in plot.layers]
    for line in plot.lines:
        group = escape(line.name)
        for corners in _bands(line, places, log=plot.log):
            made.add_scatter(
                x=corners[0],
                y=corners[1],
                fill="toself",
                fillcolor=_faint(line.colour),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                legendgroup=group,
                showlegend=False,
            )
        made.add_scatter(
            x=_plain(line.middle),
            y=places,
            name=group,
            legendgroup=group,
            mode="lines+markers",
            line={"color": line.colour, "width": 1.6},
            marker={"size": 5},
            text=[f"{name}: {_range(line, place)}" for place, name in enumerate(names)],
            hovertemplate="%{text}<extra>" + group + "</extra>",
        )
    ends = [-0.6, len(places) - 0.4]
    made.update_yaxes(tickvals=places, ticktext=names, range=ends[::-1], automargin=True, zeroline=False)
    made.update_yaxes(tickfont={"size": 11})
    made.update_xaxes(title={"text": plot.x_label, "font": {"size": 13}}, automargin=True, zeroline=False)
    if plot.log:
        spread = _decades(plot)
        step = "D2" if spread < 2 else 1 if spread < 7 else 2
        made.update_xaxes(type="log", exponentformat="e" if spread < 2 else "power", dtick=step, tickfont={"size": 11})
    made.update_layout(legend=LEGEND, showlegend=True)
    return made


def _bands(line: Line, places: list[int], *, log: bool) -> list[tuple[list[float], list[int]]]:
    """Corners of the range about a line, one polygon for each stretch of layers that have one."""
    if line.low is None or line.high is None:
        return []
    stretches: list[list[int]] = [[]]
    for place in places:
        if np.isfinite(line.low[place]) and np.isfinite(line.high[place]) and not (log and line.low[place] <= 0):
            stretches[-1].append(place)
        elif stretches[-1]:
            stretches.append([])
    return [
        (_numbers(line.low[part]) + _numbers(line.high[part])[::-1], part + part[::-1])
        for part in stretches
        if len(part) > 1
    ]


def _heat(plot: Heat) -> go.Figure:
    numeric = isinstance(plot.rows, np.ndarray)
    rows: Any = _plain(plot.rows) if isinstance(plot.rows, np.ndarray) else [escape(name) for name in plot.rows]
    cells = [[None if np.isnan(value) else round(float(value), 2) for value in row] for row in plot.values]
    labels = [escape(text) for text in plot.hover] or [""] * len(plot.rows)
    made = go.Figure(
        go.Heatmap(
            z=cells,
            x=_plain(plot.x),
            y=rows,
            colorscale="Viridis",
            zmax=0,
            zmin=plot.lowest,
            colorbar={
                "thickness": 10,
                "outlinewidth": 0,
                "tickfont": {"size": 11},
                "title": {"text": "share, log10", "side": "right", "font": {"size": 11}},
            },
            text=[[label] * len(plot.x) for label in labels] if plot.hover else None,
            hovertemplate="%{y}: %{x:.3g}<br>share 10^%{z}" + ("<br>%{text}" if plot.hover else "") + "<extra></extra>",
            hoverongaps=False,
        )
    )
    made.update_xaxes(title={"text": plot.x_label, "font": {"size": 13}}, automargin=True, showgrid=False)
    made.update_yaxes(automargin=True, showgrid=False, tickfont={"size": 11})
    if numeric:
        made.update_yaxes(title={"text": plot.y_label, "font": {"size": 13}})
    else:
        made.update_yaxes(autorange="reversed", type="category", tickmode="linear", ticks="")
    return made


def _decades(plot: Profile) -> float:
    values = np.concatenate([line.middle for line in plot.lines])
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.log10(values.max() / values.min())) if len(values) else 0.0


def _range(line: Line, place: int) -> str:
    text = f"{line.middle[place]:.3g}"
    if line.low is None or line.high is None or not np.isfinite(line.low[place]):
        return text
    return f"{text} ({line.low[place]:.3g} to {line.high[place]:.3g})"


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def _numbers(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
