"""Text from outside that a terminal or a page is to show as it stands."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text whose control signs, and others that a terminal would obey or cannot show, stand as escapes.

    Names of files, layers and data sets come from outside: none may move the cursor or break a line.

    Example:
        >>> printable("a\x1b[2J")
        'a\\x1b[2J'
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def storable(text: str) -> str:
    r"""Text that files of UTF-8 can hold: bytes of a name that is none stand as escapes, everything else stays.

    Example:
        >>> storable(b"\xff0.png".decode(errors="surrogateescape"))
        '\\udcff0.png'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
