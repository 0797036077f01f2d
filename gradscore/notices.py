"""What a reader should know of results, beside the results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["note", "caution", "warning"]
"""A `note` is good to know. A `caution` is to be read before any figure. After a `warning` figures may mean nothing, so
there is no verdict."""


@dataclass(frozen=True)
class Notice:
    """A sentence for the reader of results."""

    level: Level
    text: str


def notes(texts: Iterable[str]) -> list[Notice]:
    """Sentences that are good to know."""
    return [Notice("note", text) for text in texts]


def texts_of(notices: Iterable[Notice], *levels: Level) -> list[str]:
    """The sentences of some levels, in their order."""
    return [notice.text for notice in notices if notice.level in levels]
