"""The report of an inspection: tables as Parquet, and one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..reporting import Line, Part, Plot, ToolFiles, colour, file_name, heat_map, layer_profile, write_beside
from ..system import FloatArray, clear_page, replacing
from .findings import SCOPE
from .histograms import GradHist1d, GradHist2d
from .quantity import MODEL, Quantity, Running, band_of, layer_of, model_order
from .sample_gradients import MeanGSNR
from .saved_model import Inspection

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = "report.html"
TABLES = ("figures.parquet", "histograms.parquet", "histograms_2d.parquet")
"""File names of the tables of an inspection, the first always written."""

FILES = (PAGE, *TABLES)

TEMPLATE = Path(__file__).parent / "templates" / "inspect.html.jinja"

FOOTER = (
    "Rows are layers or parameters from input to output, colours are groups of samples. The figures are in the Parquet "
    "files beside this page."
)

HISTOGRAMS = (
    "Elements of single samples' gradients. Each row is a parameter, colour the share of its elements. Every row has "
    "a range of its own, the same in all groups and written beside its name: the largest gradient of that parameter in "
    "a first batch of each group. What lies beyond is counted at the ends."
)

HISTOGRAMS_2D = (
    "Every element of every sample's gradient against the value of the parameter entry it belongs to, over the whole "
    "model; colour is the share. What lies beyond an axis is counted at its end."
)

SIGNAL_MAPS = (
    "Maps: the ratio of every entry by itself, one row for each parameter with the median beside its name, colour the "
    "share of its entries. Entries whose gradient is zero for all samples, and others below the scale, are counted at "
    "its low end."
)

SIGNAL_BINS = 61
"""Number of bins, as of the histograms of gradients."""

SIGNAL_DECADES = 8
"""Decades below the largest ratio that the maps show: one estimated from N samples is noise below 1/N."""

BANDS = {"std": "one standard deviation", "min-max": "extremes", "Q1-Q3": "quartiles"}
"""Names of ranges in captions."""


def write_inspection(inspection: Inspection, folder: Path, *, name: str) -> ToolFiles:
    """Writes the tables of an inspection and its page.

    Args:
        inspection: what was found.
        folder: where the files go.
        name: of the model, for the heading.

    Returns:
        The files.
    """
    clear_page(*(folder / name for name in FILES))
    tables = _write_tables(inspection, folder)
    content = {
        "name": name,
        "title": f"gradients of {name}",
        "brand": "gradscore inspect",
        "footer": FOOTER,
        "facts": [(group, f"{count} samples") for group, count in inspection.samples.items()],
        "findings": inspection.findings,
        "verdict": inspection.verdict,
        "remark": f"{SCOPE.capitalize()}.",
        "notices": inspection.notices,
    }
    return write_beside(
        tables,
        folder / PAGE,
        lambda: (content, _parts_of_inspection(inspection)),
        template=TEMPLATE,
        again="inspect again",
    )


def _parts_of_inspection(inspection: Inspection) -> list[Part]:
    """The plots of an inspection, by what they show."""
    found: list[Part] = []
    for place, template in enumerate(next(iter(inspection.groups.values()))):
        groups = {name: quantities[place] for name, quantities in inspection.groups.items()}
        match template:
            case GradHist1d():
                plots = _alike(_heats(groups, inspection.layers))
                found.append(Part(title="Histograms of gradients", plots=plots, remark=HISTOGRAMS))
            case GradHist2d():
                plots = _alike(_heats_2d(groups))
                found.append(Part(title="Gradients and parameters", plots=plots, remark=HISTOGRAMS_2D))
            case MeanGSNR():
                signal = _signal(groups, inspection.layers, inspection.samples)
                heats = _alike(_signal_heats(groups, inspection.layers))
                found.append(Part(title="Do samples agree?", plots=[signal, *heats], remark=SIGNAL_MAPS))
            case _:
                title = template.title or template.name.capitalize()
                found.append(Part(title=title, plots=list(_profiles(groups, inspection.layers))))
    return [part for part in found if part.plots]


def _profiles(groups: Mapping[str, Quantity], order: Sequence[str]) -> Iterator[Plot]:
    first = next(iter(groups.values()))
    measures = dict.fromkeys(measure for quantity in groups.values() for measure in quantity.value)
    point = f"Point: {first.lines[0]}" if first.lines else ""
    drawn = f"{point}{f'; band: {BANDS[first.bands[0]]}' if first.bands else ''}."
    for measure in measures:
        found = {name: quantity.value.get(measure, {}) for name, quantity in groups.items()}
        seen = {layer for layers in found.values() for layer in layers if layer_of(layer)[0] in order}
        layers = sorted(seen, key=model_order(order))
        lines = [_aggregated(name, found[name], layers, number, first) for number, name in enumerate(groups)]
        yield layer_profile(
            lines,
            layers=layers,
            name=file_name(f"{first.name}-{measure}"),
            title=f"{first.name.capitalize()}: {measure}",
            caption=f"{first.caption(measure)} {drawn}".strip(),
            x_label=measure,
            log=first.log_scale and "norm" in measure and _all_positive(lines),
        )


def _all_positive(lines: Sequence[Line]) -> bool:
    """Whether a logarithmic scale can show lines: there is something to show, and nothing at or below zero."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    return bool(len(values)) and bool((values > 0).all())


