"""Which plots a report of an inspection has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...reporting import HeatMap, LayerLine, LayerProfile, Plot, colour, file_name
from ...system import FloatArray
from ..quantities.aggregates import Aggregate
from ..quantities.gsnr import MeanGSNR
from ..quantities.histograms import GradHist1d, GradHist2d
from ..quantities.quantity import MODEL, Quantity, layer_of, model_order
from ..saved_model import Inspection

HISTOGRAMS = (
    "Elements of single samples' gradients. Each row is a parameter, colour the share of its elements. Every row has "
    "a range of its own, the same in all groups: the largest gradient of that parameter in a first batch of each group "
    "(point at a row to see it). What lies beyond is counted at the ends."
)

HISTOGRAMS_2D = (
    "Every element of every sample's gradient against the value of the parameter entry it belongs to, over the whole "
    "model; colour is the share. What lies beyond an axis is counted at its end."
)

SIGNAL_MAPS = (
    "Maps: the ratio of every entry by itself, one row for each parameter, colour the share of its entries. Entries "
    "whose gradient is zero for all samples, and others below the scale, are counted at its low end; gsnr.parquet has "
    "them all."
)

SIGNAL_BINS = 61
"""As many as the histograms of gradients have."""

SIGNAL_DECADES = 8
"""Decades below the largest ratio that the maps show: one estimated from N samples is noise below 1/N."""

BANDS = {"std": "one standard deviation", "min-max": "extremes", "Q1-Q3": "quartiles"}
"""What ranges are called in captions."""


@dataclass(frozen=True)
class Section:
    """Plots under a heading, and what holds for all of them."""

    title: str
    plots: list[Plot]
    remark: str = ""


def inspection_sections(inspection: Inspection) -> list[Section]:
    """The plots of an inspection, by what they show."""
    found: list[Section] = []
    for place, template in enumerate(next(iter(inspection.groups.values()))):
        groups = {name: quantities[place] for name, quantities in inspection.groups.items()}
        match template:
            case GradHist1d():
                found.append(Section("Histograms of gradients", _alike(_heats(groups, inspection.layers)), HISTOGRAMS))
            case GradHist2d():
                found.append(Section("Gradients and parameters", _alike(_heats_2d(groups)), HISTOGRAMS_2D))
            case MeanGSNR():
                signal = _signal(groups, inspection.layers, inspection.samples)
                heats = _alike(_signal_heats(groups, inspection.layers))
                found.append(Section("Do samples agree?", [signal, *heats], SIGNAL_MAPS))
            case _:
                found.append(
                    Section(template.title or template.name.capitalize(), list(_profiles(groups, inspection.layers)))
                )
    return [section for section in found if section.plots]


def moves_sections(moves: pd.DataFrame) -> list[Section]:
    """The plots of how a model moved between checkpoints."""
    layers = [name for name in dict.fromkeys(moves["layer"]) if name != MODEL]
    steps = list(dict.fromkeys(zip(moves["from"], moves["to"], strict=True)))
    captions = {
        "relative": ("How far", "Size of the step relative to the parameter's own size.", "relative step"),
        "correlation": ("Which way", "Cosine with the step before: 1 goes on, -1 turns back.", "correlation"),
    }
    plots: list[Plot] = []
    for column, (title, caption, label) in captions.items():
        lines = []
        for number, (start, stop) in enumerate(steps):
            part = moves[(moves["from"] == start) & (moves["to"] == stop)].set_index("layer")[column]
            values = part.reindex(layers).to_numpy(dtype=np.float64)
            if np.isfinite(values).any():
                lines.append(LayerLine(name=f"{start} to {stop}", colour=colour(number), middle=values))
        if lines:
            log = column == "relative" and _all_positive(lines)
            plots.append(
                LayerProfile(
                    name=f"checkpoints-{column}",
                    title=title,
                    caption=caption,
                    x_label=label,
                    layers=layers,
                    lines=lines,
                    log=log,
                )
            )
    return [Section("From checkpoint to checkpoint", plots)]


def _profiles(groups: Mapping[str, Quantity], order: Sequence[str]) -> Iterator[Plot]:
    first = next(iter(groups.values()))
    measures = dict.fromkeys(measure for quantity in groups.values() for measure in quantity.value)
    for measure in measures:
        found = {name: quantity.value.get(measure, {}) for name, quantity in groups.items()}
        layers = _in_order({layer for layers in found.values() for layer in layers}, order)
        lines = [_line(name, found[name], layers, number, first) for number, name in enumerate(groups)]
        log = first.log_scale and "norm" in measure and _all_positive(lines)
        yield LayerProfile(
            name=file_name(f"{first.name}-{measure}"),
            title=f"{first.name.capitalize()}: {measure}",
            caption=f"{first.caption(measure)} {_drawn(first)}".strip(),
            x_label=measure,
            layers=layers,
            lines=lines,
            log=log,
        )


def _in_order(layers: Iterable[str], order: Sequence[str]) -> list[str]:
    """Layers, and calls of layers, in the order of the model; what is none of them is left out."""
    place = model_order(order)
    return sorted((layer for layer in layers if layer_of(layer)[0] in set(order)), key=place)


def _all_positive(lines: Sequence[LayerLine]) -> bool:
    """Whether a logarithmic scale can show lines: there is something to show, and nothing at or below zero."""
    values = np.concatenate([line.middle[np.isfinite(line.middle)] for line in lines])
    return bool(len(values)) and bool((values > 0).all())


def _drawn(quantity: Quantity) -> str:
    """What the points and bands of a quantity are."""
    point = f"Point: {quantity.lines[0]}" if quantity.lines else ""
    return f"{point}{f'; band: {BANDS[quantity.bands[0]]}' if quantity.bands else ''}."


def _line(
    name: str, aggregates: Mapping[str, Aggregate], layers: Sequence[str], number: int, quantity: Quantity
) -> LayerLine:
    """The first line and the first band that a quantity is to be drawn with."""
    middle, band = [], []
    for layer in layers:
        aggregate = aggregates.get(layer)
        if aggregate is None:
            middle.append(nan)
            band.append((nan, nan))
        else:
            middle.append(aggregate.point(quantity.lines[0]))
            band.append(aggregate.band(quantity.bands[0]) if quantity.bands else (nan, nan))
    low, high = np.array(band, dtype=np.float64).reshape(-1, 2).T
    return LayerLine(name=name, colour=colour(number), middle=np.array(middle, dtype=np.float64), low=low, high=high)


def _signal(groups: Mapping[str, Quantity], order: Sequence[str], samples: Mapping[str, int]) -> LayerProfile:
    ratios = {name: quantity.over_data_set() for name, quantity in groups.items() if isinstance(quantity, MeanGSNR)}
    layers = [layer for layer in order if any(layer in found for found in ratios.values())]
    lines = [
        LayerLine(name=name, colour=colour(number), middle=np.array([found.get(layer, nan) for layer in layers]))
        for number, (name, found) in enumerate(ratios.items())
    ]
    whole = "; ".join(f"{name} {found.get(MODEL, nan):.3g} ({_noise(samples[name])})" for name, found in ratios.items())
    return LayerProfile(
        name="gsnr",
        title="Gradient signal-to-noise ratio",
        caption="Squared mean over variance of each entry's gradient over all samples of a group, mean over entries. "
        "Large where samples want the same change of a parameter. Few samples look as if they agreed: n samples of "
        f"nothing but noise give about 1 / (n - 3). Whole model, and in brackets what noise would give: {whole}.",
        x_label="mean GSNR",
        layers=layers,
        lines=lines,
        log=_all_positive(lines),
    )


def _signal_heats(groups: Mapping[str, Quantity], order: Sequence[str]) -> Iterator[HeatMap]:
    """How the ratios of entries are spread, by parameter; undefined ones are left out."""
    logs: dict[str, dict[str, FloatArray]] = {}
    for name, quantity in groups.items():
        if isinstance(quantity, MeanGSNR):
            with np.errstate(divide="ignore"):
                found = {layer: np.log10(quantity.ratios(layer).cpu().numpy()) for layer in quantity.moments}
            logs[name] = {layer: found[layer][~np.isnan(found[layer])] for layer in order if layer in found}
    finite = [ratios[np.isfinite(ratios)] for found in logs.values() for ratios in found.values()]
    high = max((float(ratios.max()) for ratios in finite if len(ratios)), default=nan)
    if not np.isfinite(high):
        return
    low = max(high - SIGNAL_DECADES, min(float(ratios.min()) for ratios in finite if len(ratios)))
    edges = np.linspace(low, max(high, low + 1), SIGNAL_BINS + 1)
    for name, found in logs.items():
        rows = [layer for layer, ratios in found.items() if len(ratios)]
        if rows:
            counts = [np.histogram(found[layer].clip(edges[0], edges[-1]), edges)[0] for layer in rows]
            yield HeatMap(
                name=file_name(f"gsnr-map-{name}"),
                title=f"Signal-to-noise ratio of entries: {name}",
                x_label="GSNR of an entry, log10",
                columns=(edges[:-1] + edges[1:]) / 2,
                rows=rows,
                values=np.stack([_log_shares(each) for each in counts]),
                hover=[f"median {10 ** float(np.median(found[layer])):.2g}" for layer in rows],
            )


def _noise(samples: int) -> str:
    return f"{1 / (samples - 3):.2g}" if samples > 3 else "anything"


def _heats(groups: Mapping[str, Quantity], order: Sequence[str]) -> Iterator[HeatMap]:
    for name, quantity in groups.items():
        if not isinstance(quantity, GradHist1d) or not quantity.histograms:
            continue
        layers = [layer for layer in order if layer in quantity.histograms]
        histograms = [quantity.histograms[layer] for layer in layers]
        yield HeatMap(
            name=file_name(f"histogram-{name}"),
            title=f"Gradients: {name}",
            x_label="gradient, in shares of the row's range",
            columns=(np.arange(quantity.bins) + 0.5) / quantity.bins * 2 - 1,
            rows=layers,
            values=np.stack([_log_shares(histogram.counts.numpy()) for histogram in histograms]),
            hover=[f"range ±{histogram.ranges[0][1]:.2g}" for histogram in histograms],
        )


def _heats_2d(groups: Mapping[str, Quantity]) -> Iterator[HeatMap]:
    for name, quantity in groups.items():
        if isinstance(quantity, GradHist2d) and quantity.model.total:
            gradient, parameter = quantity.model.edges
            yield HeatMap(
                name=file_name(f"histogram-2d-{name}"),
                title=f"Gradients and parameters: {name}",
                x_label="gradient",
                y_label="parameter",
                columns=(gradient[:-1] + gradient[1:]) / 2,
                rows=(parameter[:-1] + parameter[1:]) / 2,
                values=_log_shares(quantity.model.counts.numpy()).T,
            )


def _alike(heats: Iterator[HeatMap]) -> list[Plot]:
    """The same plots with one scale of colours, so that groups can be compared."""
    found = list(heats)
    lowest = min((float(np.nanmin(heat.values, initial=-1.0)) for heat in found), default=-1.0)
    return [replace(heat, low=lowest, high=0.0, unit="share, log10") for heat in found]


def _log_shares(counts: NDArray[np.int64]) -> FloatArray:
    shares = np.where(counts > 0, counts / max(1, counts.sum()), np.nan)
    logs: FloatArray = np.log10(shares)
    return logs
