"""Pages that need nothing but a browser, and their plots, drawn by Matplotlib without a display: the extra `report`.

A function for each kind of plot takes data and texts and gives a `Plot`, whose figure `write_page` puts into the page
Texts that come from outside are drawn as they stand: no mathematics, and `printable`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar

import numpy as np
from PIL import Image

from ..data import Pixels
from ..errors import MissingExtraError
from ..notices import notes, printable, urgent
from ..system import FloatArray, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

PALETTE = ("#3b82c4", "#e07b39", "#3a9e75", "#b45fa8", "#c9a227", "#d1495b", "#5aa7d6", "#8a6d5c", "#7a7f87", "#6f7fd1")
"""Colours that can be told apart on white and on black."""

GREY = "#8b9096"
"""For what is there to compare with."""

MARK = "#b45309"
"""Colour of a step at which something happened."""

MAX_POINTS = 300
"""Points of a curve: one for every second pixel of a plot."""

MANY_ROWS = 30
"""Heat maps of names with more rows than this have lower ones."""

WIDTH = 5.4
"""Width of a figure, in inches."""

PIXELS_PER_INCH = 90
"""Heights of plots are given in pixels."""

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "gradscore",  # the same plot gives the same bytes
    "text.parse_math": False,  # names with dollar signs are names
}

PACKAGES = ("jinja2", "matplotlib")
"""Packages that pages need: the extra `report`."""

TEMPLATES = Path(__file__).parent / "templates"
"""Templates that all pages share; `base.html.jinja` is a page of plots by itself."""

THUMBNAIL = 96
"""Thumbnails are no larger than this many pixels; smaller images stay as they are and are magnified by the page."""

Ticks = Sequence[str] | FloatArray
"""Names, the first on top or on the left, or centres of numbers."""


def _styled(function: Callable[P, R]) -> Callable[P, R]:
    """Runs a function with the settings of `STYLE`."""

    @wraps(function)
    def run(*arguments: P.args, **settings: P.kwargs) -> R:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return function(*arguments, **settings)

    return run


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure and what a page says about it.

    Attributes:
        name: its place in the page, as the end of an address: `report.html#NAME`.
        title: above the plot.
        caption: what to see in it.
        figure: the plot itself.
    """

    name: str
    title: str
    caption: str = ""
    figure: Figure

    @_styled
    def drawn(self) -> bytes:
        """The plot as SVG."""
        file = BytesIO()
        self.figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Line:
    """Values over something: y over x, or for `layer_profile` from left to right with the layers x from top to bottom.

    Attributes:
        name: in the legend.
        colour: as `#rrggbb`.
        x: (N,).
        y: (N,), NaN where there is none.
        bands: lower and upper ends (N,) of ranges about y.
        dotted: whether the line is dotted.
        sizes: (N,) for points instead of a line: how many samples each stands for.
    """

    name: str
    colour: str
    x: FloatArray
    y: FloatArray
    bands: Sequence[tuple[FloatArray, FloatArray]] = ()
    dotted: bool = False
    sizes: FloatArray | None = None


def colour(number: int) -> str:
    """The colour of the line or group with this number, as `#rrggbb`."""
    return PALETTE[number % len(PALETTE)]


