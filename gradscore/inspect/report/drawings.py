"""Plots as PNG and SVG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ...evaluation.report.drawings import SETTINGS
from ...files import replacing
from .plots import Heat, Plot, Profile, height_of

WIDTH = 7.2


def draw(plot: Plot, folder: Path) -> list[Path]:
    """Writes `<name>.png` and `<name>.svg` to a folder and returns their paths."""
    with rc_context(SETTINGS):
        height = height_of(plot) / 90
        made = Figure(figsize=(WIDTH, height))
        axes = made.subplots(gridspec_kw=_margins(plot, height))
        if isinstance(plot, Profile):
            _profile(plot, axes)
        else:
            _heat(plot, made, axes)
        axes.set_title(plot.title, loc="left", fontsize=11, pad=22 if isinstance(plot, Profile) else 6)
        paths = [folder / f"{plot.name}.png", folder / f"{plot.name}.svg"]
        for path in paths:
            kind = path.suffix[1:]
            with replacing(path) as temporary:
                made.savefig(temporary, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _margins(plot: Plot, height: float) -> dict[str, float]:
    names = plot.layers if isinstance(plot, Profile) else plot.rows
    longest = 8 if isinstance(names, np.ndarray) else max(map(len, names), default=0)
    left = min(0.5, (0.35 + 0.08 * longest) / WIDTH)
    right = 0.97 if isinstance(plot, Profile) else 0.9  # the bar of colours has figures beside it
    return {"left": left, "right": right, "bottom": 0.55 / height, "top": 1 - 0.6 / height}


def _profile(plot: Profile, axes: Axes) -> None:
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


def _plainly(value: float, place: float = 0.0) -> str:
    """A tick without mathematical signs, which the settings show as they stand."""
    del place
    return f"{value:g}"


def _heat(plot: Heat, made: Figure, axes: Axes) -> None:
    half = (plot.x[1] - plot.x[0]) / 2 if len(plot.x) > 1 else 0.5
    left, right = float(plot.x[0] - half), float(plot.x[-1] + half)
    if isinstance(plot.rows, np.ndarray):
        step = (plot.rows[1] - plot.rows[0]) / 2 if len(plot.rows) > 1 else 0.5
        bottom, top, origin = float(plot.rows[0] - step), float(plot.rows[-1] + step), "lower"
        axes.set_ylabel(plot.y_label)
    else:
        bottom, top, origin = len(plot.rows) - 0.5, -0.5, "upper"
        _name_rows(axes, plot.rows)
    image = axes.imshow(
        np.ma.masked_invalid(plot.values),
        aspect="auto",
        cmap="viridis",
        vmin=plot.lowest,
        vmax=0,
        extent=(left, right, bottom, top),
        origin="lower" if origin == "lower" else "upper",
        interpolation="nearest",
    )
    axes.set_xlabel(plot.x_label)
    axes.grid(visible=False)
    made.colorbar(image, ax=axes, pad=0.02, fraction=0.05, label="share, log10").ax.tick_params(labelsize=8)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
