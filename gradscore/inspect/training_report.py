"""A run of training: what is kept of it while it goes on, its file, and its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel
from typing_extensions import override

from ..reporting import Line, Part, Plot, check_packages, colour, file_name, heat_map, time_rows, write_page
from ..system import FloatArray, replacing
from .findings import Finding
from .histograms import GradHist1d, Histogram
from .layer_quantities import ExplicitCall
from .quantity import MODEL, POINTS, EpochFigure, Quantity, band_of, layer_of, model_order

TEMPLATE = Path(__file__).parent / "templates" / "inspect.html.jinja"

FOOTER = "Rows are layers or parameters from input to output. All figures are in the Parquet file beside this page."

MOST_MARKS = 12
"""Findings that are marked on the axes of time; more would hide the lines."""

MOST_HEATS = 12
"""Layers whose histograms are shown; all are in the Parquet file."""

HEAT_BINS = 61
"""Rows of a heat map of histograms, an odd number, so that zero has one of its own."""

LEAST_SHARE = -8.0
"""Shares that are shown, as powers of ten: fewer than one value of a hundred million is none."""

BOUNDED = frozenset({"correlation", "activation rate", "death rate"})
"""Measures that no logarithmic scale suits."""

OUTLYING = 1e4
"""A value so many times as large as the median makes a scale logarithmic, as in a run that explodes."""

COLUMNS = {
    "steps": ["quantity", "measure", "layer", "start", "stop", "count", "non_finite", "mean", "std", "min", "max"],
    "epochs": ["quantity", "measure", "layer", "epoch", "step", "statistic", "value"],
    "histograms": ["quantity", "layer", "epoch", "step", "low", "high", "bin_count"],
    "findings": ["step", "kind", "layer", "sentence"],
}
"""Columns of the tables of a run."""


class Drawing(BaseModel, frozen=True):
    """Settings of how a quantity is drawn; see `Quantity`."""

    title: str
    captions: dict[str, str]
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    log_scale: bool


@dataclass(frozen=True)
class TrainingRecord:
    """Record of a run that an inspector watched.

    Attributes:
        name: of the run.
        layers: layers and parameters in the order of the model.
        steps: for every stretch of steps (from `start`, before `stop`) of every quantity, measure and layer: count,
            values that are not finite, mean, population standard deviation, extremes.
        epochs: a row for every figure of every epoch, with the last step of the epoch.
        histograms: a row for every bin that is not empty, with its edges.
        findings: what was not well, with the step at which it was seen.
        drawings: how quantities are drawn, by name.
    """

    name: str
    layers: list[str]
    steps: pd.DataFrame
    epochs: pd.DataFrame
    histograms: pd.DataFrame
    findings: pd.DataFrame
    drawings: dict[str, Drawing] = field(default_factory=dict)

    def save(self, path: Path | str) -> None:
        """Writes the tables below each other, told apart by the column `part`, to a Parquet file."""
        filled = [getattr(self, name).assign(part=name) for name in COLUMNS if len(getattr(self, name))]
        rows = pd.concat(filled or [pd.DataFrame({"part": pd.Series([], dtype=str)})])
        with replacing(Path(path)) as temporary:
            rows.to_parquet(temporary, index=False)


MOST_EPOCHS = 64
"""Histograms that are kept of every layer: beyond, every second one is dropped, and from then on every second epoch."""

LOSS, RATE = "loss", "learning rate"


class TrainingLoop(ExplicitCall):
    """Quantity of what a training loop says of itself: its loss, its learning rate, and whatever it pushes.

    Attributes:
        bad_loss: the first step whose loss was NaN or infinite.
    """

    name = "training loop"
    title = "Loss and learning rate"
    bad_loss: int | None = None

    @override
    def _add(self, measure: str, layer: str, values: list[float], step: int | None) -> None:
        super()._add(measure, layer, values, step)
        if measure == LOSS and self.bad_loss is None and not all(map(isfinite, values)):
            self.bad_loss = step


class Logbook:
    """Keeps what the picture of a run needs and quantities forget at the end of an epoch.

    Attributes:
        last_steps: the last step of every epoch by its number: a resumed fit does not begin with 0.
    """

    def __init__(self) -> None:
        self.last_steps: dict[int, int] = {}
        self._histograms: dict[int, dict[str, Histogram]] = {}
        self._every = 1

    def end_epoch(self, number: int, step: int, quantities: Iterable[Quantity]) -> None:
        """Takes the histograms of an epoch, before they are forgotten."""
        self.last_steps[number] = max(0, step)
        found = {
            layer: histogram
            for quantity in quantities
            if isinstance(quantity, GradHist1d)
            for layer, histogram in quantity.of_layers().items()
            if histogram.total
        }
        if found and not number % self._every:
            self._histograms[number] = found
        if len(self._histograms) > MOST_EPOCHS:
            self._every *= 2
            self._histograms = {epoch: each for epoch, each in self._histograms.items() if not epoch % self._every}

    def record(
        self,
        name: str,
        layers: Sequence[str],
        quantities: Sequence[Quantity],
        history: Iterable[EpochFigure],
        findings: Iterable[Finding],
    ) -> TrainingRecord:
        """Everything as tables.

        Args:
            name: of the run.
            layers: layers and parameters in the order of the model.
            quantities: hold the values by step.
            history: the figures of the epochs.
            findings: with their steps.
        """
        quantities = [quantity for quantity in quantities if quantity.value or quantity.timelines or quantity.joined]
        epochs = pd.DataFrame(list(history), columns=EpochFigure._fields)
        return TrainingRecord(
            name=name,
            layers=list(layers),
            steps=pd.DataFrame([row for each in quantities for row in _steps(each)], columns=COLUMNS["steps"]),
            epochs=epochs.assign(step=epochs["epoch"].map(self.last_steps))[COLUMNS["epochs"]],
            histograms=pd.DataFrame(list(self._bins()), columns=COLUMNS["histograms"]),
            findings=pd.DataFrame(
                [(each.step or 0, each.kind, each.layer, str(each)) for each in findings], columns=COLUMNS["findings"]
            ),
            drawings={
                each.name: Drawing(
                    title=each.title or each.name.capitalize(),
                    captions={measure: each.caption(measure) for measure in each.captions},
                    lines=each.lines,
                    bands=each.bands,
                    log_scale=each.log_scale,
                )
                for each in quantities
            },
        )

    def _bins(self) -> Iterator[tuple[Any, ...]]:
        for epoch, histograms in self._histograms.items():
            for layer, histogram in histograms.items():
                edges = histogram.edges[0]
                for place, count in enumerate(histogram.counts.tolist()):
                    if count:
                        step = self.last_steps[epoch]
                        yield GradHist1d.name, layer, epoch, step, edges[place], edges[place + 1], count


def _steps(quantity: Quantity) -> Iterator[tuple[Any, ...]]:
    for measure in dict.fromkeys([*quantity.joined, *quantity.timelines]):
        joined, own = quantity.joined.get(measure, {}), quantity.timelines.get(measure, {})
        for layer in dict.fromkeys([*joined, *own]):
            timelines = [each[layer] for each in (joined, own) if layer in each]
            for start, stop, moments in chain.from_iterable(timeline.stretches() for timeline in timelines):
                where = (quantity.name, measure, layer, start, stop)
                yield (*where, moments.count, moments.non_finite, *moments.figures().values())


def write_training(record: TrainingRecord, path: Path | str) -> None:
    """Writes the page of a run.

    Args:
        record: the run.
        path: the page.

    Raises:
        MissingExtraError: the extra `report` is not installed.
    """
    check_packages("page", "write it again")
    findings = list(record.findings["sentence"])
    content = {
        "name": record.name,
        "title": f"training of {record.name}",
        "brand": "gradscore inspect: training",
        "facts": [("seen", _extent(record))],
        "findings": findings,
        "verdict": "not well" if findings else "",
        "remark": "Dashed lines mark these steps.",
        "footer": FOOTER,
    }
    write_page(Path(path), content, _parts(record), template=TEMPLATE)


def _extent(record: TrainingRecord) -> str:
    steps = int(record.steps["stop"].max()) if len(record.steps) else 0
    epochs = int(record.epochs["epoch"].max()) + 1 if len(record.epochs) else 0
    return f"{steps} steps, {epochs} epochs ended"


def _parts(record: TrainingRecord) -> list[Part]:
    """The plots: by quantity, steps first and then epochs."""
    found = [
        Part(title=drawing.title, plots=list(_time_plots(record, name, drawing)))
        for name, drawing in record.drawings.items()
    ]
    found.append(Part(title="Histograms of gradients over time", plots=list(_histograms(record))))
    return [part for part in found if part.plots]


def _time_plots(record: TrainingRecord, quantity: str, drawing: Drawing) -> Iterator[Plot]:
    """Every measure by step; then by epoch, where there are several."""
    for by, table in (("step", record.steps), ("epoch", record.epochs)):
        frame = table[table["quantity"] == quantity]
        if by == "epoch":
            frame = frame[~frame["statistic"].isin(["count", "non_finite"])]
            if len(set(frame["epoch"])) < 2:
                return
            ends = int(table["epoch"].min()), _last(table["epoch"])
            marks = sorted(set(_epochs_of_findings(record)))
        else:
            ends, marks = (0, _last(table["stop"]) - 1), sorted({float(step) for step in record.findings["step"]})
        for measure in dict.fromkeys(frame["measure"]):
            part = frame[frame["measure"] == measure]
            rows = [(layer, lines) for layer in _layers(record, part) if (lines := _lines(part, layer, drawing))]
            if rows:
                yield time_rows(
                    rows,
                    name=file_name(f"{quantity}-{measure}-{by}s"),
                    title=f"{measure[:1].upper()}{measure[1:]}, by {by}",
                    caption=_caption(drawing, by, measure, part),
                    x_label=by,
                    log=_is_log(drawing, measure, rows),
                    marks=marks[:MOST_MARKS],
                    ends=ends,
                )


Row = tuple[str, list[Line]]
"""A layer, or another row of a plot, and its lines."""


def _lines(part: pd.DataFrame, layer: str, drawing: Drawing) -> list[Line]:
    """The lines of a layer, the first of them with bands."""
    wide, x = _by_time(part[part["layer"] == layer])
    if wide.empty:
        return []
    chosen = [name for name in drawing.lines if name in wide]
    chosen = chosen or ["mean" if "mean" in wide else str(wide.columns[0])]
    bands = [
        (low.to_numpy(np.float64), high.to_numpy(np.float64))
        for low, high in filter(None, (band_of(wide, name) for name in drawing.bands))
    ]
    return [
        Line(name=name, colour=colour(place), x=x, y=wide[name].to_numpy(np.float64), bands=() if place else bands)
        for place, name in enumerate(chosen)
    ]


def _by_time(part: pd.DataFrame) -> tuple[pd.DataFrame, FloatArray]:
    """A row for each stretch of steps or each epoch, with columns of statistics, and where it lies."""
    if "start" in part:
        wide = part.sort_values("start")
        return wide, (wide["start"].to_numpy(np.float64) + wide["stop"].to_numpy(np.float64) - 1) / 2
    wide = part.pivot_table(index="epoch", columns="statistic", values="value", dropna=False)
    return wide, wide.index.to_numpy(np.float64)


def _layers(record: TrainingRecord, part: pd.DataFrame) -> list[str]:
    """Layers in the order of the model, the whole model first."""
    return sorted(dict.fromkeys(part["layer"]), key=model_order([MODEL, *record.layers]))


def _is_log(drawing: Drawing, measure: str, rows: Sequence[Row]) -> bool:
    """Whether a scale is logarithmic: where it is asked for, and where few values would hide all others."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for _, lines in rows for line in lines] or [np.empty(0)])
    if measure in BOUNDED or not len(values) or not (values > 0).all():
        return False
    return drawing.log_scale or bool(values.max() > OUTLYING * np.median(values))


