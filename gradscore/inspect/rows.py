"""Figures as rows, in the order of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .hooks import layer_of
from .quantities.quantity import Row

Place = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A figure of an epoch."""

    epoch: int
    quantity: str
    row: Row


def model_order(names: Sequence[str]) -> Callable[[str], Place]:
    """What sorts names, and calls of layers, into the order of a model; others come last.

    Args:
        names: of layers and parameters in that order.
    """
    places = {name: place for place, name in enumerate(names)}

    def place(site: str) -> Place:
        layer, number = layer_of(site)
        return places.get(layer, len(places)), number

    return place


def ordered_rows(rows: Iterable[Row], place: Callable[[str], Place]) -> list[Row]:
    """Rows measure by measure, layers in the order of the model."""
    found = list(rows)
    measures = {measure: number for number, measure in enumerate(dict.fromkeys(row.measure for row in found))}
    return sorted(found, key=lambda row: (measures[row.measure], place(row.layer)))
