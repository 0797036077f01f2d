"""What the plots of a report show, apart from how they are drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from ..system import FloatArray

MAX_POINTS = 300
"""Points of a curve: one for every second pixel of a plot."""

MANY_ROWS = 30
"""Heat maps of names with more rows than this have lower ones."""

Axis = Sequence[str] | FloatArray
"""Names, the first on top or on the left, or centres of numbers."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line, or with `sizes` points alone, whose areas say how many samples they stand for.

    Attributes:
        name: in the legend.
        x: (N,).
        y: (N,).
        colour: as `#rrggbb`.
        dotted: whether the line is dotted.
        sizes: (N,) numbers of samples, or None.
    """

    name: str
    x: FloatArray
    y: FloatArray
    colour: str
    dotted: bool = False
    sizes: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class Named:
    """What all plots have.

    Attributes:
        name: of the files, and in the page.
        title: above the plot.
        caption: what to see in it.
    """

    name: str
    title: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Curves(Named):
    """Lines in one pair of axes.

    Attributes:
        x_label: of the axis.
        y_label: of the axis.
        curves: the lines.
        unit_square: both axes go from 0 to 1.
    """

    x_label: str
    y_label: str
    curves: Sequence[Curve] = field(default_factory=list)
    unit_square: bool = True


@dataclass(frozen=True, kw_only=True)
class Histograms(Named):
    """Distributions over the same bins, each with area one.

    Attributes:
        x_label: of the axis.
        edges: (B + 1,) of the bins; the outermost bins hold everything beyond.
        densities: name, density (B,) and colour of each.
    """

    x_label: str
    edges: FloatArray
    densities: Sequence[tuple[str, FloatArray, str]]


@dataclass(frozen=True, kw_only=True)
class HeatMap(Named):
    """A table of values as colours; NaN where there is nothing.

    Attributes:
        rows: R names or centres.
        columns: C names or centres.
        values: (R, C).
        x_label: of the columns, if they are numbers.
        y_label: of the rows, if they are numbers.
        low: what the darkest colour stands for.
        high: what the brightest stands for; the largest value if None.
        unit: beside the bar of colours.
        hover: (R,) text to show beside each row.
    """

    rows: Axis
    columns: Axis
    values: FloatArray
    x_label: str = ""
    y_label: str = ""
    low: float = 0.0
    high: float | None = None
    unit: str = ""
    hover: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class LayerLine:
    """A group of samples: a value for every layer, and a range about it.

    Attributes:
        name: in the legend.
        colour: as `#rrggbb`.
        middle: (L,) values, NaN for a layer without one.
        low: (L,) lower ends of the ranges; None without ranges.
        high: (L,) upper ends.
    """

    name: str
    colour: str
    middle: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class LayerProfile(Named):
    """Layers as rows, groups as colours.

    Attributes:
        x_label: of the values.
        layers: L names, the first on top.
        lines: the groups.
        log: whether the scale of the values is logarithmic.
    """

    x_label: str
    layers: Sequence[str]
    lines: Sequence[LayerLine]
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """A value over steps, and ranges about it.

    Attributes:
        name: in the legend.
        colour: as `#rrggbb`.
        x: (S,) steps.
        y: (S,) values, NaN where there is none.
        bands: lower and upper ends (S,) of ranges.
        dotted: whether the line is dotted.
    """

    name: str
    colour: str
    x: FloatArray
    y: FloatArray
    bands: Sequence[tuple[FloatArray, FloatArray]] = ()
    dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """A row of `TimeRows`: a layer, say, with its lines."""

    name: str
    lines: Sequence[TimeLine]


@dataclass(frozen=True, kw_only=True)
class TimeRows(Named):
    """Layers as rows, each with axes of its own over the same steps.

    Attributes:
        x_label: of the steps.
        rows: from top to bottom.
        log: whether the scale of the values is logarithmic.
        marks: steps at which something happened.
        ends: the first and the last step of the axes; those of the lines for None.
    """

    x_label: str
    rows: Sequence[TimeRow]
    log: bool = False
    marks: Sequence[float] = ()
    ends: tuple[float, float] | None = None


Plot = Curves | Histograms | HeatMap | LayerProfile | TimeRows


def is_numbers(axis: Axis) -> TypeGuard[FloatArray]:
    """Whether an axis has numbers rather than names."""
    return isinstance(axis, np.ndarray)


def height_of(plot: Plot) -> int:
    """A height in pixels at which everything in the plot can be read."""
    match plot:
        case LayerProfile(layers=layers):
            return 120 + 17 * max(len(layers), 8)
        case TimeRows(rows=rows):
            return 90 + 78 * len(rows)
        case HeatMap(rows=rows) if not is_numbers(rows):
            return 110 + (17 if len(rows) <= MANY_ROWS else 13) * max(len(rows), 6)
        case _:
            return 380


def subsampled(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
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


def file_name(text: str) -> str:
    """A text as part of a file name: letters, digits, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
