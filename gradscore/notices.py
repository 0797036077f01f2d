"""What a reader is told beside figures, and names from outside as files, terminals and pages can show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, Self

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
    """Notices that are to be read before any figure."""
    return [notice for notice in notices if notice.level != "note"]


ADDRESSES: Final[dict[str, str]] = {}
"""Addresses of local copies, by folder; a folder is a copy of one address for ever (see `gradscore.object_storage`)."""


def called(text: str) -> str:
    """A message, or a path, in which local copies are called by their addresses."""
    for folder, address in ADDRESSES.items():
        text = text.replace(folder, address)
    return text


def printable(text: str) -> str:
    r"""Text as `called`, whose control signs, and others that a terminal would obey or cannot show, stand as escapes.

    Names of files, layers and data sets come from outside: none may move the cursor or break a line.

    Example:
        >>> printable("a\x1b[2J")
        'a\\x1b[2J'
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in called(text))


def storable(text: str) -> str:
    r"""Text that files of UTF-8 can hold: bytes of a name that is none stand as escapes, everything else stays.

    Example:
        >>> storable(b"\xff0.png".decode(errors="surrogateescape"))
        '\\udcff0.png'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
