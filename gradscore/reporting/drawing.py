"""Plots as PNG and SVG files, drawn without a display; importing this module needs the extra `report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ..printable import printable
from ..system import replacing
from .plots import MANY_ROWS, Axis, Curves, HeatMap, Histograms, LayerProfile, Plot, TimeRows, height_of, is_numbers

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

WIDTH = 6.8
"""Of a figure, in inches."""

PIXELS_PER_INCH = 90
"""Turns the heights of interactive plots, in pixels, into those of drawings."""


def draw(plot: Plot, folder: Path) -> list[Path]:
    """Writes `<name>.png` and `<name>.svg` to a folder and returns their paths."""
    plot = _printable(plot)
    with rc_context(SETTINGS):
        made = Figure(figsize=(WIDTH, height_of(plot) / PIXELS_PER_INCH))
        axes = _time_rows(plot, made) if isinstance(plot, TimeRows) else made.subplots(gridspec_kw=_margins(plot))
        match plot:
            case Curves():
                _curves(plot, axes)
            case Histograms():
                _histograms(plot, axes)
            case HeatMap():
                _heat_map(plot, made, axes)
            case LayerProfile():
                _layer_profile(plot, axes)
        pad = {LayerProfile: 22, TimeRows: 34}.get(type(plot), 6)
        axes.set_title(plot.title, loc="left", fontsize=11, pad=pad)
        paths = [folder / f"{plot.name}.png", folder / f"{plot.name}.svg"]
        for path in paths:
            kind = path.suffix[1:]
            with replacing(path) as temporary:
                made.savefig(temporary, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _printable(value: Any) -> Any:
    """A plot whose texts are `printable`: matplotlib says on the terminal which signs its fonts lack, as they are."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _printable(getattr(value, each.name)) for each in fields(value)})
    return value


def _margins(plot: Plot) -> dict[str, float]:
    """Room for labels, as shares of the figure; working it out from the drawn text would take as long as drawing."""
    height = height_of(plot) / PIXELS_PER_INCH
    match plot:
        case LayerProfile(layers=names):
            return {"left": _left(names), "right": 0.97, "bottom": 0.55 / height, "top": 1 - 0.6 / height}
        case HeatMap():
            # Names that are longer reach into the margin below the figure, as on the left.
            below = 0.55 if is_numbers(plot.columns) else min(0.35 + 0.08 * _longest(plot.columns), 0.6 * height)
            # The bar of colours on the right has figures beside it.
            return {"left": _left(plot.rows), "right": 0.9, "bottom": below / height, "top": 1 - 0.4 / height}
        case _:
            return {"left": 0.11, "right": 0.97, "bottom": 0.13, "top": 0.92}


def _left(names: Axis) -> float:
    return min(0.5, (0.35 + 0.08 * _longest(names)) / WIDTH)


def _longest(axis: Axis) -> int:
    """Characters of the longest label of an axis."""
    return 8 if is_numbers(axis) else max((len(str(name)) for name in axis), default=0)


def _curves(plot: Curves, axes: Axes) -> None:
    for curve in plot.curves:
        if curve.sizes is not None:
            areas = 10 + 120 * curve.sizes / curve.sizes.max()
            axes.scatter(curve.x, curve.y, areas, color=curve.colour, alpha=0.8, label=curve.name)
        else:
            style, width = (":", 1.0) if curve.dotted else ("-", 2.0)
            axes.plot(curve.x, curve.y, style, color=curve.colour, label=curve.name, linewidth=width)
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
    left, right = _ends(plot.columns)
    top, bottom = _ends(plot.rows)
    upright = is_numbers(plot.rows)  # numbers grow upwards, names are read downwards
    image = axes.imshow(
        np.ma.masked_invalid(plot.values),
        aspect="auto",
        cmap="viridis",
        vmin=plot.low,
        vmax=plot.high,
        extent=(left, right, top, bottom) if upright else (left, right, bottom, top),
        origin="lower" if upright else "upper",
        interpolation="nearest",
    )
    if is_numbers(plot.columns):
        axes.set_xlabel(plot.x_label)
    else:
        axes.set_xticks(range(len(plot.columns)), list(plot.columns), rotation=60, ha="right")
    if is_numbers(plot.rows):
        axes.set_ylabel(plot.y_label)
    else:
        axes.set_yticks(range(len(plot.rows)), list(plot.rows), fontsize=8 if len(plot.rows) <= MANY_ROWS else 7)
    axes.grid(visible=False)
    made.colorbar(image, ax=axes, pad=0.03, fraction=0.055, label=plot.unit).ax.tick_params(labelsize=8)


def _ends(axis: Axis) -> tuple[float, float]:
    """Where an axis begins and ends."""
    if not is_numbers(axis):
        return -0.5, len(axis) - 0.5
    half = (axis[1] - axis[0]) / 2 if len(axis) > 1 else 0.5
    return float(axis[0] - half), float(axis[-1] + half)


def _layer_profile(plot: LayerProfile, axes: Axes) -> None:
    places = np.arange(len(plot.layers))
    for line in plot.lines:
        if line.low is not None and line.high is not None:
            axes.fill_betweenx(places, line.low, line.high, color=line.colour, alpha=0.2, linewidth=0)
        axes.plot(line.middle, places, "o-", color=line.colour, label=line.name, linewidth=1.3, markersize=3)
    if plot.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plainly)
        low, high = axes.get_xlim()
        axes.xaxis.set_minor_formatter(_plainly if high < 10 * low else NullFormatter())
    _name_rows(axes, plot.layers)
    axes.set_xlabel(plot.x_label)
    axes.legend(fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handlelength=1.4)


def _time_rows(plot: TimeRows, made: Figure) -> Axes:
    """Draws all rows and returns the axes of the first one, for the title."""
    height = height_of(plot) / PIXELS_PER_INCH
    margins = {"left": 0.11, "right": 0.97, "bottom": 0.5 / height, "top": 1 - 0.75 / height, "hspace": 0.55}
    columns = made.subplots(len(plot.rows), sharex=True, squeeze=False, gridspec_kw=margins)[:, 0]
    for axes, row in zip(columns, plot.rows, strict=True):
        for line in row.lines:
            for low, high in line.bands:
                axes.fill_between(line.x, low, high, color=line.colour, alpha=0.2, linewidth=0)
            style = ":" if line.dotted else "-"
            axes.plot(line.x, line.y, style, color=line.colour, label=line.name, linewidth=1.2)
        for step in plot.marks:
            axes.axvline(step, color="#b45309", linewidth=0.8, linestyle="--")
        if plot.log:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(_plainly)
        axes.tick_params(labelsize=7)
        axes.annotate(row.name, (0, 1), xycoords="axes fraction", fontsize=7, va="bottom")
    columns[-1].set_xlabel(plot.x_label)
    if plot.ends is not None:
        columns[-1].set_xlim(*plot.ends)
    first: Axes = columns[0]
    first.legend(fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.15), borderaxespad=0.2, handlelength=1.4)
    return first


def _plainly(value: float, place: float = 0.0) -> str:
    """A tick without mathematical signs, which the settings show as they stand."""
    del place
    return f"{value:g}"


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
