"""What is kept of a run while it goes on, in memory that does not grow with its length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd

from ..finding import Finding
from ..quantities.explicit_call import ExplicitCall
from ..quantities.grad_hist_1d import GradHist1d
from ..quantities.histogram import Histogram
from ..quantities.quantity import MODEL, Quantity
from ..rows import Entry
from .record import EPOCHS, FINDINGS, HISTOGRAMS, STEPS, Drawing, TrainingRecord

MOST_EPOCHS = 64
"""Histograms that are kept of every layer: beyond, every second one is dropped, and from then on every second epoch."""

LOSS, RATE = "loss", "learning rate"


class TrainingLoop(ExplicitCall):
    """What a training loop says of itself: its loss, its learning rate, and whatever it pushes."""

    name = "training loop"
    title = "Loss and learning rate"


@dataclass(frozen=True)
class Epoch:
    """Histograms of an epoch.

    Attributes:
        number: of the epoch.
        step: the last one of the epoch.
        histograms: by layer.
    """

    number: int
    step: int
    histograms: dict[str, Histogram]


class Logbook:
    """Keeps what the picture of a run needs and quantities forget at the end of an epoch.

    Attributes:
        last_steps: the last step of every epoch.
    """

    def __init__(self) -> None:
        self.last_steps: list[int] = []
        self._epochs: list[Epoch] = []
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
        if not found or number % self._every:
            return
        self._epochs.append(Epoch(number, max(0, step), found))
        if len(self._epochs) > MOST_EPOCHS:
            self._every *= 2
            self._epochs = [epoch for epoch in self._epochs if not epoch.number % self._every]

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
            histograms=pd.DataFrame([row for epoch in self._epochs for row in _bins(epoch)], columns=list(HISTOGRAMS)),
            findings=pd.DataFrame(
                [(each.step or 0, each.kind, each.layer, str(each)) for each in findings], columns=list(FINDINGS)
            ),
            drawings={
                each.name: Drawing(
                    each.title or each.name.capitalize(),
                    {measure: each.caption(measure) for measure in each.captions},
                    each.lines,
                    each.bands,
                    each.log_scale,
                )
                for each in quantities
            },
        )

    def _figure(self, entry: Entry) -> tuple[Any, ...]:
        row = entry.row
        step = self.last_steps[entry.epoch]
        return entry.quantity, row.measure, row.layer, entry.epoch, step, row.statistic, row.value


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
            for part in chain.from_iterable(timeline.stretches() for timeline in timelines):
                moments = part.moments
                figures = [moments.point(name) for name in ("mean", "std", "min", "max")]
                where = (quantity.name, measure, layer, part.start, part.stop)
                yield (*where, moments.count, moments.non_finite, *figures)


def _bins(epoch: Epoch) -> Iterator[tuple[Any, ...]]:
    for layer, histogram in epoch.histograms.items():
        edges, counts = histogram.edges[0], histogram.counts.tolist()
        for place, count in enumerate(counts):
            if count:
                yield GradHist1d.name, layer, epoch.number, epoch.step, edges[place], edges[place + 1], count
