"""The page of training, one run or several beside each other, which needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..reporting import Line, Part, Plot, check_packages, colour, file_name, heat_map, time_rows, write_page
from ..system import FloatArray
from .quantities.aggregates import BANDS, POINTS
from .quantities.quantity import MODEL, layer_of, model_order
from .training_record import Drawing, TrainingRecord

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

ONE_NUMBER = frozenset({"count", "non_finite"})
"""Statistics of a summary that are no lines."""


Row = tuple[str, list[Line]]
"""A layer, or another row of a plot, and its lines."""


def write_training(records: Sequence[TrainingRecord], path: Path, *, images: bool = True) -> list[Path]:
    """Writes a page of one run, or of several beside each other.

    Args:
        records: the runs; of the same name, they are numbered.
        path: the page.
        images: also write every plot as PNG and SVG, to the folder `<name of the page>-plots`.

    Returns:
        The PNG and SVG files.

    Raises:
        MissingExtraError: the extra `report` is not installed.
    """
    check_packages("page", "write it again")
    records = _numbered(records)
    several = len(records) > 1
    findings = [
        f"{record.name}: {sentence}" if several else sentence
        for record in records
        for sentence in record.findings["sentence"]
    ]
    name = " and ".join(record.name for record in records)
    content = {
        "name": name,
        "title": f"training of {name}",
        "brand": "gradscore inspect: training",
        "facts": [(record.name if several else "seen", _extent(record)) for record in records],
        "findings": findings,
        "verdict": "not well" if findings else "",
        "remark": "Dashed lines mark these steps.",
        "footer": FOOTER,
    }
    plots = path.with_name(f"{path.stem}-plots") if images else None
    return write_page(path, content, _parts(records), template=TEMPLATE, plots=plots)


def _numbered(records: Sequence[TrainingRecord]) -> list[TrainingRecord]:
    """Runs with names of their own."""
    found: list[TrainingRecord] = []
    for record in records:
        names, name, number = {each.name for each in found}, record.name, 1
        while name in names:
            number += 1
            name = f"{record.name} ({number})"
        found.append(replace(record, name=name))
    return found


def _extent(record: TrainingRecord) -> str:
    steps = int(record.steps["stop"].max()) if len(record.steps) else 0
    epochs = int(record.epochs["epoch"].max()) + 1 if len(record.epochs) else 0
    return f"{steps} steps, {epochs} epochs ended"


def _parts(records: Sequence[TrainingRecord]) -> list[Part]:
    """The plots: by quantity, steps first and then epochs."""
    drawings = {name: drawing for record in records for name, drawing in record.drawings.items()}
    found = [
        Part(title=drawing.title, plots=[*_by_step(records, name, drawing), *_by_epoch(records, name, drawing)])
        for name, drawing in drawings.items()
    ]
    found.append(Part(title="Histograms of gradients over time", plots=list(_histograms(records))))
    return [part for part in found if part.plots]


def _by_step(records: Sequence[TrainingRecord], quantity: str, drawing: Drawing) -> Iterator[Plot]:
    frames = [record.steps[record.steps["quantity"] == quantity] for record in records]
    for measure in dict.fromkeys(name for frame in frames for name in frame["measure"]):
        parts = [frame[frame["measure"] == measure] for frame in frames]
        rows = _rows(_step_lines, records, parts, drawing)
        yield time_rows(
            rows,
            name=file_name(f"{quantity}-{measure}-steps"),
            title=f"{measure[:1].upper()}{measure[1:]}, by step",
            caption=_caption(drawing, measure, parts),
            x_label="step",
            log=_is_log(drawing, measure, rows),
            marks=_marks(records),
            ends=(0, max(_last(record.steps["stop"]) for record in records) - 1),
        )


def _rows(
    lines_of: Callable[..., list[Line]],
    records: Sequence[TrainingRecord],
    parts: Sequence[pd.DataFrame],
    drawing: Drawing,
) -> list[Row]:
    """A row for each layer, with the lines of all runs."""
    return [
        (
            layer,
            [
                line
                for number, (part, record) in enumerate(zip(parts, records, strict=True))
                for line in lines_of(part[part["layer"] == layer], record, number, len(records), drawing)
            ],
        )
        for layer in _layers(records, parts)
    ]


def _step_lines(part: pd.DataFrame, record: TrainingRecord, number: int, runs: int, drawing: Drawing) -> list[Line]:
    """As `_epoch_lines`, of what is kept of stretches of steps: no median, no quartiles."""
    wide = part.sort_values("start")
    if wide.empty:
        return []
    middle = (wide["start"].to_numpy(np.float64) + wide["stop"].to_numpy(np.float64) - 1) / 2
    return _lines(wide, middle, _by_steps(drawing.lines) or ["mean"], record, number, runs, drawing)


def _by_steps(statistics: Sequence[str]) -> list[str]:
    """Those of some statistics or ranges that are kept of stretches of steps."""
    return [name for name in statistics if name in (*POINTS, "min-max")]


def _by_epoch(records: Sequence[TrainingRecord], quantity: str, drawing: Drawing) -> Iterator[Plot]:
    frames = [record.epochs[record.epochs["quantity"] == quantity] for record in records]
    if not any(len(set(frame["epoch"])) > 1 for frame in frames):
        return
    for measure in dict.fromkeys(name for frame in frames for name in frame["measure"]):
        parts = [frame[(frame["measure"] == measure) & ~frame["statistic"].isin(ONE_NUMBER)] for frame in frames]
        rows = _rows(_epoch_lines, records, parts, drawing)
        rows = [(layer, lines) for layer, lines in rows if lines]
        if rows:
            yield time_rows(
                rows,
                name=file_name(f"{quantity}-{measure}-epochs"),
                title=f"{measure[:1].upper()}{measure[1:]}, by epoch",
                caption=f"Lines: {', '.join(drawing.lines)}; bands: {', '.join(drawing.bands) or 'none'}; of the "
                "values of an epoch.",
                x_label="epoch",
                log=_is_log(drawing, measure, rows),
                marks=sorted({epoch for record in records for epoch in _epochs_of_findings(record)})[:MOST_MARKS],
                ends=(0, max(_last(record.epochs["epoch"]) for record in records)),
            )


def _epoch_lines(part: pd.DataFrame, record: TrainingRecord, number: int, runs: int, drawing: Drawing) -> list[Line]:
    """The lines that a quantity is to be drawn with, the bands about the first one; or what statistics there are."""
    wide = part.pivot_table(index="epoch", columns="statistic", values="value", dropna=False)
    if wide.empty:
        return []
    chosen = [name for name in drawing.lines if name in wide] or [str(wide.columns[0])]
    return _lines(wide, wide.index.to_numpy(np.float64), chosen, record, number, runs, drawing)


def _lines(
    wide: pd.DataFrame,
    x: FloatArray,
    chosen: Sequence[str],
    record: TrainingRecord,
    number: int,
    runs: int,
    drawing: Drawing,
) -> list[Line]:
    """A line for each chosen column, the bands about the first one."""
    bands = [ends for name in drawing.bands if (ends := _band(wide, name)) is not None]
    return [
        Line(
            name=f"{record.name}: {name}" if runs > 1 and len(chosen) > 1 else record.name if runs > 1 else name,
            colour=colour(number if runs > 1 else place),
            x=x,
            y=wide[name].to_numpy(np.float64),
            bands=() if place else bands,
            dotted=runs > 1 and place > 0,
        )
        for place, name in enumerate(chosen)
    ]


def _band(wide: pd.DataFrame, name: str) -> tuple[FloatArray, FloatArray] | None:
    if name == "std":
        if "mean" not in wide or "std" not in wide:
            return None
        mean, std = wide["mean"].to_numpy(np.float64), wide["std"].to_numpy(np.float64)
        return mean - std, mean + std
    low, _, high = name.partition("-")
    if name not in BANDS or low not in wide or high not in wide:
        return None
    return wide[low].to_numpy(np.float64), wide[high].to_numpy(np.float64)


def _layers(records: Sequence[TrainingRecord], parts: Sequence[pd.DataFrame]) -> list[str]:
    """Layers in the order of the model, the whole model first."""
    order = list(dict.fromkeys(name for record in records for name in record.layers))
    place = model_order([MODEL, *order])
    return sorted(dict.fromkeys(name for part in parts for name in part["layer"]), key=place)


def _is_log(drawing: Drawing, measure: str, rows: Sequence[Row]) -> bool:
    """Whether a scale is logarithmic: where it is asked for, and where few values would hide all others."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for _, lines in rows for line in lines] or [np.empty(0)])
    if measure in BOUNDED or not len(values) or not (values > 0).all():
        return False
    return drawing.log_scale or bool(values.max() > OUTLYING * np.median(values))


