"""Plots as Plotly figures; importing this module needs the extra `report`.

The page sets the colours of text and grid, for light and dark.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..system import FloatArray
from .plots import (
    MANY_ROWS,
    Axis,
    Curves,
    HeatMap,
    Histograms,
    LayerLine,
    LayerProfile,
    Plot,
    TimeRows,
    height_of,
    is_numbers,
)
from .time_rows import time_rows

MARGIN = {"l": 56, "r": 14, "t": 10, "b": 48}
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": {"size": 12}}


def figure(plot: Plot) -> dict[str, Any]:
    """The figure as plain data for `Plotly.newPlot`; names in it are escaped, because Plotly renders tags."""
    match plot:
        case Curves():
            made = _curves(plot)
        case Histograms():
            made = _histograms(plot)
        case HeatMap():
            made = _heat_map(plot)
        case LayerProfile():
            made = _layer_profile(plot)
        case TimeRows():
            made = time_rows(plot)
    made.update_layout(
        template="none",
        height=height_of(plot),
        margin=MARGIN,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    plain: dict[str, Any] = json.loads(made.to_json())
    return plain


def _curves(plot: Curves) -> go.Figure:
    made = go.Figure()
    for curve in plot.curves:
        points = curve.sizes is not None
        made.add_scatter(
            x=_plain(curve.x),
            y=_plain(curve.y),
            name=escape(curve.name),
            mode="markers" if points else "lines",
            line={
                "color": curve.colour,
                "width": 1.4 if curve.dotted else 2.4,
                "dash": "dot" if curve.dotted else None,
            },
            marker={"size": _diameters(curve.sizes)} if curve.sizes is not None else None,
            text=[f"{int(size)} samples" for size in curve.sizes] if curve.sizes is not None else None,
            hovertemplate="%{x:.3f}, %{y:.3f}"
            + (" (%{text})" if points else "")
            + f"<extra>{escape(curve.name)}</extra>",
        )
    span = {"range": [-0.01, 1.01], "constrain": "domain"} if plot.unit_square else {"rangemode": "tozero"}
    made.update_xaxes(title=_title(plot.x_label), automargin=True, **span)
    made.update_yaxes(title=_title(plot.y_label), automargin=True, **span)
    made.update_layout(legend=LEGEND, showlegend=True)
    return made


def _histograms(plot: Histograms) -> go.Figure:
    made = go.Figure()
    for name, density, colour in plot.densities:
        made.add_scatter(
            x=_plain(np.repeat(plot.edges, 2)[1:-1]),
            y=_plain(np.repeat(density, 2)),
            name=escape(name),
            mode="lines",
            line={"color": colour, "width": 1.5},
            fill="tozeroy",
            hovertemplate="%{x:.3g}: %{y:.3g}<extra>" + escape(name) + "</extra>",
        )
    made.update_xaxes(title=_title(plot.x_label), automargin=True, zeroline=False)
    made.update_yaxes(title=_title("density"), automargin=True, rangemode="tozero")
    made.update_layout(legend=LEGEND, showlegend=True)
    return made


def _heat_map(plot: HeatMap) -> go.Figure:
    named = not is_numbers(plot.rows) and not is_numbers(plot.columns)
    labels = [escape(text) for text in plot.hover]
    made = go.Figure(
        go.Heatmap(
            z=[_plain(row, digits=4) for row in plot.values],
            x=_labels(plot.columns),
            y=_labels(plot.rows),
            colorscale="Viridis",
            zmin=plot.low,
            zmax=plot.high,
            xgap=int(named),
            ygap=int(named),
            colorbar={
                "thickness": 10,
                "outlinewidth": 0,
                "tickfont": {"size": 11},
                "title": {"text": escape(plot.unit), "side": "right", "font": {"size": 11}},
            },
            text=[[label] * len(plot.columns) for label in labels] if labels else None,
            hovertemplate="%{y}"
            + ("<br>%{x}" if named else ": %{x:.3g}")
            + "<br>%{z}"
            + (f" ({escape(plot.unit)})" if plot.unit else "")
            + ("<br>%{text}" if labels else "")
            + "<extra></extra>",
            hoverongaps=False,
        )
    )
    made.update_xaxes(automargin=True, showgrid=False)
    made.update_yaxes(automargin=True, showgrid=False)
    if is_numbers(plot.columns):
        made.update_xaxes(title=_title(plot.x_label))
    else:
        made.update_xaxes(tickangle=-60, type="category", ticks="", tickfont={"size": 11})
    if is_numbers(plot.rows):
        made.update_yaxes(title=_title(plot.y_label))
    else:
        size = 11 if len(plot.rows) <= MANY_ROWS else 10
        made.update_yaxes(autorange="reversed", type="category", tickmode="linear", ticks="", tickfont={"size": size})
    return made


def _layer_profile(plot: LayerProfile) -> go.Figure:
    made = go.Figure()
    places = list(range(len(plot.layers)))
    names = [escape(name) for name in plot.layers]
    for line in plot.lines:
        group = escape(line.name)
        for x, y in _bands(line, places, log=plot.log):
            made.add_scatter(
                x=x,
                y=y,
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
    made.update_xaxes(title=_title(plot.x_label), automargin=True, zeroline=False)
    if plot.log:
        spread = _decades(plot)
        step = "D2" if spread < 2 else 1 if spread < 7 else 2
        made.update_xaxes(type="log", exponentformat="e" if spread < 2 else "power", dtick=step, tickfont={"size": 11})
    made.update_layout(legend=LEGEND, showlegend=True)
    return made


def _bands(line: LayerLine, places: list[int], *, log: bool) -> list[tuple[list[float | None], list[int]]]:
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
        (_plain(line.low[part]) + _plain(line.high[part])[::-1], part + part[::-1])
        for part in stretches
        if len(part) > 1
    ]


def _decades(plot: LayerProfile) -> float:
    values = np.concatenate([line.middle for line in plot.lines])
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.log10(values.max() / values.min())) if len(values) else 0.0


def _range(line: LayerLine, place: int) -> str:
    text = f"{line.middle[place]:.3g}"
    if line.low is None or line.high is None or not np.isfinite(line.low[place]):
        return text
    return f"{text} ({line.low[place]:.3g} to {line.high[place]:.3g})"


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 13}}


def _labels(axis: Axis) -> list[Any]:
    return _plain(axis) if is_numbers(axis) else [escape(str(name)) for name in axis]


def _plain(values: FloatArray, digits: int = 5) -> list[float | None]:
    """Rounded numbers, None where there is no finite one."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def _diameters(sizes: FloatArray) -> list[float]:
    return [float(value) for value in 5 + 15 * np.sqrt(sizes / sizes.max())]
