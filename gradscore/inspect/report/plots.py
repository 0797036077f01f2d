"""What the plots of an inspection show, apart from how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

ROW = 17
"""Pixels of a layer."""

FEW_COLUMNS = 12
"""Heat maps name their columns up to this number."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A group: a value for every layer, and a range about it.

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
class Profile:
    """Layers as rows, groups as colours.

    Attributes:
        name: of the files, and in the page.
        title: above the plot.
        caption: what to see in it.
        x_label: of the values.
        layers: L names, the first on top.
        lines: the groups.
        log: whether the scale of the values is logarithmic.
    """

    name: str
    title: str
    caption: str
    x_label: str
    layers: Sequence[str]
    lines: Sequence[Line]
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Shares of a histogram as colours; NaN where nothing was counted.

    Attributes:
        name: of the files, and in the page.
        title: above the plot.
        caption: what to see in it.
        x_label: of the columns.
        y_label: of the rows, if they are numbers.
        x: (C,) centres of the columns.
        rows: R names, the first on top, or (R,) centres.
        values: (R, C), at most 0: logarithms of shares to the base 10.
        lowest: what the darkest colour stands for.
        hover: (R,) text to show beside each row.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    x: FloatArray
    rows: Sequence[str] | FloatArray
    values: FloatArray
    lowest: float = -1.0
    hover: Sequence[str] = ()


Plot = Profile | Heat


def height_of(plot: Plot) -> int:
    """A height in pixels at which every layer can be read."""
    if isinstance(plot, Heat) and isinstance(plot.rows, np.ndarray):
        return 380
    rows = len(plot.layers) if isinstance(plot, Profile) else len(plot.rows)
    return 120 + ROW * max(rows, 8)
