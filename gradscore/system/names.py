"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

SHOWN = 8
"""At most so many names are listed in a message."""


def closest(name: str, valid: Iterable[str]) -> str:
    """A hint for a mistyped name: the most similar valid one, or all of them where none is similar."""
    names = list(valid)
    similar = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{similar[0]}'?" if similar else f"valid: {', '.join(names)}"


def some(names: Sequence[str], shown: int = SHOWN) -> str:
    """The first few names and how many more there are, or "none".

    Example:
        >>> some(["a", "b", "c"], shown=2)
        'a, b and 1 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more if names else "none"
