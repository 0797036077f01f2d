"""Colours of the plots, which can be told apart on white and on black."""

from __future__ import annotations

PALETTE = ("#3b82c4", "#e07b39", "#3a9e75", "#b45fa8", "#c9a227", "#d1495b", "#5aa7d6", "#8a6d5c", "#7a7f87", "#6f7fd1")

GREY = "#8b9096"
"""For what is there to compare with."""


def colour(number: int) -> str:
    """The colour of the line or group with this number, as `#rrggbb`."""
    return PALETTE[number % len(PALETTE)]