def _last(numbers: pd.Series[int]) -> int:
    return int(numbers.max()) if len(numbers) else 0


def _caption(drawing: Drawing, measure: str, parts: Sequence[pd.DataFrame]) -> str:
    lines, bands = _by_steps(drawing.lines) or ["mean"], _by_steps(drawing.bands)
    lost = sum(int(part["non_finite"].sum()) for part in parts)
    missing = f" {lost} values are NaN or infinite, and left out." if lost else ""
    how = f"Lines: {', '.join(lines)}; bands: {', '.join(bands) or 'none'}; of a stretch of steps."
    return f"{drawing.captions.get(measure, '')} {how}{missing}".strip()


def _marks(records: Sequence[TrainingRecord]) -> list[float]:
    steps = sorted({float(step) for record in records for step in record.findings["step"]})
    return steps[:MOST_MARKS]


def _epochs_of_findings(record: TrainingRecord) -> list[float]:
    """The epochs in which something was found, counted as the others are."""
    ends = sorted(set(record.epochs["step"]))
    return [float(np.searchsorted(ends, step)) for step in record.findings["step"]]


def _histograms(records: Sequence[TrainingRecord]) -> Iterator[Plot]:
    for record in records:
        bins = record.histograms
        for layer in _layers([record], [bins])[:MOST_HEATS]:
            heat = _heat(record, bins[bins["layer"] == layer], layer, several=len(records) > 1)
            if heat is not None:
                yield heat