def file_name(text: str) -> str:
    """A text as part of a file name: letters, digits, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)


@_styled
def curves(
    lines: Sequence[Line],
    *,
    name: str,
    title: str,
    x_label: str,
    y_label: str,
    caption: str = "",
    unit_square: bool = True,
) -> Plot:
    """Lines in one pair of axes; with `unit_square` both go from 0 to 1."""
    figure, (axes,) = _axes(310, left=0.13, bottom=0.16, top=0.9)
    for line in lines:
        if line.sizes is not None:
            areas = 10 + 120 * line.sizes / line.sizes.max()
            axes.scatter(line.x, line.y, areas, color=line.colour, alpha=0.8, label=printable(line.name))
        else:
            _draw_line(axes, line, *_subsampled(line.x, line.y), linewidth=1.0 if line.dotted else 2.0)
    axes.set(xlabel=x_label, ylabel=y_label)
    if unit_square:
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    else:
        axes.set_ylim(bottom=0)
    axes.legend()
    return _finished(figure, name, title, caption)


@_styled
def histograms(
    groups: Sequence[tuple[str, FloatArray, str]], *, name: str, title: str, x_label: str, caption: str = ""
) -> Plot:
    """Distributions over the same bins, each with area one.

    The bins cover the range that holds all but half a percent at either end, and the outermost ones hold everything
    beyond; few samples get wider bins.

    Args:
        groups: name, values (N,) and colour of each distribution.
        name: see `Plot`.
        title: see `Plot`.
        x_label: what the values are.
        caption: see `Plot`.
    """
    values = np.concatenate([each for _, each, _ in groups])
    low, high = np.quantile(values, [0.005, 0.995])
    if low == high:
        low, high = low - 0.5, high + 0.5
    fewest = min(len(each) for _, each, _ in groups)
    edges = np.linspace(low, high, 1 + int(np.clip(2 * np.sqrt(fewest), 10, 40)))
    figure, (axes,) = _axes(310, left=0.13, bottom=0.16, top=0.9)
    for label, each, shade in groups:
        counts, _ = np.histogram(np.clip(each, low, high), edges)
        density = counts / max(1, counts.sum()) / (edges[1] - edges[0])
        axes.stairs(density, edges, fill=True, alpha=0.4, color=shade, label=printable(label))
        axes.stairs(density, edges, color=shade)
    axes.set(xlabel=x_label, ylabel="density")
    axes.legend()
    return _finished(figure, name, title, caption)


@_styled
def heat_map(
    values: FloatArray,
    *,
    rows: Ticks,
    columns: Ticks,
    name: str,
    title: str,
    caption: str = "",
    x_label: str = "",
    y_label: str = "",
    low: float = 0.0,
    high: float | None = None,
    unit: str = "",
) -> Plot:
    """A table of values (R, C) as colours; NaN where there is nothing.

    Args:
        values: (R, C).
        rows: R names or centres.
        columns: C names or centres.
        name: see `Plot`.
        title: see `Plot`.
        caption: see `Plot`.
        x_label: of the columns, if they are numbers.
        y_label: of the rows, if they are numbers.
        low: what the darkest colour stands for.
        high: what the brightest stands for; the largest value if None.
        unit: beside the bar of colours.
    """
    height = 380 if _is_numbers(rows) else 110 + (17 if len(rows) <= MANY_ROWS else 13) * max(len(rows), 6)
    inches = height / PIXELS_PER_INCH
    # Names that are longer reach into the margin below the figure, as on the left.
    below = 0.55 if _is_numbers(columns) else min(0.35 + 0.08 * _longest(columns), 0.6 * inches)
    # The bar of colours on the right has figures beside it.
    figure, (axes,) = _axes(height, left=_left(rows), right=0.9, bottom=below / inches, top=1 - 0.4 / inches)
    (left, right), (start, end) = _ends(columns), _ends(rows)
    upright = _is_numbers(rows)  # numbers grow upwards, names are read downwards
    image = axes.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        cmap="viridis",
        vmin=low,
        vmax=high,
        extent=(left, right, start, end) if upright else (left, right, end, start),
        origin="lower" if upright else "upper",
        interpolation="nearest",
    )
    if _is_numbers(columns):
        axes.set_xlabel(x_label)
    else:
        axes.set_xticks(range(len(columns)), list(map(printable, columns)), rotation=60, ha="right")
    if _is_numbers(rows):
        axes.set_ylabel(y_label)
    else:
        axes.set_yticks(range(len(rows)), list(map(printable, rows)), fontsize=8 if len(rows) <= MANY_ROWS else 7)
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, pad=0.03, fraction=0.055, label=unit)
    bar.ax.tick_params(labelsize=8)
    return _finished(figure, name, title, caption)


@_styled
def layer_profile(
    lines: Sequence[Line],
    *,
    layers: Sequence[str],
    name: str,
    title: str,
    x_label: str,
    caption: str,
    log: bool,
) -> Plot:
    """Layers as rows, the first on top, with a line for each group of samples; `log` is for the scale of values."""
    height = 120 + 17 * max(len(layers), 8)
    inches = height / PIXELS_PER_INCH
    figure, (axes,) = _axes(height, left=_left(layers), bottom=0.55 / inches, top=1 - 0.6 / inches)
    for line in lines:
        for low, high in line.bands:
            axes.fill_betweenx(line.x, low, high, color=line.colour, alpha=0.2, linewidth=0)
        label = printable(line.name)
        axes.plot(line.y, line.x, "o-", color=line.colour, label=label, linewidth=1.3, markersize=3)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plainly)
        left, right = axes.get_xlim()
        axes.xaxis.set_minor_formatter(_plainly if right < 10 * left else "")
    axes.set_yticks(range(len(layers)), list(map(printable, layers)), fontsize=8)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlabel(x_label)
    _legend_above(axes, 1.0)
    return _finished(figure, name, title, caption, pad=22)


@_styled
def time_rows(
    rows: Sequence[tuple[str, Sequence[Line]]],
    *,
    name: str,
    title: str,
    x_label: str,
    caption: str,
    log: bool = False,
    marks: Sequence[float],
    ends: tuple[float, float] | None = None,
) -> Plot:
    """Values over steps, a row of axes for each layer, say.

    Args:
        rows: name and lines of each row, from top to bottom.
        name: see `Plot`.
        title: see `Plot`.
        x_label: of the steps.
        caption: see `Plot`.
        log: whether the scale of the values is logarithmic.
        marks: steps at which something happened.
        ends: the first and the last step of the axes; those of the lines for None.
    """
    height = 100 + 78 * len(rows)
    inches = height / PIXELS_PER_INCH
    figure, every = _axes(height, rows=len(rows), left=0.11, bottom=0.5 / inches, top=1 - 0.85 / inches, hspace=0.55)
    for axes, (row, lines) in zip(every, rows, strict=True):
        for line in lines:
            for low, high in line.bands:
                axes.fill_between(line.x, low, high, color=line.colour, alpha=0.2, linewidth=0)
            _draw_line(axes, line, line.x, line.y, linewidth=1.2)
        for step in marks:
            axes.axvline(step, color=MARK, linewidth=0.8, linestyle="--")
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter(_plainly)
        axes.tick_params(labelsize=8)
        axes.annotate(printable(row), (0, 1), xycoords="axes fraction", fontsize=8, va="bottom")
    every[-1].set_xlabel(x_label)
    if ends is not None and ends[0] < ends[1]:  # one step alone is no stretch of time
        every[-1].set_xlim(*ends)
    _legend_above(every[0], 1.3)
    return _finished(figure, name, title, caption, pad=40)


def _axes(
    height: int, *, rows: int = 1, left: float, bottom: float, top: float, right: float = 0.97, hspace: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A new figure with axes one above the other, and room for labels as shares of it.

    Having Matplotlib work the room out from the drawn text would take as long as drawing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height / PIXELS_PER_INCH))
    margins = {"left": left, "right": right, "bottom": bottom, "top": top, "hspace": hspace}
    return figure, list(figure.subplots(rows, sharex=True, squeeze=False, gridspec_kw=margins)[:, 0])


def _finished(figure: Figure, name: str, title: str, caption: str, pad: float = 6) -> Plot:
    """The plot with its title."""
    figure.axes[0].set_title(printable(title), loc="left", fontsize=11, pad=pad)
    return Plot(name=name, title=title, caption=caption, figure=figure)


def _draw_line(axes: Axes, line: Line, x: FloatArray, y: FloatArray, *, linewidth: float) -> None:
    style = ":" if line.dotted else "-"
    # A line of one point would not be seen.
    marker = "o" if len(x) == 1 else None
    label = printable(line.name)
    axes.plot(x, y, style, color=line.colour, label=label, linewidth=linewidth, marker=marker, markersize=3)


def _legend_above(axes: Axes, height: float) -> None:
    axes.legend(fontsize=8, ncols=4, handlelength=1.4, loc="lower left", bbox_to_anchor=(0, height), borderaxespad=0.2)


def _subsampled(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most about `MAX_POINTS` points of a curve, first and last among them."""
    if len(x) <= MAX_POINTS:
        return x, y
    places = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
    return x[places], y[places]