def _last(numbers: pd.Series[int]) -> int:
    return int(numbers.max()) if len(numbers) else 0


def _caption(drawing: Drawing, by: str, measure: str, part: pd.DataFrame) -> str:
    lines, bands = drawing.lines, drawing.bands
    if by == "epoch":
        return f"Lines: {', '.join(lines)}; bands: {', '.join(bands) or 'none'}; of the values of an epoch."
    # Of stretches of steps there are no median and no quartiles.
    lines, bands = (tuple(name for name in names if name in (*POINTS, "min-max")) for names in (lines, bands))
    lost = int(part["non_finite"].sum())
    missing = f" {lost} values are NaN or infinite, and left out." if lost else ""
    how = f"Lines: {', '.join(lines or ['mean'])}; bands: {', '.join(bands) or 'none'}; of a stretch of steps."
    return f"{drawing.captions.get(measure, '')} {how}{missing}".strip()


def _epochs_of_findings(record: TrainingRecord) -> list[float]:
    """The epochs in which something was found, counted as the others are; the next one after the last that ended."""
    ends = record.epochs.groupby("step")["epoch"].min()
    epochs = [*ends, _last(ends) + 1]
    return [float(epochs[place]) for place in np.searchsorted(ends.index, record.findings["step"])]


def _histograms(record: TrainingRecord) -> Iterator[Plot]:
    bins = record.histograms
    for layer in _layers(record, bins)[:MOST_HEATS]:
        heat = _heat(record, bins[bins["layer"] == layer], layer)
        if heat is not None:
            yield heat