def _line(name: str, values: FloatArray, number: int, bands: Sequence[tuple[FloatArray, FloatArray]] = ()) -> Line:
    """The line of the group with this number: a value for every layer."""
    places = np.arange(len(values), dtype=np.float64)
    return Line(name=name, colour=colour(number), x=places, y=values, bands=bands)


def _aggregated(
    name: str, aggregates: Mapping[str, Running], layers: Sequence[str], number: int, quantity: Quantity
) -> Line:
    """The first line and the first band that a quantity is to be drawn with."""
    nothing = Running(keeps=True).figures()
    rows = [aggregates[layer].figures() if layer in aggregates else nothing for layer in layers]
    figures = pd.DataFrame(rows, columns=list(nothing), dtype=np.float64)
    bands = [ends for name in quantity.bands[:1] if (ends := band_of(figures, name)) is not None]
    return _line(
        name, figures[quantity.lines[0]].to_numpy(), number, [(low.to_numpy(), high.to_numpy()) for low, high in bands]
    )


def _signal(groups: Mapping[str, Quantity], order: Sequence[str], samples: Mapping[str, int]) -> Plot:
    ratios = {name: quantity.over_data_set() for name, quantity in groups.items() if isinstance(quantity, MeanGSNR)}
    layers = [layer for layer in order if any(layer in found for found in ratios.values())]
    lines = [
        _line(name, np.array([found.get(layer, nan) for layer in layers]), number)
        for number, (name, found) in enumerate(ratios.items())
    ]
    noise = {name: f"{1 / (count - 3):.2g}" if count > 3 else "anything" for name, count in samples.items()}
    whole = "; ".join(f"{name} {found.get(MODEL, nan):.3g} ({noise[name]})" for name, found in ratios.items())
    return layer_profile(
        lines,
        layers=layers,
        name="gsnr",
        title="Gradient signal-to-noise ratio",
        caption="Squared mean over variance of each entry's gradient over all samples of a group, mean over entries. "
        "Large where samples want the same change of a parameter. Few samples look as if they agreed: n samples of "
        f"nothing but noise give about 1 / (n - 3). Whole model, and in brackets what noise would give: {whole}.",
        x_label="mean GSNR",
        log=_all_positive(lines),
    )


HeatMap = dict[str, Any]
"""Arguments of `heat_map`."""


def _alike(heats: Iterable[HeatMap]) -> list[Plot]:
    """The plots with one scale of colours, so that groups can be compared."""
    found = list(heats)
    lowest = min((float(np.nanmin(heat["values"], initial=-1.0)) for heat in found), default=-1.0)
    return [heat_map(**heat, low=lowest, high=0.0, unit="share, log10") for heat in found]


def _signal_heats(groups: Mapping[str, Quantity], order: Sequence[str]) -> Iterator[HeatMap]:
    """Heat maps of the ratios of entries, by parameter; undefined ones are left out."""
    logs: dict[str, dict[str, FloatArray]] = {}
    for name, quantity in groups.items():
        if isinstance(quantity, MeanGSNR):
            with np.errstate(divide="ignore"):
                found = {
                    layer: np.log10(quantity.ratios(layer).cpu().numpy())
                    for layer, each in quantity.moments.items()
                    if each.is_reached
                }
            logs[name] = {layer: found[layer][~np.isnan(found[layer])] for layer in order if layer in found}
    finite = [ratios[np.isfinite(ratios)] for found in logs.values() for ratios in found.values()]
    high = max((float(ratios.max()) for ratios in finite if len(ratios)), default=nan)
    if not np.isfinite(high):
        return
    low = max(high - SIGNAL_DECADES, min(float(ratios.min()) for ratios in finite if len(ratios)))
    edges = np.linspace(low, max(high, low + 1), SIGNAL_BINS + 1)
    for name, found in logs.items():
        rows = {layer: ratios for layer, ratios in found.items() if len(ratios)}
        if rows:
            counts = [np.histogram(ratios.clip(edges[0], edges[-1]), edges)[0] for ratios in rows.values()]
            yield {
                "name": file_name(f"gsnr-map-{name}"),
                "title": f"Signal-to-noise ratio of entries: {name}",
                "x_label": "GSNR of an entry, log10",
                "columns": (edges[:-1] + edges[1:]) / 2,
                "rows": [f"{layer}  {10 ** float(np.median(ratios)):.2g}" for layer, ratios in rows.items()],
                "values": np.stack([_log_shares(each) for each in counts]),
            }