def _plainly(value: float, place: float = 0.0) -> str:
    """A tick without mathematical signs, which the settings show as they stand."""
    del place
    return f"{value:g}"


def _is_numbers(ticks: Ticks) -> TypeGuard[FloatArray]:
    return isinstance(ticks, np.ndarray)


def _left(ticks: Ticks) -> float:
    return min(0.5, (0.35 + 0.08 * _longest(ticks)) / WIDTH)


def _longest(ticks: Ticks) -> int:
    """Characters of the longest label of an axis."""
    return 8 if _is_numbers(ticks) else max((len(str(name)) for name in ticks), default=0)


def _ends(ticks: Ticks) -> tuple[float, float]:
    """Ends of an axis."""
    if not _is_numbers(ticks):
        return -0.5, len(ticks) - 0.5
    half = (ticks[1] - ticks[0]) / 2 if len(ticks) > 1 else 0.5
    return float(ticks[0] - half), float(ticks[-1] + half)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a page: plots under a heading.

    Attributes:
        title: the heading.
        plots: in the order of the page.
        remark: what holds for all of them.
    """

    title: str
    plots: Sequence[Plot]
    remark: str = ""


def check_packages(what: str, again: str) -> None:
    """Makes sure that the extra `report` is installed.

    Args:
        what: cannot be made without it.
        again: what to do once it is there.

    Raises:
        MissingExtraError: it is not.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"no {what}: it needs {', '.join(missing)}; run `pip install 'gradscore[report]'` and {again}"
        )


