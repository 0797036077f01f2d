"""Plots as PNG and SVG files, drawn without a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...files import replacing
from .plots import MANY_ROWS, Curves, HeatMap, Histograms, Plot, height_of

SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "gradscore",  # the same plot gives the same bytes
    "text.parse_math": False,  # names with dollar signs are names
}


WIDTH = 6.4


def draw(plot: Plot, folder: Path) -> list[Path]:
    """Writes `<name>.png` and `<name>.svg` to a folder and returns their paths."""
    with rc_context(SETTINGS):
        made = Figure(figsize=(WIDTH, height_of(plot) / 90))
        axes = made.subplots(gridspec_kw=_margins(plot))
        match plot:
            case Curves():
                _curves(plot, axes)
            case Histograms():
                _histograms(plot, axes)
            case HeatMap():
                _heat_map(plot, made, axes)
        axes.set_title(plot.title, loc="left", fontsize=11)
        paths = [folder / f"{plot.name}.png", folder / f"{plot.name}.svg"]
        for path in paths:
            kind = path.suffix[1:]
            with replacing(path) as temporary:
                made.savefig(temporary, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _margins(plot: Plot) -> dict[str, float]:
    """Room for labels, as shares of the figure; working it out from the drawn text would take as long as drawing."""
    if not isinstance(plot, HeatMap):
        return {"left": 0.11, "right": 0.97, "bottom": 0.13, "top": 0.92}
    height = height_of(plot) / 90
    left = 0.3 + 0.075 * max(map(len, plot.rows))
    bottom = 0.35 + 0.08 * max(map(len, plot.columns))
    return {"left": min(0.5, left / WIDTH), "right": 0.9, "bottom": bottom / height, "top": 1 - 0.35 / height}


def _curves(plot: Curves, axes: Axes) -> None:
    for series in plot.series:
        if series.sizes is not None:
            areas = 10 + 120 * series.sizes / series.sizes.max()
            axes.scatter(series.x, series.y, areas, color=series.colour, alpha=0.8, label=series.name)
        else:
            style, width = (":", 1.0) if series.dashed else ("-", 2.0)
            axes.plot(series.x, series.y, style, color=series.colour, label=series.name, linewidth=width)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if plot.unit_square:
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    else:
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=9)


def _histograms(plot: Histograms, axes: Axes) -> None:
    for name, density, colour in plot.densities:
        axes.stairs(density, plot.edges, fill=True, alpha=0.4, color=colour, label=name)
        axes.stairs(density, plot.edges, color=colour)
    axes.set(xlabel=plot.x_label, ylabel="density")
    axes.legend(fontsize=9)


def _heat_map(plot: HeatMap, made: Figure, axes: Axes) -> None:
    image = axes.imshow(np.ma.masked_invalid(plot.values), aspect="auto", cmap="viridis", vmin=0)
    axes.set_xticks(range(len(plot.columns)), plot.columns, rotation=60, ha="right")
    axes.set_yticks(range(len(plot.rows)), plot.rows, fontsize=8 if len(plot.rows) <= MANY_ROWS else 7)
    axes.grid(visible=False)
    made.colorbar(image, ax=axes, pad=0.03, fraction=0.06).ax.tick_params(labelsize=8)