def _heat(record: TrainingRecord, bins: pd.DataFrame, layer: str) -> Plot | None:
    """Histogram of values, epoch by epoch; bins of any width are spread evenly over those they cover."""
    epochs = sorted(set(bins["epoch"]))
    if len(epochs) < 2:
        return None
    edges = np.linspace(float(bins["low"].min()), float(bins["high"].max()), HEAT_BINS + 1)
    apart = int(np.gcd.reduce(np.diff(epochs)))  # above 1 where many were subsampled out
    first = epochs[0] - (epochs[0] - int(record.epochs["epoch"].min())) // apart * apart
    columns = np.arange(first, max(epochs[-1], _last(record.epochs["epoch"])) + 1, apart)
    logs = np.full((HEAT_BINS, len(columns)), np.nan)
    for epoch, part in bins.groupby("epoch"):
        shares = _shares_between(part.sort_values("low"), edges)
        logs[:, (int(str(epoch)) - first) // apart] = np.log10(np.where(shares > 0, shares, np.nan))
    whole = len(epochs) == len(columns)
    return heat_map(
        logs,
        name=file_name(f"histogram-{record.name}-{layer}"),
        title=layer if layer_of(layer)[0] != MODEL else "whole model",
        caption="" if whole else "Epochs without a colour have no value that is finite.",
        x_label="epoch",
        y_label="gradient",
        columns=columns.astype(np.float64),
        rows=(edges[:-1] + edges[1:]) / 2,
        low=max(float(np.nanmin(logs)), LEAST_SHARE),
        high=0.0,
        unit="share, log10",
    )


def _shares_between(bins: pd.DataFrame, edges: FloatArray) -> FloatArray:
    """The shares of values between edges, if values lie evenly in their bins."""
    ends = bins[["low", "high"]].to_numpy(np.float64).ravel()
    counts = bins["bin_count"].to_numpy(np.float64)
    after = np.cumsum(counts)
    reached: FloatArray = np.interp(edges, ends, np.stack([after - counts, after], axis=1).ravel())
    shares: FloatArray = np.diff(reached) / after[-1]
    return shares
