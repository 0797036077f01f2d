"""What the plots of a report show, apart from how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

PALETTE = ("#3b82c4", "#e07b39", "#3a9e75", "#b45fa8", "#c9a227", "#d1495b", "#5aa7d6", "#8a6d5c", "#7a7f87", "#6f7fd1")
"""Colours that can be told apart on white and on black."""

GREY = "#8b9096"

MAX_POINTS = 300

MANY_ROWS = 30
"""Heat maps with more rows than this have lower ones."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line, or with `sizes` points alone, whose areas say how many samples they stand for.

    Attributes:
        name: in the legend.
        x: (N,).
        y: (N,).
        colour: as `#rrggbb`.
        dashed: whether the line is dashed.
        sizes: (N,) numbers of samples, or None.
    """

    name: str
    x: FloatArray
    y: FloatArray
    colour: str
    dashed: bool = False
    sizes: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Lines in one pair of axes.

    Attributes:
        name: of the files, and in the page.
        title: above the plot.
        caption: what to see in it.
        x_label: of the axis.
        y_label: of the axis.
        series: the lines.
        unit_square: both axes go from 0 to 1.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: Sequence[Series] = field(default_factory=list)
    unit_square: bool = True


@dataclass(frozen=True, kw_only=True)
class Histograms:
    """Distributions over the same bins, each with area one.

    Attributes:
        name: of the files, and in the page.
        title: above the plot.
        caption: what to see in it.
        x_label: of the axis.
        edges: (B + 1,) of the bins; the outermost bins hold everything beyond.
        densities: name, density (B,) and colour of each.
    """

    name: str
    title: str
    caption: str
    x_label: str
    edges: FloatArray
    densities: Sequence[tuple[str, FloatArray, str]]


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A table of magnitudes as colours; NaN where there is nothing.

    Attributes:
        name: of the files, and in the page.
        title: above the plot.
        caption: what to see in it.
        rows: R names.
        columns: C names.
        values: (R, C), at least 0.
    """

    name: str
    title: str
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: FloatArray


Plot = Curves | Histograms | HeatMap


def height_of(plot: Plot) -> int:
    """A height in pixels at which everything in the plot can be read."""
    if not isinstance(plot, HeatMap):
        return 380
    return 110 + (17 if len(plot.rows) <= MANY_ROWS else 13) * max(len(plot.rows), 6)


def thinned(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most about `MAX_POINTS` points of a curve, first and last among them."""
    if len(x) <= MAX_POINTS:
        return x, y
    places = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
    return x[places], y[places]


def histograms(
    groups: Sequence[tuple[str, FloatArray, str]], *, name: str, title: str, caption: str, x_label: str
) -> Histograms:
    """Bins scores over the range that holds all but half a percent at either end; few samples get wider bins.

    Args:
        groups: name, values (N,) and colour of each distribution.
        name: see `Histograms`.
        title: see `Histograms`.
        caption: see `Histograms`.
        x_label: see `Histograms`.
    """
    values = np.concatenate([each for _, each, _ in groups])
    low, high = np.quantile(values, [0.005, 0.995])
    if low == high:
        low, high = low - 0.5, high + 0.5
    fewest = min(len(each) for _, each, _ in groups)
    edges = np.linspace(low, high, 1 + int(np.clip(2 * np.sqrt(fewest), 10, 40)))
    densities = []
    for label, each, colour in groups:
        counts, _ = np.histogram(np.clip(each, low, high), edges)
        densities.append((label, counts / max(1, counts.sum()) / (edges[1] - edges[0]), colour))
    return Histograms(name=name, title=title, caption=caption, x_label=x_label, edges=edges, densities=densities)
