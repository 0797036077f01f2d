"""Plots as Plotly figures, in colours that the page sets for light and dark."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .plots import MANY_ROWS, Curves, HeatMap, Histograms, Plot, height_of

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
    return plain_data(made, height=height_of(plot))


def plain_data(made: go.Figure, *, height: int) -> dict[str, Any]:
    """A figure in the looks of a report, as plain data; `height` is in pixels."""
    made.update_layout(
        template="none",
        height=height,
        margin=MARGIN,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    plain: dict[str, Any] = json.loads(made.to_json())
    return plain


def _curves(plot: Curves) -> go.Figure:
    made = go.Figure()
    for series in plot.series:
        points = series.sizes is not None
        made.add_scatter(
            x=_plain(series.x),
            y=_plain(series.y),
            name=escape(series.name),
            mode="markers" if points else "lines",
            line={
                "color": series.colour,
                "width": 1.4 if series.dashed else 2.4,
                "dash": "dot" if series.dashed else None,
            },
            marker={"size": _diameters(series.sizes)} if series.sizes is not None else None,
            text=[f"{int(size)} samples" for size in series.sizes] if series.sizes is not None else None,
            hovertemplate="%{x:.3f}, %{y:.3f}"
            + (" (%{text})" if points else "")
            + f"<extra>{escape(series.name)}</extra>",
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
    cells = [[None if np.isnan(value) else float(f"{value:.4g}") for value in row] for row in plot.values]
    made = go.Figure(
        go.Heatmap(
            z=cells,
            x=[escape(name) for name in plot.columns],
            y=[escape(name) for name in plot.rows],
            colorscale="Viridis",
            zmin=0,
            xgap=1,
            ygap=1,
            colorbar={"thickness": 10, "outlinewidth": 0},
            hovertemplate="%{y}<br>%{x}: %{z}<extra></extra>",
            hoverongaps=False,
        )
    )
    made.update_xaxes(automargin=True, tickangle=-60, showgrid=False, type="category", ticks="", tickfont={"size": 11})
    size = 11 if len(plot.rows) <= MANY_ROWS else 10
    made.update_yaxes(automargin=True, autorange="reversed", showgrid=False, type="category", tickmode="linear")
    made.update_yaxes(tickfont={"size": size})
    return made


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 13}}


def _plain(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _diameters(sizes: NDArray[np.float64]) -> list[float]:
    return [float(value) for value in 5 + 15 * np.sqrt(sizes / sizes.max())]