def write_page(
    page: Path,
    content: Mapping[str, Any],
    parts: Sequence[Part],
    *,
    template: Path,
) -> None:
    """Writes a page with its plots.

    Args:
        page: the file.
        content: what the template asks for beside the parts; see `base.html.jinja` for what every page may have.
        parts: the plots of the page.
        template: of the page, which extends `base.html.jinja`.

    Raises:
        OutputError: the file cannot be written.
    """
    from markupsafe import Markup

    plots = [plot for part in parts for plot in part.plots]
    # There is nothing to escape in a data URI.
    images = {plot: Markup(_data_uri(plot.drawn(), "svg+xml")) for plot in plots}
    shared = {"facts": [], "version": version("gradscore"), "parts": parts, "images": images}
    write_text(page, render(template, {**shared, **content}))


@dataclass(frozen=True, kw_only=True)
class ToolFiles:
    """Files that a tool wrote.

    Attributes:
        tables: files of figures.
        html: the page; None if a package that it needs is missing.
        notice: what is missing, and how to get it; empty if nothing is.
    """

    tables: list[Path]
    html: Path | None
    notice: str = ""


def write_beside(
    tables: list[Path],
    page: Path,
    made: Callable[[], tuple[Mapping[str, object], Sequence[Part]]],
    *,
    template: Path,
    again: str,
) -> ToolFiles:
    """Writes the page of a tool beside its tables, where the packages are there that draw.

    Args:
        tables: files of figures.
        page: the file.
        made: makes content and plots, see `write_page`.
        template: of the page.
        again: what to do once missing packages are there.
    """
    try:
        check_packages("page", again)
    except MissingExtraError as error:
        return ToolFiles(tables=tables, html=None, notice=str(error))
    content, parts = made()
    write_page(page, content, parts, template=template)
    return ToolFiles(tables=tables, html=page)


def render(template: Path, content: Mapping[str, Any]) -> str:
    """Fills a template; whatever goes into a page is escaped unless it is `Markup`.

    Of the `notices` of a page those to be read before any figure come first, and the rest at its end.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=template.name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    notices = notes(content.get("notices", ()))
    found = {"urgent": urgent(notices), "notes": [each for each in notices if each.level == "note"]}
    return environment.get_template(template.name).render({**found, **content})


def _shown(value: object) -> object:
    """Value to fill in: signs that a terminal would obey stand as escapes, lines stay lines."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def thumbnail(pixels: Pixels) -> str:
    """A small copy of an image (H, W, C) uint8 as a PNG in a data URI."""
    buffer = BytesIO()
    _small(pixels).save(buffer, format="PNG", optimize=True)
    return _data_uri(buffer.getvalue(), "png")


def small_copy(pixels: Pixels) -> Pixels:
    """An image (H, W, C) uint8 as `thumbnail` shows it, of one channel (grey) or three."""
    return np.atleast_3d(np.asarray(_small(pixels)))


def _small(pixels: Pixels) -> Image.Image:
    grey = pixels.shape[2] != 3
    image = Image.fromarray(pixels[..., 0] if grey else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    return image


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