def _heats(groups: Mapping[str, Quantity], order: Sequence[str]) -> Iterator[HeatMap]:
    for name, quantity in groups.items():
        if not isinstance(quantity, GradHist1d) or not quantity.histograms:
            continue
        layers = [layer for layer in order if layer in quantity.histograms]
        histograms = [quantity.histograms[layer] for layer in layers]
        yield {
            "name": file_name(f"histogram-{name}"),
            "title": f"Gradients: {name}",
            "x_label": "gradient, in shares of the row's range",
            "columns": (np.arange(quantity.bins[0]) + 0.5) / quantity.bins[0] * 2 - 1,
            "rows": [
                f"{layer}  ±{histogram.ranges[0][1]:.2g}" for layer, histogram in zip(layers, histograms, strict=True)
            ],
            "values": np.stack([_log_shares(histogram.counts.numpy()) for histogram in histograms]),
        }


def _heats_2d(groups: Mapping[str, Quantity]) -> Iterator[HeatMap]:
    for name, quantity in groups.items():
        if isinstance(quantity, GradHist2d) and quantity.model.total:
            gradient, parameter = quantity.model.edges
            yield {
                "name": file_name(f"histogram-2d-{name}"),
                "title": f"Gradients and parameters: {name}",
                "x_label": "gradient",
                "y_label": "parameter",
                "columns": (gradient[:-1] + gradient[1:]) / 2,
                "rows": (parameter[:-1] + parameter[1:]) / 2,
                "values": _log_shares(quantity.model.counts.numpy()).T,
            }


def _log_shares(counts: NDArray[np.int64]) -> FloatArray:
    shares = np.where(counts > 0, counts / max(1, counts.sum()), np.nan)
    logs: FloatArray = np.log10(shares)
    return logs


def _write_tables(inspection: Inspection, folder: Path) -> list[Path]:
    """Writes `figures.parquet` and, where those quantities were asked for, histograms.

    Args:
        inspection: what was found.
        folder: where the files go; it has none of them.

    Returns:
        The files: `figures.parquet` (group, quantity, measure, layer, statistic, value), `histograms.parquet` (group,
        layer, low, high, count, one row for each bin) and `histograms_2d.parquet` (with low and high of gradient and
        parameter, empty bins left out).
    """
    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    frames[TABLES[0]].append(inspection.table())
    for group, quantities in inspection.groups.items():
        for quantity in quantities:
            for name, layer, columns in _tables_of(quantity):
                frames[name].append(pd.DataFrame({"group": group, "layer": layer, **columns}))
    written = [folder / name for name in TABLES if frames[name]]
    for path in written:
        with replacing(path) as temporary:
            pd.concat(frames[path.name], ignore_index=True).to_parquet(temporary, index=False)
    return written


def _tables_of(quantity: Quantity) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Rows of tables about a quantity beside its figures: name of the table, layer, and columns."""
    if isinstance(quantity, GradHist1d):
        for layer, histogram in quantity.histograms.items():
            edges = histogram.edges[0]
            yield TABLES[1], layer, {"low": edges[:-1], "high": edges[1:], "count": histogram.counts.numpy()}
    elif isinstance(quantity, GradHist2d):
        for layer, histogram in quantity.of_layers().items():
            counts = histogram.counts.numpy()
            x, y = counts.nonzero()
            gradient, parameter = histogram.edges
            columns = {"gradient_low": gradient[x], "gradient_high": gradient[x + 1]}
            columns |= {"parameter_low": parameter[y], "parameter_high": parameter[y + 1], "count": counts[x, y]}
            yield TABLES[2], layer, columns
