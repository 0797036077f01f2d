"""What a reader should know of results, beside the results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

Level = Literal["note", "caution", "warning"]
"""A `note` is good to know. A `caution` is to be read before any figure. After a `warning` figures may mean nothing, so
there is no verdict."""


class Notice(str):
    """A sentence for the reader of results.

    Attributes:
        level: how urgent it is.
    """

    level: Level

    def __new__(cls, text: str, level: Level = "note") -> Self:
        """A sentence of a level."""
        notice = super().__new__(cls, text)
        notice.level = level
        return notice


def notes(sentences: Iterable[str]) -> list[Notice]:
    """Sentences as notices: those that have no level are good to know."""
    return [each if isinstance(each, Notice) else Notice(each) for each in sentences]


def by_urgency(sentences: Iterable[str]) -> list[Notice]:
    """Sentences as notices, warnings first and then cautions, otherwise in their order."""
    return sorted(notes(sentences), key=lambda notice: ("warning", "caution", "note").index(notice.level))


def urgent(notices: Iterable[Notice]) -> list[Notice]:
    """Those that are to be read before any figure."""
    return [notice for notice in notices if notice.level != "note"]
