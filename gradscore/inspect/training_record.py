"""A run of training: what is kept of it while it goes on, as tables, and in one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from ..errors import ConfigError
from ..system import replacing
from .findings import Finding
from .quantities.histograms import GradHist1d, Histogram
from .quantities.losses import ExplicitCall
from .quantities.quantity import MODEL, Entry, Quantity

KEY = b"gradscore.training"
"""Of what a Parquet file says beside its rows."""

STEPS = ("quantity", "measure", "layer", "start", "stop", "count", "non_finite", "mean", "std", "min", "max")
EPOCHS = ("quantity", "measure", "layer", "epoch", "step", "statistic", "value")
HISTOGRAMS = ("quantity", "layer", "epoch", "step", "low", "high", "bin_count")
FINDINGS = ("step", "kind", "layer", "sentence")


class Drawing(BaseModel, frozen=True):
    """How a quantity is drawn; see `Quantity`."""

    title: str
    captions: dict[str, str]
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    log_scale: bool


class _Header(BaseModel):
    """What a file says beside its rows."""

    name: str
    layers: list[str]
    drawings: dict[str, Drawing]


@dataclass(frozen=True)
class TrainingRecord:
    """What an inspector saw of a run.

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
        """Writes one Parquet file; what is there stays until the new one is complete."""
        parts = {"steps": self.steps, "epochs": self.epochs, "histograms": self.histograms, "findings": self.findings}
        filled = [part.assign(part=name) for name, part in parts.items() if len(part)]
        rows = pd.concat(filled or [pd.DataFrame({"part": pd.Series([], dtype=str)})])
        header = _Header(name=self.name, layers=self.layers, drawings=self.drawings)
        table = pa.Table.from_pandas(rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: header.model_dump_json().encode()})
        with replacing(Path(path)) as temporary:
            pq.write_table(table, temporary)


def read_record(path: Path | str) -> TrainingRecord:
    """Reads what `TrainingRecord.save` wrote.

    Raises:
        ConfigError: the file is not there, or is something else.
    """
    if not Path(path).is_file():
        got = "a folder" if Path(path).is_dir() else "nothing there"
        raise ConfigError(
            f"{path} holds no run: wanted a file that Inspector.save or Inspector.report wrote, got {got}"
        )
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read as a run of training: {error}") from error
    about = (table.schema.metadata or {}).get(KEY)
    if about is None:
        raise ConfigError(
            f"{path} holds no run of training; wanted a file that Inspector.save or Inspector.report wrote"
        )
    try:
        header, rows = _Header.model_validate_json(about), table.to_pandas()
        return TrainingRecord(
            name=header.name,
            layers=header.layers,
            steps=_part(rows, "steps", STEPS, whole=("start", "stop", "count", "non_finite")),
            epochs=_part(rows, "epochs", EPOCHS, whole=("epoch", "step")),
            histograms=_part(rows, "histograms", HISTOGRAMS, whole=("epoch", "step", "bin_count")),
            findings=_part(rows, "findings", FINDINGS, whole=("step",)),
            drawings=header.drawings,
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged, or another version of gradscore wrote it: {str(error).splitlines()[0]}"
        ) from error


def _part(rows: pd.DataFrame, name: str, columns: tuple[str, ...], *, whole: tuple[str, ...]) -> pd.DataFrame:
    found = rows[rows["part"] == name]
    found = (found[list(columns)] if len(found) else found.reindex(columns=list(columns))).reset_index(drop=True)
    return found.astype(dict.fromkeys(whole, "int64"))


MOST_EPOCHS = 64
"""Histograms that are kept of every layer: beyond, every second one is dropped, and from then on every second epoch."""

LOSS, RATE = "loss", "learning rate"


class TrainingLoop(ExplicitCall):
    """What a training loop says of itself: its loss, its learning rate, and whatever it pushes."""

    name = "training loop"
    title = "Loss and learning rate"


class Logbook:
    """Keeps what the picture of a run needs and quantities forget at the end of an epoch.

    Attributes:
        last_steps: the last step of every epoch.
    """

    def __init__(self) -> None:
        self.last_steps: list[int] = []
        self._histograms: dict[int, dict[str, Histogram]] = {}
        self._every = 1

    def end_epoch(self, number: int, step: int, quantities: Iterable[Quantity]) -> None:
        """Takes the histograms of an epoch, before they are forgotten."""
        self.last_steps.append(max(0, step))
        found = {
            layer: histogram
            for quantity in quantities
            if isinstance(quantity, GradHist1d)
            for layer, histogram in _of_model_or_layers(quantity)
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
        history: Iterable[Entry],
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
        return TrainingRecord(
            name=name,
            layers=list(layers),
            steps=pd.DataFrame([row for each in quantities for row in _steps(each)], columns=list(STEPS)),
            epochs=pd.DataFrame([self._figure(entry) for entry in history], columns=list(EPOCHS)),
            histograms=pd.DataFrame(list(self._bins()), columns=list(HISTOGRAMS)),
            findings=pd.DataFrame(
                [(each.step or 0, each.kind, each.layer, str(each)) for each in findings], columns=list(FINDINGS)
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

    def _figure(self, entry: Entry) -> tuple[Any, ...]:
        row = entry.row
        step = self.last_steps[entry.epoch]
        return entry.quantity, row.measure, row.layer, entry.epoch, step, row.statistic, row.value

    def _bins(self) -> Iterator[tuple[Any, ...]]:
        for epoch, histograms in self._histograms.items():
            for layer, histogram in histograms.items():
                edges = histogram.edges[0]
                for place, count in enumerate(histogram.counts.tolist()):
                    if count:
                        step = self.last_steps[epoch]
                        yield GradHist1d.name, layer, epoch, step, edges[place], edges[place + 1], count


def _of_model_or_layers(quantity: GradHist1d) -> Iterator[tuple[str, Histogram]]:
    """The histogram of the model, or those of parameters where each has a range of its own."""
    if len({histogram.ranges for histogram in quantity.histograms.values()}) == 1:
        yield MODEL, quantity.model
    yield from quantity.histograms.items()


def _steps(quantity: Quantity) -> Iterator[tuple[Any, ...]]:
    for measure in dict.fromkeys([*quantity.joined, *quantity.timelines]):
        joined, own = quantity.joined.get(measure, {}), quantity.timelines.get(measure, {})
        for layer in dict.fromkeys([*joined, *own]):
            timelines = [each[layer] for each in (joined, own) if layer in each]
            for start, stop, moments in chain.from_iterable(timeline.stretches() for timeline in timelines):
                where = (quantity.name, measure, layer, start, stop)
                yield (*where, moments.count, moments.non_finite, *moments.figures().values())