def _heat(record: TrainingRecord, bins: pd.DataFrame, layer: str, *, several: bool) -> Plot | None:
    """How often which value occurred, epoch by epoch; bins of any width are spread evenly over those they cover."""
    epochs = sorted(set(bins["epoch"]))
    if len(epochs) < 2:
        return None
    edges = np.linspace(float(bins["low"].min()), float(bins["high"].max()), HEAT_BINS + 1)
    apart = int(np.gcd.reduce(epochs))  # above 1 where many were subsampled out
    columns = np.arange(0, max(epochs[-1], _last(record.epochs["epoch"])) + 1, apart)
    logs = np.full((HEAT_BINS, len(columns)), np.nan)
    for epoch, part in bins.groupby("epoch"):
        shares = _spread(part.sort_values("low"), edges)
        logs[:, int(str(epoch)) // apart] = np.log10(np.where(shares > 0, shares, np.nan))
    name = layer if layer_of(layer)[0] != MODEL else "whole model"
    whole = len(epochs) == len(columns)
    return heat_map(
        logs,
        name=file_name(f"histogram-{record.name}-{layer}"),
        title=f"{record.name}: {name}" if several else name,
        caption="" if whole else "Epochs without a colour have no value that is finite.",
        x_label="epoch",
        y_label="gradient",
        columns=columns.astype(np.float64),
        rows=(edges[:-1] + edges[1:]) / 2,
        low=max(float(np.nanmin(logs)), LEAST_SHARE),
        high=0.0,
        unit="share, log10",
    )


def _spread(bins: pd.DataFrame, edges: FloatArray) -> FloatArray:
    """The shares of values between edges, if values lie evenly in their bins."""
    ends = bins[["low", "high"]].to_numpy(np.float64).ravel()
    counts = bins["bin_count"].to_numpy(np.float64)
    after = np.cumsum(counts)
    reached: FloatArray = np.interp(edges, ends, np.stack([after - counts, after], axis=1).ravel())
    shares: FloatArray = np.diff(reached) / after[-1]
    return shares
