"""Text that people and programs write: names in messages, addresses in object storage, cells of CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd


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


_TEXT = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):(?:/(.*))?", re.DOTALL)
"""What `Path` makes of an address: one slash after the colon, or none where nothing follows."""

_MEANT = re.compile(r"(s3a?|gc?s|az|abfss?|file):(/*)(.*)", re.DOTALL | re.IGNORECASE)
"""What is meant as an address, however it is written."""


def is_address(given: str | Path) -> bool:
    """Whether this is an address rather than a path; a `Path` may be an address with one of its slashes lost.

    >>> is_address("s3://bucket/runs/a"), is_address(Path("s3://bucket/runs/a")), is_address("npz:/data/a.npz")
    (True, True, False)
    """
    return _parts(given) is not None


def as_address(given: str | Path) -> str:
    """An address with both slashes; anything else as it is.

    >>> as_address(Path("s3://bucket/runs/a"))
    's3://bucket/runs/a'
    """
    found = _parts(given)
    return str(given) if found is None else f"{found[1]}://{found[2] or ''}"


def address_problem(written: str) -> str:
    """What keeps a text that is meant as an address from being one, and what to give; empty for all other texts.

    A `Path` made of the text no longer shows it.

    >>> address_problem("s3:/bucket/a")
    's3:/bucket/a: an address has two slashes after the colon; give s3://bucket/a'
    >>> address_problem("s3://bucket/a"), address_problem("npz:/data/a.npz")
    ('', '')
    """
    found = _MEANT.fullmatch(written)
    if found is None:
        return ""
    kind, slashes, rest = found.groups()
    if kind.lower() == "file":
        path = f"{slashes.removeprefix('//')}{rest}"
        return f"{written}: a file of this machine is named by its path alone; give {path}" if slashes else ""
    wrong = (
        "an address has two slashes after the colon" if slashes != "//"
        else "the kind of storage is written in small letters" if kind != kind.lower()
        else "a part of the key is empty, which no path can have" if "//" in rest.rstrip("/")
        else ""
    )  # fmt: skip
    right = f"{kind.lower()}://{re.sub('/+', '/', rest)}"
    return f"{written}: {wrong}; give {right}" if wrong else ""


def _parts(given: str | Path) -> re.Match[str] | None:
    return _AS_PATH.fullmatch(str(given)) if isinstance(given, Path) else _TEXT.fullmatch(given)


_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The same table, with a `'` before texts that a spreadsheet would run as formulas; numbers stay as they are.

    Names of samples and classes are anyone's: one that begins with `=` would compute something, or send it away, on the
    machine of who opens the file.
    """
    texts = [name for name in table if table[name].dtype.kind == "O"]
    return table.assign(**{str(name): table[name].map(_harmless) for name in texts})


def csv_quoting(table: pd.DataFrame) -> Literal[0, 2]:
    """Which texts `to_csv` has to quote: all of them where one holds a carriage return, which ends a row to readers.

    The writer of Python itself quotes those only that hold its own end of a line.
    """
    texts = (table[name] for name in table if table[name].dtype.kind == "O")
    has_return = any(isinstance(value, str) and "\r" in value for column in texts for value in column)
    return csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL


def _harmless(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_BEGIN_FORMULAS) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
